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
from perdure.store.base import Record, Store

FORMAT: Final = 1
_PAGE: Final = 500


async def export_lines(
    store: Store, entry: SessionEntry, *, secrets: bool = False
) -> AsyncIterator[bytes]:
    """Yield the lines of one session. Raises Corrupt after all that can be read.

    Without its secrets an export is for reading: an import refuses it.
    """
    session = entry.record
    yield _line(
        perdure=FORMAT,
        sessionID=session.id,
        tenant=session.tenant,
        agent=session.agent,
        **({} if session.queue == queues.DEFAULT else {"queue": session.queue}),
        **({} if session.parent is None else {"parent": session.parent}),
    )
    blobs: dict[str, None] = {}
    seq, redacted = 0, 0
    try:
        async for record in _records(store, entry.stream):
            event = _decode(record)
            data = record.data if secrets else _redact(record)
            redacted += data is not record.data
            yield _line(
                seq=record.seq, type=record.type, timestamp=record.at, data=_single_line(data)
            )
            blobs |= dict.fromkeys(event_blobs(event))
            seq = record.seq
    except Corrupt:
        yield _line(end=session.id, events=seq)  # everything before the damage is complete
        raise
    async for call_entry in open_calls(store, entry.stream):
        call = pending.decode(call_entry.data)  # Corrupt: never write a line that cannot be read
        is_redacted = bool(call.redact) and not secrets
        yield _line(pending=call.redacted if is_redacted else msgspec.Raw(call_entry.data))
    for digest in blobs:
        content = base64.b64encode(await read_bytes(store, digest)).decode()
        yield _line(blob=digest, data=content)
    yield _line(end=session.id, events=seq, **({"redacted": redacted} if redacted else {}))


def event_blobs(event: events.Event) -> Iterable[str]:
    """Yield the digests of the files that an event refers to."""
    content: Content | dict[str, Any] = ""
    if isinstance(event, events.User):
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
            return
        after = page.records[-1].seq


def _decode(record: Record) -> events.Event:
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
