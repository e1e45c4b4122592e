"""Export of a session as lines of JSON."""

import base64
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

import msgspec

from perdure.core.json_depth import check_readable
from perdure.core.log import codec, events
from perdure.core.log.events import Content
from perdure.core.log.redaction import redact_event_data
from perdure.core.pending import record as pending
from perdure.core.session import queues
from perdure.errors import Corrupt
from perdure.runtime.records.content import read_bytes
from perdure.runtime.records.entries import SessionEntry, open_calls
from perdure.runtime.records.log import unreadable_record
from perdure.runtime.transfer.checksum import SessionChecksum
from perdure.runtime.transfer.create import SessionNames
from perdure.store.base import NoStream, Record, Store

FORMAT: Final = 1
_PAGE: Final = 500
_LOST: Final = Corrupt("the log is empty")


async def export_lines(
    store: Store, entry: SessionEntry, *, secrets: bool = False
) -> AsyncIterator[bytes]:
    """Yield the lines of one session. Raises Corrupt after all that can be read.

    Without its secrets an export is for reading: an import refuses it.
    """
    checksum = SessionChecksum()
    async for line in _session_lines(store, entry, secrets=secrets):
        yield checksum.add(line)


async def _session_lines(
    store: Store, entry: SessionEntry, *, secrets: bool
) -> AsyncIterator[bytes]:
    session = entry.record
    names = SessionNames(session.tenant, session.id, session.agent, session.queue)
    yield first_line(names, session.parent)
    export = EventLines(session.id, secrets)
    try:
        async for record in _records(store, entry.stream):
            event = decode_event(record)
            await _check_blobs(store, record, event)
            yield export.event_line(record, event)
    except Corrupt:
        yield export.end_line()  # everything before the damage is complete
        raise
    damage: Corrupt | None = None
    async for call_entry in open_calls(store, entry.stream):
        try:
            call = pending.decode(call_entry.data)
        except Corrupt as error:  # an import creates it again from the events
            damage = Corrupt(f"pending call {call_entry.key}: {error.message}")
            continue
        is_redacted = bool(call.redact) and not secrets
        yield _line(pending=call.redacted if is_redacted else msgspec.Raw(call_entry.data))
    for digest in export.blobs:
        yield blob_line(digest, await read_bytes(store, digest))
    yield export.end_line()
    if damage is not None:
        raise damage


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
        self.seq = 0
        self._session_id = session_id
        self._secrets = secrets
        self._redacted = 0

    def event_line(self, record: Record, event: events.Event) -> bytes:
        """Return the line of the next event."""
        data = record.data if self._secrets else _redact(record)
        self._redacted += data is not record.data
        self.blobs |= dict.fromkeys(event_blobs(event))
        self.seq = record.seq
        return _line(seq=record.seq, type=record.type, timestamp=record.at, data=_single_line(data))

    def end_line(self) -> bytes:
        """Return the line that completes the session."""
        redacted = {"redacted": self._redacted} if self._redacted else {}
        return _line(end=self._session_id, events=self.seq, **redacted)


async def _check_blobs(store: Store, record: Record, event: events.Event) -> None:
    """Raise Corrupt, naming the record, if a file of the event cannot be read."""
    for digest in event_blobs(event):
        try:
            await read_bytes(store, digest)
        except (Corrupt, NoStream) as error:
            raise unreadable_record(record, error) from error


def blob_line(digest: str, data: bytes) -> bytes:
    """Return the line of a file."""
    return _line(blob=digest, data=base64.b64encode(data).decode())


def event_blobs(event: events.Event) -> Iterable[str]:
    """Yield the digests of the files that an event refers to."""
    content: Content | dict[str, Any] = ""
    if isinstance(event, events.User | events.FollowUpQueued):
        content = event.content
    elif isinstance(event, events.ToolResult):
        content = event.result
    if isinstance(content, list):
        for part in content:
            if isinstance(part.get("blob"), str):
                yield part["blob"]


async def _records(store: Store, stream: str) -> AsyncIterator[Record]:
    """Yield every record; if one is damaged, all before it."""
    after, limit = 0, _PAGE
    while True:
        try:
            page = await store.read(stream, after, limit)
        except Corrupt as error:
            if limit == 1:
                damaged = Record("", b"", seq=after + 1, stream=stream)
                raise unreadable_record(damaged, error) from error
            limit = 1
            continue
        for record in page.records:
            yield record
        if not page.records:
            if not after:
                raise unreadable_record(Record("", b"", seq=1, stream=stream), _LOST)
            return
        after = page.records[-1].seq


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
