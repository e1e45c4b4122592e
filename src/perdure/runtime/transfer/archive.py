"""Making sessions anew from the lines that `exporting` writes.

The whole file is looked at before anything is written. The log counts: entries of open calls are
made from it, and the entries in the file only add what it does not say.
"""

import base64
import binascii
import dataclasses
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from perdure.core.log import codec, events
from perdure.core.log.events import Content, Stamped
from perdure.core.log.redaction import shown_event
from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session import queues
from perdure.core.session.naming import check_id, check_tenant
from perdure.errors import Conflict, Corrupt, PerdureError, Refused
from perdure.runtime.records.content import digest_of, read_bytes, store_bytes
from perdure.runtime.records.entries import SessionEntry, SessionRef, open_calls
from perdure.runtime.records.log import unreadable
from perdure.runtime.resources import Resources
from perdure.runtime.transfer.create import SessionNames, from_log, make
from perdure.store.base import HeadMoved, Record, Store, VersionMoved


class HasResources(Protocol):
    """Anything that carries the runtime's shared resources."""

    @property
    def desk(self) -> Resources: ...


FORMAT: Final = 1
_PAGE: Final = 500


async def export_lines(
    service: HasResources, known: SessionEntry, *, secrets: bool = False
) -> AsyncIterator[bytes]:
    """The lines of one session. Raises Corrupt after all that can be read.

    Without its secrets a session is for reading: an import refuses it.
    """
    record, store = known.record, service.desk.store
    yield _line(
        perdure=FORMAT,
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


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """Any line of an export; which one it is, its fields say."""

    perdure: int | None = None
    session_id: str | None = msgspec.field(default=None, name="sessionID")
    tenant: str = ""
    agent: str | None = None
    queue: str = queues.DEFAULT
    parent: str | None = None
    seq: int | None = None
    type: str | None = None
    timestamp: int | None = None
    data: msgspec.Raw = msgspec.Raw(b"")
    pending: PendingRecord | None = None
    blob: str | None = None
    end: str | None = None
    events: int = 0
    redacted: int = 0


@dataclass(slots=True)
class _Bundle:
    """One session of a file."""

    session_id: str
    tenant: str
    agent: str
    queue: str
    parent: str | None
    log: list[Stamped] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    is_whole: bool = False
    redacted: int = 0  # events without their secrets

    @property
    def address(self) -> SessionRef:
        return SessionRef(self.tenant, self.session_id)


@dataclass(slots=True)
class _File:
    """All that a file says."""

    sessions: dict[tuple[str, str], _Bundle] = field(default_factory=dict)
    pending: dict[str, PendingRecord] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Imported:
    """One session that is here now."""

    session_id: str
    tenant: str
    events: int
    pending: int


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What a file brought. Orphans are calls of sessions that it does not hold: cancelled."""

    sessions: tuple[Imported, ...]
    orphans: tuple[PendingRecord, ...]


async def import_lines(
    service: HasResources, lines: Iterable[bytes], tenant: str | None = None
) -> ImportReport:
    """Make the sessions of a file. Refused names the line; Conflict if one of them exists here."""
    file = _read(lines)
    for bundle in file.sessions.values():
        if tenant is not None and bundle.tenant != tenant:
            raise Refused(
                f"session {bundle.session_id!r} belongs to tenant {bundle.tenant!r}",
                code="IMPORT_INVALID",
                hint="import it without --tenant",
            )
        if await service.desk.outside.find(bundle.address) is not None:
            raise _exists(bundle)
    for data in file.blobs.values():
        await store_bytes(service.desk.store, data)
    made = [await _make(service.desk.store, one, file.pending) for one in file.sessions.values()]
    return ImportReport(tuple(made), tuple(_orphans(file)))


# --- reading --------------------------------------------------------------------------------------


def _read(lines: Iterable[bytes]) -> _File:
    file = _File()
    bundle: _Bundle | None = None
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text, type=_Line)
            bundle = _take(file, bundle, line)
        except (msgspec.MsgspecError, UnicodeDecodeError, PerdureError, ValueError) as error:
            raise Refused(f"line {number}: {error}", code="IMPORT_INVALID") from error
    _check_whole(file)
    _check_blobs(file)
    return file


def _check_whole(file: _File) -> None:
    if not file.sessions and not file.pending:
        raise Refused("there is no session in the file", code="IMPORT_INVALID")
    for bundle in file.sessions.values():
        if not bundle.is_whole:
            raise Refused(
                f"the file ends in the middle of session {bundle.session_id!r}, "
                f"after event {len(bundle.log)}",
                code="IMPORT_INVALID",
                hint="export it again; half a session would do again what it had done",
            )
        if bundle.redacted:
            raise Refused(
                f"{bundle.redacted} events of session {bundle.session_id!r} were exported without "
                "their secrets, and what they ask for could not run",
                code="IMPORT_REDACTED",
                hint="export it with --secrets",
            )


def _take(file: _File, bundle: _Bundle | None, line: _Line) -> _Bundle | None:
    if line.perdure is not None:
        return _begin(file, line)
    if line.pending is not None:
        file.pending[line.pending.id] = line.pending
    elif line.blob is not None:
        file.blobs[line.blob] = _bytes(line.blob, line.data)
    elif bundle is None:
        raise Refused("no session was named before it; an export begins with one")
    elif line.end is not None:
        _end(bundle, line)
    else:
        _imported_event(bundle, line)
    return bundle


def _end(bundle: _Bundle, line: _Line) -> None:
    if line.end != bundle.session_id or line.events != len(bundle.log):
        raise Refused(
            f"{line.events} events of session {line.end!r} end here, and there are "
            f"{len(bundle.log)} of {bundle.session_id!r}"
        )
    bundle.is_whole, bundle.redacted = True, line.redacted


def _begin(file: _File, line: _Line) -> _Bundle:
    if line.perdure != FORMAT:
        raise Refused(f"format {line.perdure} is not known here: a newer perdure wrote it")
    names = (check_tenant(line.tenant), check_id(line.session_id))
    if names in file.sessions:
        raise Refused(f"session {names[1]!r} is in the file twice")
    agent = check_id(line.agent, "agent name")
    queue = queues.check_queue(line.queue)
    bundle = file.sessions[names] = _Bundle(names[1], names[0], agent, queue, line.parent)
    return bundle


def _imported_event(bundle: _Bundle, line: _Line) -> None:
    if line.type is None or line.timestamp is None or line.seq is None:
        raise Refused("neither a session nor an event")
    if line.seq != len(bundle.log) + 1:
        raise Refused(f"event {line.seq} comes where {len(bundle.log) + 1} must")
    data = bytes(line.data)
    msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    event = codec.decode(line.type, data)
    bundle.log.append(Stamped(line.seq, line.timestamp, event))
    bundle.records.append(Record(line.type, data, line.timestamp))


def _bytes(name: str, text: msgspec.Raw) -> bytes:
    try:
        data = base64.b64decode(msgspec.json.decode(text, type=str), validate=True)
    except binascii.Error as error:
        raise Refused(f"not base64: {error}") from error
    if digest_of(data) != name:
        raise Refused(f"these are not the bytes of {name}")
    return data


def _check_blobs(file: _File) -> None:
    for bundle in file.sessions.values():
        for stamped in bundle.log:
            for digest in blobs_in(stamped.event):
                if digest not in file.blobs:
                    raise Refused(
                        f"event {stamped.seq} of session {bundle.session_id!r} has a file "
                        f"{digest} that is not there",
                        code="IMPORT_INVALID",
                    )


def _orphans(file: _File) -> Iterator[PendingRecord]:
    for record in file.pending.values():
        bundle = file.sessions.get((record.tenant, record.session_id))
        opened = () if bundle is None else (stamped.event for stamped in bundle.log)
        if not any(isinstance(e, events.Pending) and e.pending_id == record.id for e in opened):
            yield record


# --- writing --------------------------------------------------------------------------------------


async def _make(store: Store, bundle: _Bundle, more: Mapping[str, PendingRecord]) -> Imported:
    if not bundle.log:
        raise Refused(f"session {bundle.session_id!r} has no events", code="IMPORT_INVALID")
    names = SessionNames(bundle.tenant, bundle.session_id, bundle.agent, bundle.queue)
    making = from_log(names, bundle.log, store.now())
    calls = [_completed(record, more.get(record.id)) for record in making.calls]
    record = replace(making.record, parent=bundle.parent)
    making = dataclasses.replace(making, record=record, records=bundle.records, calls=calls)
    try:
        await make(store, making)
    except (HeadMoved, VersionMoved) as error:
        raise _exists(bundle) from error
    return Imported(bundle.session_id, bundle.tenant, len(bundle.log), len(calls))


def _completed(record: PendingRecord, told: PendingRecord | None) -> PendingRecord:
    """With what only its entry knew."""
    if told is None:
        return record
    return replace(
        record,
        on_expire=told.on_expire,
        late=told.late,
        progress=told.progress,
        ancestry=told.ancestry,
    )


def _exists(bundle: _Bundle) -> Conflict:
    return Conflict(
        f"session {bundle.session_id!r} exists here, or one of its calls does",
        code="SESSION_EXISTS",
        hint="an import never changes a session; nothing of this one was written",
        details={"sessionID": bundle.session_id, "tenant": bundle.tenant},
    )
