"""Index entries of sessions and pending calls: decoded, put, and found."""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session import naming as index
from perdure.core.session import queues
from perdure.core.session.naming import SessionRecord, session_not_found
from perdure.core.webhooks.deliveries import Hook
from perdure.errors import Corrupt
from perdure.runtime.records.listings import SESSIONS, SETTLED, open_listing
from perdure.store.base import Check, Entry, Gone, NoStream, Put, Store
from perdure.store.shared.all_pages import all_entries

T = TypeVar("T")

logger = logging.getLogger("perdure")

WhileWaiting = Literal["queue", "reject", "cancel_calls"]
POISONED_STATE: Final = "poisoned"  # entry state of a session that failed as POISONED
STUCK: Final = "stuck"  # entry state of a session that needs code its driver did not have


@dataclass(frozen=True, slots=True)
class SessionRef:
    """Reference to a session, with the options for creating it or sending to it."""

    tenant: str
    session_id: str
    agents: Sequence[str] = ()  # names of its agent; a new session gets the first
    while_waiting: WhileWaiting = "queue"
    metadata: Mapping[str, Any] | None = None
    notify: Hook | None = None  # an additional receiver of webhooks
    queue: str = queues.DEFAULT  # of a new session

    @property
    def key(self) -> str:
        return index.session_key(self.tenant, self.session_id)


class SessionEntry(Struct, frozen=True, gc=False):
    """Index entry of a session, decoded."""

    index_entry: Entry
    record: SessionRecord

    @classmethod
    def decode(cls, entry: Entry) -> "SessionEntry":
        """Decode an index entry. Raises Corrupt."""
        return cls(entry, index.decode(entry.data))

    @classmethod
    def decode_listed(cls, entry: Entry) -> "SessionEntry":
        """Decode an index entry for a list; a damaged one is a failed session with its problem."""
        try:
            return cls.decode(entry)
        except Corrupt as error:
            tenant, session_id = index.parse_session_key(entry.key)
            hint = f"perdure doctor {session_id}"
            text = f"{error.message}; see {hint}"
            return cls(
                entry,
                SessionRecord(
                    id=session_id,
                    tenant=tenant,
                    agent="",
                    state="failed",
                    problem=error.code,
                    problem_text=text,
                ),
            )

    @property
    def is_damaged(self) -> bool:
        """Report whether the entry itself could not be decoded."""
        return not self.record.agent

    @classmethod
    def new(cls, record: SessionRecord, stream: str) -> "SessionEntry":
        """Return the entry of a new session; `as_put` puts it."""
        key, data = index.session_key(record.tenant, record.id), index.encode(record)
        place = (SESSIONS, record.updated_at)
        return cls(
            Entry("session", key, stream, 1, _entry_state(record), None, data, *place), record
        )

    @classmethod
    def from_put(cls, put: Put) -> "SessionEntry":
        """Return the entry that a committed put has created."""
        data = put.data if isinstance(put.data, bytes) else b""
        names, place = (put.kind, put.key, put.stream), (put.listing, put.at)
        return cls.decode(Entry(*names, put.expect + 1, put.state, put.due, data, *place))

    @property
    def stream(self) -> str:
        return self.index_entry.stream

    def put(self, **changes: Any) -> Put:
        """Return the put of these changes, conditional on the present version."""
        record = _updated(self.record, changes)
        return session_put(record, self.index_entry.version, self.stream)

    def with_changes(self, **changes: Any) -> "SessionEntry":
        """Return the entry of the next version with these changes; `as_put` puts it."""
        record = _updated(self.record, changes)
        entry, state = self.index_entry, _entry_state(record)
        names, place = (entry.kind, entry.key, entry.stream), (SESSIONS, record.updated_at)
        data = index.encode(record)
        return SessionEntry(Entry(*names, entry.version + 1, state, None, data, *place), record)

    @property
    def as_put(self) -> Put:
        """The put that replaces the previous version by this one."""
        entry = self.index_entry
        names, place = (entry.kind, entry.key), (entry.listing, entry.at)
        version, stream = entry.version - 1, entry.stream
        return Put(*names, version, stream, entry.state, None, entry.data, *place)


class PendingEntry(Struct, frozen=True, gc=False):
    """Index entry of a pending call, decoded: its stream, version and record."""

    stream: str
    version: int
    record: PendingRecord

    @classmethod
    def decode(cls, entry: Entry) -> "PendingEntry":
        """Decode an index entry. Raises Corrupt."""
        return cls(entry.stream, entry.version, pending.decode(entry.data))

    def with_record(self, record: PendingRecord) -> "PendingEntry":
        """Return the entry of the next version with this record; `as_put` puts it."""
        return PendingEntry(self.stream, self.version + 1, record)

    @property
    def as_put(self) -> Put:
        """The put that replaces the previous version by this one."""
        return pending_put(self.record, self.version - 1, self.stream)

    @property
    def as_check(self) -> Check:
        """The condition that the entry still has this version."""
        return Check("pending", self.record.id, self.version, self.stream)


def session_put(record: SessionRecord, expect: int, stream: str) -> Put:
    """Return the put of a session's entry."""
    key, data = index.session_key(record.tenant, record.id), index.encode(record)
    place = (SESSIONS, record.updated_at)
    return Put("session", key, expect, stream, _entry_state(record), None, data, *place)


def _entry_state(record: SessionRecord) -> str:
    if record.problem == index.POISONED:
        return POISONED_STATE
    return STUCK if record.problem is not None else record.state


def _updated(record: SessionRecord, changes: Mapping[str, Any]) -> SessionRecord:
    record = replace(record, **changes)
    if record.is_over and record.waiting:
        record = replace(record, waiting=())
    if record.problem == index.POISONED and record.state != "failed":  # a new run
        return replace(record, problem=None, problem_text=None)
    return record


def pending_put(record: PendingRecord, expect: int, stream: str) -> Put:
    """Return the put of a pending call's entry."""
    state = "open" if record.is_open else str(record.status)
    at = record.time.created
    if not record.is_open:
        at = record.time.completed or at
    data, listing = pending.encode(record), pending_listing(record)
    return Put("pending", record.id, expect, stream, state, record.due, data, listing, at)


def pending_listing(record: PendingRecord) -> str:
    """Return the listing of a pending call's entry."""
    return open_listing(record.kind) if record.is_open else SETTLED


@contextmanager
def erased_as_not_found(session_id: str) -> Iterator[None]:
    """Raise NotFound for a session that was erased after its entry was read."""
    try:
        yield
    except (NoStream, Gone) as error:
        raise session_not_found(session_id) from error


def decode_readable(entries: Iterable[Entry], decode: Callable[[Entry], T]) -> Iterator[T]:
    """Decode the entries; log and skip those that are corrupt, which `doctor` reports."""
    for entry in entries:
        try:
            yield decode(entry)
        except Corrupt as error:
            logger.warning("%s %s: %s", entry.kind, entry.key, error.message)


async def all_readable(
    store: Store,
    kind: str,
    decode: Callable[[Entry], T],
    *,
    state: str | None = None,
    stream: str | None = None,
) -> AsyncIterator[T]:
    """Find and decode all entries of a kind; log and skip those that are corrupt."""
    async for entry in all_entries(store, kind, state=state, stream=stream):
        for value in decode_readable((entry,), decode):
            yield value


def open_calls(store: Store, stream: str) -> AsyncIterator[Entry]:
    """Find the open pending calls of one session."""
    return all_entries(store, "pending", state="open", stream=stream)
