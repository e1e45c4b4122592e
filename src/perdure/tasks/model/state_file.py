"""Saved state of a task: its checksum, and the format of `state.json`."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from perdure.errors import Corrupt

CHECKSUM = "checksum"


class TaskState(Struct, frozen=True, kw_only=True):
    """State that a caller saves for a task; `last_updated` is ISO 8601."""

    task_id: str = field(name="taskId")
    status: str
    data: dict[str, Any] = field(default_factory=dict)
    last_updated: str = field(name="lastUpdated")


def checksum(document: Mapping[str, Any]) -> str:
    """Return the checksum of everything in a document but its checksum, in any order of keys."""
    content = {key: value for key, value in document.items() if key != CHECKSUM}
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()


def state_document(state: TaskState, extra: Mapping[str, Any]) -> bytes:
    """Return the content of `state.json`: the state, what else people want to see, a checksum."""
    document: dict[str, Any] = {**msgspec.to_builtins(state), **extra}
    document[CHECKSUM] = checksum(document)
    return _formatted(document)


def parse_state(content: bytes) -> TaskState:
    """Return the state of a document without its checksum. Raises Corrupt if that is wrong.

    The checksum is that of the content: the order of keys and the layout do not count.
    """
    if not content.strip():
        raise Corrupt("it is empty")
    try:
        document = msgspec.json.decode(content, type=dict[str, Any])
        state = msgspec.convert(document, TaskState)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"it is not the state of a task: {error}") from error
    if document.get(CHECKSUM) != checksum(document):
        raise Corrupt("its checksum is wrong")
    return state


def _formatted(document: Mapping[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def encode_state(state: TaskState) -> bytes:
    """Return the state as the data of its entry, with its checksum."""
    document: dict[str, Any] = msgspec.to_builtins(state)
    return msgspec.json.encode({**document, CHECKSUM: checksum(document)})
