"""Making sessions anew from the lines that `exporting` writes.

The whole file is looked at before anything is written. The log counts: entries of open calls are
made from it, and the entries in the file only add what it does not say.
"""

import base64
import binascii
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from holdfast.core.log import codec, events
from holdfast.core.log.events import Stamped
from holdfast.core.pending.record import PendingRecord
from holdfast.core.session import queues
from holdfast.core.session.naming import check_id, check_tenant
from holdfast.errors import Conflict, HoldfastError, Refused
from holdfast.runtime.content import digest_of, store_bytes
from holdfast.runtime.entries import Address
from holdfast.runtime.exporting import FORMAT, blobs_in
from holdfast.runtime.making import Names, going_on, make
from holdfast.runtime.service import Service
from holdfast.store.base import HeadMoved, Record, Store, VersionMoved


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """Any line of an export; which one it is, its fields say."""

    holdfast: int | None = None
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
    def address(self) -> Address:
        return Address(self.tenant, self.session_id)


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
    service: Service, lines: Iterable[bytes], tenant: str | None = None
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
        except (msgspec.MsgspecError, UnicodeDecodeError, HoldfastError, ValueError) as error:
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
    if line.holdfast is not None:
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
        _event(bundle, line)
    return bundle


def _end(bundle: _Bundle, line: _Line) -> None:
    if line.end != bundle.session_id or line.events != len(bundle.log):
        raise Refused(
            f"{line.events} events of session {line.end!r} end here, and there are "
            f"{len(bundle.log)} of {bundle.session_id!r}"
        )
    bundle.is_whole, bundle.redacted = True, line.redacted


def _begin(file: _File, line: _Line) -> _Bundle:
    if line.holdfast != FORMAT:
        raise Refused(f"format {line.holdfast} is not known here: a newer holdfast wrote it")
    names = (check_tenant(line.tenant), check_id(line.session_id))
    if names in file.sessions:
        raise Refused(f"session {names[1]!r} is in the file twice")
    agent = check_id(line.agent, "agent name")
    queue = queues.check_queue(line.queue)
    bundle = file.sessions[names] = _Bundle(names[1], names[0], agent, queue, line.parent)
    return bundle


def _event(bundle: _Bundle, line: _Line) -> None:
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
    names = Names(bundle.tenant, bundle.session_id, bundle.agent, bundle.queue)
    making = going_on(names, bundle.log, store.now())
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
