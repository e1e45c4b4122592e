"""Export of a session as lines of JSON."""

import base64
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import pairwise
from typing import Any, Final

import msgspec

from perdure.core.json_depth import check_readable
from perdure.core.log import codec, events
from perdure.core.log.events import StampedEvent
from perdure.core.log.redaction import redact_event_data
from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session import queues
from perdure.core.session.naming import SessionRecord, parse_session_stream
from perdure.errors import Corrupt
from perdure.runtime.records.content import event_blobs, read_bytes
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.records.log import unreadable_record
from perdure.runtime.transfer.checksum import SessionChecksum
from perdure.runtime.transfer.create import SessionNames
from perdure.runtime.transfer.readable import LogSummary
from perdure.store.base import NoStream, Record, Store
from perdure.store.shared.all_pages import all_entries

FORMAT: Final = 1
_PAGE: Final = 500
_MOST_LOST: Final = 1_000  # adjacent records: after more, a damaged number counts as the last one
_LOST: Final = Corrupt("the log ends before it")


async def export_lines(
    store: Store, entry: SessionEntry, *, secrets: bool = False
) -> AsyncIterator[bytes]:
    """Yield the lines of one session. Raises Corrupt after all that can be read.

    The end line of a damaged session names the events that are lost: its import applies the rule
    of salvage to its calls.
    Without its secrets an export is for reading: an import refuses it.
    """
    session = entry.record
    if parse_session_stream(entry.stream) != (session.tenant, session.id):
        raise Corrupt(f"the entry of session {session.id} is at another stream, {entry.stream}")
    checksum = SessionChecksum()
    async for line in _session_lines(store, entry, secrets=secrets):
        yield checksum.add(line)


async def _session_lines(
    store: Store, entry: SessionEntry, *, secrets: bool
) -> AsyncIterator[bytes]:
    session = entry.record
    names = SessionNames(session.tenant, session.id, session.agent, session.queue)
    yield first_line(names, session.parent)
    export, damage = EventLines(session.id, secrets), list[Corrupt]()
    head = await _head(store, entry)  # once: another process may append to it
    async for record in _records(store, entry.stream, head, damage):
        try:
            event = decode_event(record)
            await _check_blobs(store, record, event)
        except Corrupt as error:
            damage.append(error)
        else:
            yield export.event_line(record, event)
    calls = [call async for call in _calls(store, entry.stream, damage)]
    for line in export.call_lines(calls):
        yield line
    if export.lacks(head, session, calls) and await _head(store, entry) == head:
        head += 1
        damage.append(unreadable_record(Record("", b"", seq=head, stream=entry.stream), _LOST))
    for digest in export.blobs:
        yield blob_line(digest, await read_bytes(store, digest))
    yield export.end_line(head)
    if damage:
        raise damage[0]


def first_line(names: SessionNames, parent: str | None = None) -> bytes:
    """Return the line that names a session."""
    return _line(
        perdure=FORMAT,
        sessionID=names.session_id,
        tenant=names.tenant,
        agent=names.agent,
        **({} if names.queue == queues.DEFAULT else {"queue": names.queue}),
        **({} if parent is None else {"parent": parent}),
    )


class EventLines:
    """Lines of the events of one session, and their end."""

    def __init__(self, session_id: str, secrets: bool) -> None:
        self.blobs: dict[str, None] = {}
        self._seqs: list[int] = []
        self._session_id = session_id
        self._secrets = secrets
        self._redacted = 0
        self._summary = LogSummary()
        self._added: list[StampedEvent] = []  # to the lines, and not to the summary yet

    def event_line(self, record: Record, event: events.Event) -> bytes:
        """Return the line of the next event."""
        data = record.data if self._secrets else _redact(record)
        self._redacted += data is not record.data
        self.blobs |= dict.fromkeys(event_blobs(event))
        self._seqs.append(record.seq)
        self._added.append(StampedEvent(record.seq, record.at, event))
        if len(self._added) == _PAGE:
            self._summarize()
        return _line(seq=record.seq, type=record.type, timestamp=record.at, data=_single_line(data))

    def call_lines(self, calls: Iterable[tuple[PendingRecord, bytes]]) -> Iterator[bytes]:
        """Yield the lines of the open ones of these calls."""
        for call, data in calls:
            if call.is_open:
                is_redacted = bool(call.redact) and not self._secrets
                yield pending_line(call.redacted if is_redacted else msgspec.Raw(data))

    def lacks(
        self, head: int, session: SessionRecord, calls: Iterable[tuple[PendingRecord, bytes]]
    ) -> bool:
        """Return whether an entry knows of events after the head, which can be read."""
        self._summarize()
        is_complete = self._seqs[-1:] == [head]
        return is_complete and self._summary.lacks(session, (call for call, _ in calls))

    def _summarize(self) -> None:
        self._summary.add(self._added)
        self._added.clear()

    def end_line(self, head: int) -> bytes:
        """Return the line that completes the session, with the ranges of seqs that it lacks."""
        redacted = {"redacted": self._redacted} if self._redacted else {}
        ends = [0, *self._seqs, head + 1]
        lost = [(a + 1, b - 1) for a, b in pairwise(ends) if b > a + 1]
        damaged = {"lost": lost} if lost else {}
        return _line(end=self._session_id, events=len(self._seqs), **redacted, **damaged)


async def _calls(
    store: Store, stream: str, damage: list[Corrupt]
) -> AsyncIterator[tuple[PendingRecord, bytes]]:
    """Yield the calls that have an entry, with its data; add why an open one cannot be read."""
    async for entry in all_entries(store, "pending", stream=stream):
        try:
            yield pending.decode(entry.data), entry.data
        except Corrupt as error:  # an import creates it again from the events
            if entry.state == "open":
                damage.append(Corrupt(f"pending call {entry.key}: {error.message}"))


async def _check_blobs(store: Store, record: Record, event: events.Event) -> None:
    """Raise Corrupt, naming the record, if a file of the event cannot be read."""
    for digest in event_blobs(event):
        try:
            await read_bytes(store, digest)
        except (Corrupt, NoStream) as error:
            raise unreadable_record(record, error) from error


def pending_line(record: PendingRecord | msgspec.Raw) -> bytes:
    """Return the line of an open call."""
    return _line(pending=record)


def blob_line(digest: str, data: bytes) -> bytes:
    """Return the line of a file."""
    return _line(blob=digest, data=base64.b64encode(data).decode())


async def _records(
    store: Store, stream: str, head: int, damage: list[Corrupt]
) -> AsyncIterator[Record]:
    """Yield every record that can be read, and add why others cannot."""
    after, limit, adjacent = 0, _PAGE, 0
    while after < head and adjacent < _MOST_LOST:
        damaged = Record("", b"", seq=after + 1, stream=stream)
        try:
            records = (await store.read(stream, after, limit)).records
        except Corrupt as error:
            if limit == 1:
                damage.append(unreadable_record(damaged, error))
                after, limit, adjacent = after + 1, _PAGE, adjacent + 1
            else:
                limit = 1  # everything up to the damaged record, one by one
            continue
        if not records:
            damage.append(unreadable_record(damaged, _LOST))
            return
        for record in records:
            yield record
        after, adjacent = records[-1].seq, 0


async def _head(store: Store, entry: SessionEntry) -> int:
    """Return how many records the session has had: its entry knows of some that were lost."""
    return max((await store.read(entry.stream, 0, 0)).head, entry.record.head, 1)


def decode_event(record: Record) -> events.Event:
    """Return the event of a record. Raises Corrupt, naming the record."""
    try:
        check_readable(record.data)
        msgspec.json.decode(record.data, type=dict[str, msgspec.Raw])
        return codec.decode(record.type, record.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, Corrupt) as error:
        raise unreadable_record(record, error) from error


def _redact(record: Record) -> bytes:
    """Return the data without secrets; the same object if it has none."""
    if b'"redact"' not in record.data:
        return record.data
    data: dict[str, Any] = msgspec.json.decode(record.data)
    redacted = redact_event_data(record.type, data)
    return record.data if redacted is data else msgspec.json.encode(redacted)


def _single_line(data: bytes) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.format(data, indent=-1) if b"\n" in data else data)


def _line(**fields: Any) -> bytes:
    return msgspec.json.encode(fields) + b"\n"
