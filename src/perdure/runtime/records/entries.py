"""The index entries of sessions and pending calls: what finds them, and how they are written."""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session import naming as index
from perdure.core.session import queues
from perdure.core.session.naming import SessionRecord
from perdure.core.webhooks.deliveries import Hook
from perdure.errors import Corrupt, NotFound
from perdure.store.base import Entry, Gone, NoStream, Put, Store

T = TypeVar("T")

logger = logging.getLogger("perdure")

WhileWaiting = Literal["queue", "reject", "cancel_calls"]
STUCK: Final = "stuck"  # the state of the entry of a session that the code at hand could not move


@dataclass(frozen=True, slots=True)
class SessionRef:
    """Which session is meant, and by which names its agent may stand there."""

    tenant: str
    session_id: str
    agents: Sequence[str] = ()  # the first is the one that a new session gets
    while_waiting: WhileWaiting = "queue"
    metadata: Mapping[str, Any] | None = None
    notify: Hook | None = None  # who is told of its calls and its end, besides those who are
    queue: str = queues.DEFAULT  # of a new session

    @property
    def key(self) -> str:
        return index.session_key(self.tenant, self.session_id)


class SessionEntry(Struct, frozen=True, gc=False):
    """A session's entry and what it says."""

    entry: Entry
    record: SessionRecord

    @classmethod
    def of(cls, entry: Entry) -> "SessionEntry":
        """What an entry says."""
        return cls(entry, index.decode(entry.data))

    @classmethod
    def new(cls, record: SessionRecord, stream: str) -> "SessionEntry":
        """The entry of a new session, as it stands once it is put."""
        key, data = index.session_key(record.tenant, record.id), index.encode(record)
        return cls(Entry("session", key, stream, 1, _state_of(record), None, data), record)

    @classmethod
    def put_as(cls, put: Put) -> "SessionEntry":
        """What was just put, as the store has it now."""
        data = put.data if isinstance(put.data, bytes) else b""
        version = put.expect + 1
        return cls.of(Entry(put.kind, put.key, put.stream, version, put.state, put.due, data))

    @property
    def stream(self) -> str:
        return self.entry.stream

    def put(self, **changes: Any) -> Put:
        """The entry with these changes, if nobody changes it meanwhile."""
        record = replace(self.record, **changes)
        return session_put(record, self.entry.version, self.stream)

    def changed(self, **changes: Any) -> "SessionEntry":
        """The entry as it stands once these changes are put; `as_put` puts them."""
        record = replace(self.record, **changes)
        entry, state = self.entry, _state_of(record)
        data = index.encode(record)
        return SessionEntry(
            Entry(entry.kind, entry.key, entry.stream, entry.version + 1, state, None, data), record
        )

    @property
    def as_put(self) -> Put:
        """The write that makes the entry what it is here, of what it was before."""
        entry = self.entry
        return Put(
            entry.kind, entry.key, entry.version - 1, entry.stream, entry.state, None, entry.data
        )


class PendingEntry(NamedTuple):
    """A pending call's entry: whose it is, at which version, and what it says."""

    stream: str
    version: int
    record: PendingRecord

    @classmethod
    def of(cls, entry: Entry) -> "PendingEntry":
        """What an entry says."""
        return cls(entry.stream, entry.version, pending.decode(entry.data))

    def changed(self, record: PendingRecord) -> "PendingEntry":
        """The entry as it stands once this is put; `as_put` puts it."""
        return PendingEntry(self.stream, self.version + 1, record)

    @property
    def as_put(self) -> Put:
        """The write that makes the entry what it is here, of what it was before."""
        return pending_put(self.record, self.version - 1, self.stream)


def session_put(record: SessionRecord, expect: int, stream: str) -> Put:
    """The write of a session's entry."""
    key = index.session_key(record.tenant, record.id)
    return Put("session", key, expect, stream, _state_of(record), None, index.encode(record))


def _state_of(record: SessionRecord) -> str:
    return STUCK if record.problem is not None else record.state


def pending_put(record: PendingRecord, expect: int, stream: str) -> Put:
    """The write of a pending call's entry."""
    state = "open" if record.is_open else str(record.status)
    return Put("pending", record.id, expect, stream, state, record.due, pending.encode(record))


def session_not_found(session_id: str) -> NotFound:
    """The refusal that names a session which is not there."""
    return NotFound(
        f"there is no session {session_id!r}",
        code="SESSION_NOT_FOUND",
        hint="perdure sessions list",
    )


def pending_not_found(pending_id: str) -> NotFound:
    """The refusal that names a pending call which is not there."""
    return NotFound(
        f"Unknown pending ID: {pending_id}", code="PENDING_NOT_FOUND", hint="perdure pending list"
    )


@contextmanager
def erased_as_not_found(session_id: str) -> Iterator[None]:
    """A session that was deleted between looking and this is one that is not there."""
    try:
        yield
    except (NoStream, Gone) as error:
        raise session_not_found(session_id) from error


def readable(entries: Iterable[Entry], decode: Callable[[Entry], T]) -> Iterator[T]:
    """What each of them says; one that cannot be read hides no other, and `doctor` tells of it."""
    for entry in entries:
        try:
            yield decode(entry)
        except Corrupt as error:
            logger.warning("%s %s: %s", entry.kind, entry.key, error.message)


async def open_calls(store: Store, stream: str) -> AsyncIterator[Entry]:
    """The open pending calls of one session."""
    after: str | None = None
    while True:
        page = await store.find("pending", stream=stream, state="open", after=after)
        for entry in page.entries:
            yield entry
        if page.next is None:
            return
        after = page.next
