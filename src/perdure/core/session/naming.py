"""Names of sessions: ids, keys, streams, and the record that lists show."""

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from perdure.core.json_depth import READABLE_DEPTH, is_deeper, pruned
from perdure.core.log.events import PENDING_EXECUTIONS
from perdure.core.session import queues
from perdure.errors import Corrupt, NotFound, Refused
from perdure.views.literals import MAX_ID, RunState

_CACHE_SIZE: Final = (
    2_000  # recently composed names: one drive needs each of its names several times
)
_KIND: Final = "session:"
POISONED: Final = "POISONED"  # code of a run that failed because it stopped too many processes
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def index_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a session's metadata for lists: without saved states, which may be large."""
    return {k: v for k, v in metadata.items() if v is not None and k != PENDING_EXECUTIONS}


def check_id(value: Any, noun: str = "session id") -> str:
    """Return a valid id: 1 to 200 characters without control characters. Raises Refused."""
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_ID or _FORBIDDEN.search(value):
        raise Refused(
            f"{_abbreviate(value)} cannot be {'an' if noun[0] in 'aeiou' else 'a'} {noun}",
            code="ID_INVALID",
            hint=f"use 1 to {MAX_ID} characters without control characters",
        )
    return value


def session_not_found(session_id: str) -> NotFound:
    """Return the error for a session that does not exist."""
    return NotFound(
        f"there is no session {session_id!r}",
        code="SESSION_NOT_FOUND",
        hint="perdure sessions list",
    )


def check_tenant(value: str) -> str:
    """Return a valid tenant name; everything unscoped belongs to the empty one."""
    return value if value == "" else check_id(value, "tenant name")


def _abbreviate(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_MARKS: Final = {"%": "%25", "/": "%2F", "#": "%23", "|": "%7C"}  # separators in composed names
_QUOTED: Final = str.maketrans(_MARKS)


def quote(text: str) -> str:
    """Return a name without the separators of composed names."""
    return text.translate(_QUOTED)


def unquote(text: str) -> str:
    """Return the name that was quoted."""
    for character, escape in reversed(_MARKS.items()):
        text = text.replace(escape, character)
    return text


@lru_cache(_CACHE_SIZE)
def session_key(tenant: str, session_id: str) -> str:
    """Return the key of a session's entry."""
    return f"{quote(tenant)}/{session_id}"


def parse_session_key(key: str) -> tuple[str, str]:
    """Return tenant and session id of the key of a session's entry."""
    tenant, _, session_id = key.partition("/")
    return unquote(tenant), session_id


@lru_cache(_CACHE_SIZE)
def session_stream(tenant: str, session_id: str, generation: int = 1) -> str:
    """Return the stream of a session; one recreated after deletion has the next generation."""
    name = f"s/{quote(tenant)}/{quote(session_id)}"
    return name if generation == 1 else f"{name}#{generation}"


def session_label(tenant: str, session_id: str) -> str:
    """Return a session as people are told of it."""
    return f"session {session_id} of tenant {tenant}" if tenant else f"session {session_id}"


def stream_label(stream: str) -> str:
    """Return a stream as people are told of it: the session that it belongs to."""
    names = parse_session_stream(stream)
    return stream if names is None else session_label(*names)


def parse_session_stream(stream: str) -> tuple[str, str] | None:
    """Return tenant and session id of a stream; None if it is not a session's."""
    parts = stream.split("#", 1)[0].split("/")
    if len(parts) != 3 or parts[0] != "s":
        return None
    return unquote(parts[1]), unquote(parts[2])


@cache
def stream_kind(agent: str, queue: str = queues.DEFAULT) -> str:
    """Return the stream kind that a worker claims: the sessions of one agent in one queue."""
    kind = _KIND + agent.replace("%", "%25").replace("@", "%40")
    return kind if queue == queues.DEFAULT else f"{kind}@{queue}"


def parse_stream_kind(kind: str) -> tuple[str, str]:
    """Return agent and queue of a stream kind."""
    agent, mark, queue = kind.removeprefix(_KIND).partition("@")
    agent = agent.replace("%40", "@").replace("%25", "%")
    return agent, queue if mark else queues.DEFAULT


MOST_WAITING: Final = 20  # calls that an entry names


class SessionRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Data of a session's entry: what lists show without reading its log."""

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
    background: str | None = None  # id of the task that it is the child of
    ancestry: tuple[str, ...] = ()  # session ids from the root to the parent
    hooks: tuple[str, ...] = ()  # keys of the entries of its webhook receivers
    head: int = 0  # how many events its log has at least: one that is shorter has lost its end
    turns: int = 0  # model responses, when it was last parked
    usage: dict[str, float] = field(default_factory=dict)  # of its requests, at the same moment
    waiting: tuple[str, ...] = ()  # ids of the calls that it waits for, at most MOST_WAITING

    @property
    def is_over(self) -> bool:
        """True if the run has ended: the next message starts a new one."""
        return self.state in ("completed", "failed", "cancelled")

    @property
    def may_start_again(self) -> bool:
        """True if it can continue without a message: it failed, or is a fork cut within a run.

        A session without a title has not received a message yet.
        """
        is_cut = self.state == "pending" and self.task_id is None and bool(self.title)
        return self.state == "failed" or is_cut


_decoder = msgspec.json.Decoder(SessionRecord)


def encode(record: SessionRecord) -> bytes:
    """Return the record as the data of its entry."""
    return msgspec.json.encode(record)


def decode(data: bytes) -> SessionRecord:
    """Return the record of an entry. Raises Corrupt.

    Metadata that is nested too deeply to be read is cut: the session can still be listed, as
    damaged since its log has the same metadata, and deleted.
    """
    try:
        if is_deeper(data, READABLE_DEPTH):
            data = pruned(data)
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"the entry of a session cannot be read: {error}") from error


class KeyRecord(Struct, frozen=True, omit_defaults=True, gc=False):
    """Digest of the message sent under a key: another message under it is a conflict."""

    digest: str


def encode_key(record: KeyRecord) -> bytes:
    """Return the record as the data of its entry."""
    return msgspec.json.encode(record)


def decode_key(data: bytes) -> KeyRecord:
    """Return the record of an entry. Raises Corrupt."""
    try:
        return msgspec.json.decode(data, type=KeyRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"the entry of a message key cannot be read: {error}") from error
