"""A session as lines of JSON, from which it can be made anew elsewhere.

The first line names the session, the next ones are its events, byte for byte as they are stored;
only arguments that are secret are left out, unless they are asked for. Then what the log does not
hold: the entries of its open calls, and the bytes of its files. The last line says that this was
all, so that half a file is not taken for a whole one, and how many events are without secrets.
"""

import base64
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

import msgspec

from holdfast.core.log import codec, events
from holdfast.core.log.events import Content
from holdfast.core.log.redaction import shown_event
from holdfast.core.pending import record as pending
from holdfast.core.session import queues
from holdfast.errors import Corrupt
from holdfast.runtime.content import read_bytes
from holdfast.runtime.entries import Known, open_calls
from holdfast.runtime.log import unreadable
from holdfast.runtime.service import Service
from holdfast.store.base import Record, Store

FORMAT: Final = 1
_PAGE: Final = 500


async def export_lines(
    service: Service, known: Known, *, secrets: bool = False
) -> AsyncIterator[bytes]:
    """The lines of one session. Raises Corrupt after all that can be read.

    Without its secrets a session is for reading: an import refuses it.
    """
    record, store = known.record, service.desk.store
    yield _line(
        holdfast=FORMAT,
        sessionID=record.id,
        tenant=record.tenant,
        agent=record.agent,
        **({} if record.queue == queues.DEFAULT else {"queue": record.queue}),
        **({} if record.parent is None else {"parent": record.parent}),
    )
    blobs: dict[str, None] = {}
    seq, hidden = 0, 0
    try:
        async for one in _records(store, known.stream):
            event = _event(one)
            told = one.data if secrets else _shown(one)
            hidden += told is not one.data
            yield _line(seq=one.seq, type=one.type, timestamp=one.at, data=_one_line(told))
            blobs |= dict.fromkeys(blobs_in(event))
            seq = one.seq
    except Corrupt:
        yield _line(end=record.id, events=seq)  # what stands before the damage is whole
        raise
    async for entry in open_calls(service.desk.store, known.stream):
        call = pending.decode(entry.data)  # or Corrupt: no line that could not be read again
        hides = bool(call.redact) and not secrets
        yield _line(pending=call.shown if hides else msgspec.Raw(entry.data))
    for digest in blobs:
        data = base64.b64encode(await read_bytes(store, digest)).decode()
        yield _line(blob=digest, data=data)
    yield _line(end=record.id, events=seq, **({"redacted": hidden} if hidden else {}))


def blobs_in(event: events.Event) -> Iterable[str]:
    """The names of the files that an event refers to."""
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
    """Every record; where one is damaged, all before it."""
    after, limit = 0, _PAGE
    while True:
        try:
            found = await store.read(stream, after, limit)
        except Corrupt as error:
            if limit == 1:
                raise unreadable(Record("", b"", seq=after + 1, stream=stream), error) from error
            limit = 1
            continue
        for record in found.records:
            yield record
        if not found.records:
            return
        after = found.records[-1].seq


def _event(record: Record) -> events.Event:
    try:
        msgspec.json.decode(record.data, type=dict[str, msgspec.Raw])
        return codec.decode(record.type, record.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, Corrupt) as error:
        raise unreadable(record, error) from error


def _shown(record: Record) -> bytes:
    """The data without secrets; the very same bytes where it has none."""
    if b'"redact"' not in record.data:
        return record.data
    data: dict[str, Any] = msgspec.json.decode(record.data)
    shown = shown_event(record.type, data)
    return record.data if shown is data else msgspec.json.encode(shown)


def _one_line(data: bytes) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.format(data, indent=-1) if b"\n" in data else data)


def _line(**fields: Any) -> bytes:
    return msgspec.json.encode(fields) + b"\n"
