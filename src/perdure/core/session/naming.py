"""How sessions are named and found: ids, keys, streams, and the record that lists show."""

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from perdure.core.log.events import PENDING_EXECUTIONS
from perdure.core.session import queues
from perdure.core.session.state import RunState
from perdure.errors import Corrupt, Refused

MAX_ID: Final = 200
_KNOWN: Final = 2_000  # names that were put together lately: a cycle needs each several times
_KIND: Final = "session:"
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def listed_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What lists know of a session's metadata: saved states, which may be large, are not there."""
    return {k: v for k, v in metadata.items() if v is not None and k != PENDING_EXECUTIONS}


def check_id(value: Any, what: str = "session id") -> str:
    """The id, if it is one: 1 to 200 characters, none of them a control character."""
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_ID or _FORBIDDEN.search(value):
        raise Refused(
            f"{_shown(value)} cannot be a {what}",
            code="ID_INVALID",
            hint=f"use 1 to {MAX_ID} characters without control characters",
        )
    return value


def check_tenant(value: str) -> str:
    """The tenant's name; the empty one is where everything is unless scoped."""
    return value if value == "" else check_id(value, "tenant name")


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_MARKS: Final = {"%": "%25", "/": "%2F", "#": "%23", "|": "%7C"}  # what names are put together with
_QUOTED: Final = str.maketrans(_MARKS)


def _quote(text: str) -> str:
    return text.translate(_QUOTED)


def _unquote(text: str) -> str:
    for letter, mark in reversed(_MARKS.items()):
        text = text.replace(mark, letter)
    return text


@lru_cache(_KNOWN)
def session_key(tenant: str, session_id: str) -> str:
    """The key of a session's entry."""
    return f"{_quote(tenant)}/{session_id}"


@lru_cache(_KNOWN)
def stream_of(tenant: str, session_id: str, generation: int = 1) -> str:
    """The stream of a session; a session made anew after deletion has the next generation."""
    name = f"s/{_quote(tenant)}/{_quote(session_id)}"
    return name if generation == 1 else f"{name}#{generation}"


def names_in(stream: str) -> tuple[str, str] | None:
    """Tenant and session id of a stream; None if it is not a session's."""
    parts = stream.split("#", 1)[0].split("/")
    if len(parts) != 3 or parts[0] != "s":
        return None
    return _unquote(parts[1]), _unquote(parts[2])


@cache
def stream_kind(agent: str, queue: str = queues.DEFAULT) -> str:
    """What a worker claims: the sessions of one agent in one queue; it leaves others alone."""
    kind = _KIND + agent.replace("%", "%25").replace("@", "%40")
    return kind if queue == queues.DEFAULT else f"{kind}@{queue}"


def names_of_kind(kind: str) -> tuple[str, str]:
    """Agent and queue of the sessions of a kind."""
    agent, mark, queue = kind.removeprefix(_KIND).partition("@")
    agent = agent.replace("%40", "@").replace("%25", "%")
    return agent, queue if mark else queues.DEFAULT


class SessionRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A session as lists show it, without reading its log."""

    id: str
    tenant: str = ""
    agent: str
    queue: str = queues.DEFAULT
    task_id: str | None = field(default=None, name="taskID")
    state: RunState = "pending"
    created_at: int = field(default=0, name="createdAt")
    updated_at: int = field(default=0, name="updatedAt")
    metadata: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    problem: str | None = None
    problem_text: str | None = field(default=None, name="problemText")
    parent: str | None = None
    hooks: tuple[str, ...] = ()  # who is told, by the names of their entries

    @property
    def is_over(self) -> bool:
        """Whether the next message starts a new run."""
        return self.state in ("completed", "failed", "cancelled")

    @property
    def may_start_again(self) -> bool:
        """Whether it can go on without a message: it failed, or is a fork cut within a run.

        One that has no title was told nothing yet.
        """
        is_cut = self.state == "pending" and self.task_id is None and bool(self.title)
        return self.state == "failed" or is_cut


_decoder = msgspec.json.Decoder(SessionRecord)


def encode(record: SessionRecord) -> bytes:
    """The record as the data of its entry."""
    return msgspec.json.encode(record)


def decode(data: bytes) -> SessionRecord:
    """The record of an entry. Raises Corrupt."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"the entry of a session cannot be read: {error}") from error


class KeyRecord(Struct, frozen=True, omit_defaults=True, gc=False):
    """A message that was sent under a key: what it was, so that another is not taken for it."""

    digest: str


def encode_key(record: KeyRecord) -> bytes:
    """The record as the data of its entry."""
    return msgspec.json.encode(record)


def decode_key(data: bytes) -> KeyRecord:
    """The record of an entry. Raises Corrupt."""
    try:
        return msgspec.json.decode(data, type=KeyRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"the entry of a message key cannot be read: {error}") from error
