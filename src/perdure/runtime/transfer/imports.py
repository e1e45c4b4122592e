"""Import of sessions from the lines of an export.

All lines are checked before anything is written. The log counts: entries of open calls are
created from it, and the entries in the lines only add what the log does not contain.
"""

import base64
import binascii
import dataclasses
from collections.abc import AsyncIterable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import msgspec
from msgspec.structs import replace

from perdure import host
from perdure.core.json_depth import check_body_depth
from perdure.core.log import codec, events
from perdure.core.log.events import StampedEvent
from perdure.core.pending.record import PendingRecord
from perdure.core.session import queues
from perdure.core.session.naming import SessionRecord, check_id, check_tenant
from perdure.core.transfer.salvage import Remains, SalvagedCall, SalvagedLog, salvage
from perdure.errors import Conflict, PerdureError, Refused
from perdure.runtime.records.content import content_digest, event_blobs, store_bytes
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.transfer.checksum import changed_sessions, plain_line
from perdure.runtime.transfer.create import (
    NewSession,
    SessionNames,
    create_session,
    session_from_log,
)
from perdure.runtime.transfer.exports import FORMAT
from perdure.store.base import HeadMoved, Record, Store, VersionMoved

_MOST_LOST: Final = 1_000  # of a range of lost events that count one by one


class _ArchiveLine(msgspec.Struct, forbid_unknown_fields=True):
    """Any line of an export; its fields say which kind it is."""

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
    lost: list[tuple[int, int]] = msgspec.field(default_factory=list)  # that a damaged one lacks
    checksum: str | None = None


@dataclass(slots=True)
class _ArchivedSession:
    """One session of an export."""

    session_id: str
    tenant: str
    agent: str
    queue: str
    parent: str | None
    log: list[StampedEvent] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    is_complete: bool = False
    redacted: int = 0  # events without their secrets
    # Ranges of seqs, if it was damaged when it was exported.
    lost: list[tuple[int, int]] = field(default_factory=list)

    @property
    def ref(self) -> SessionRef:
        return SessionRef(self.tenant, self.session_id)


@dataclass(slots=True)
class _Archive:
    """The content of an export."""

    sessions: dict[tuple[str, str], _ArchivedSession] = field(default_factory=dict)
    pending: dict[str, PendingRecord] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImportedSession:
    """One session that was created."""

    session_id: str
    tenant: str
    events: int
    pending: int
    lost: int = 0  # records, if it was damaged when it was exported
    calls: tuple[SalvagedCall, ...] = ()  # of a damaged session, and how they continue
    is_incomplete: bool = False  # its run fails


@dataclass(frozen=True, slots=True)
class ImportReport:
    """Sessions that an import created. Orphans are calls without their session: cancelled."""

    sessions: tuple[ImportedSession, ...]
    orphans: tuple[PendingRecord, ...]


async def read_lines(
    lines: str | bytes | Iterable[str | bytes] | AsyncIterable[str | bytes],
) -> list[bytes]:
    """Return the lines of an export, given as text, as lines or as an async iterator of lines."""
    if isinstance(lines, str | bytes):
        data = lines.encode() if isinstance(lines, str) else lines
        return data.split(b"\n")
    if isinstance(lines, AsyncIterable):
        lines = [line async for line in lines]
    return [line.encode() if isinstance(line, str) else line for line in lines]


async def import_lines(
    store: Store, lines: Iterable[bytes], tenant: str | None = None
) -> ImportReport:
    """Create the sessions of an export.

    Raises Refused, which names the line, or Conflict if one of the sessions exists.
    """
    # Beside the event loop, as the fold below: a long log takes a second.
    archive = await host.run_in_thread(_read, lines)
    for bundle in archive.sessions.values():
        if tenant is not None and bundle.tenant != tenant:
            raise Refused(
                f"session {bundle.session_id!r} belongs to tenant {bundle.tenant!r}",
                code="IMPORT_INVALID",
                hint="import it into that tenant, or without a tenant",
            )
        if await store.get("session", bundle.ref.key) is not None:
            raise _exists(bundle)
    for data in archive.blobs.values():
        await store_bytes(store, data)
    sessions = [await _create(store, archive, bundle) for bundle in archive.sessions.values()]
    return ImportReport(tuple(sessions), tuple(_orphans(archive)))


# --- reading --------------------------------------------------------------------------------------


def _read(lines: Iterable[bytes]) -> _Archive:
    archive = _Archive()
    bundle: _ArchivedSession | None = None
    lines = list(map(plain_line, lines))
    for number, text in enumerate(lines, 1):
        if not text:
            continue
        try:
            check_body_depth(text, "it")
            line = msgspec.json.decode(text, type=_ArchiveLine)
            bundle = _add_line(archive, bundle, line)
        except (msgspec.MsgspecError, UnicodeDecodeError, PerdureError, ValueError) as error:
            raise _invalid(f"line {number}: {error}") from error
    _check_complete(archive)
    _check_blobs(archive)
    _check_unchanged(lines)
    return archive


def _invalid(text: str) -> Refused:
    return Refused(
        text,
        code="IMPORT_INVALID",
        hint="nothing was imported; export the sessions again: perdure sessions export",
    )


def _check_complete(archive: _Archive) -> None:
    if not archive.sessions and not archive.pending:
        raise _invalid("there is no session in the file")
    for bundle in archive.sessions.values():
        if not bundle.is_complete:
            raise Refused(
                f"the file ends in the middle of session {bundle.session_id!r}, "
                f"after event {len(bundle.log)}",
                code="IMPORT_INVALID",
                hint="export it again; an incomplete session would repeat its effects",
            )
        if bundle.redacted:
            raise Refused(
                f"{bundle.redacted} events of session {bundle.session_id!r} were exported without "
                "their secrets, and their calls could not run",
                code="IMPORT_REDACTED",
                hint="export it with secrets=True (--secrets)",
            )


def _check_unchanged(lines: Iterable[bytes]) -> None:
    for number in changed_sessions(lines):
        raise Refused(
            f"line {number}: the session that ends here was changed after its export: its lines "
            "do not have this checksum",
            code="IMPORT_CHANGED",
            hint="nothing was imported; export the session again, or, if the change is intended, "
            'remove "checksum" from this line',
        )


def _add_line(
    archive: _Archive, bundle: _ArchivedSession | None, line: _ArchiveLine
) -> _ArchivedSession | None:
    if line.perdure is not None:
        return _add_session(archive, line)
    if line.pending is not None:
        archive.pending[line.pending.id] = line.pending
    elif line.blob is not None:
        archive.blobs[line.blob] = _bytes(line.blob, line.data)
    elif bundle is None:
        raise _invalid("the line before it that names its session is missing")
    elif line.end is not None:
        _end_session(bundle, line)
        return None
    else:
        _add_event(bundle, line)
    return bundle


def _end_session(bundle: _ArchivedSession, line: _ArchiveLine) -> None:
    ends = [0, *(stamped.seq for stamped in bundle.log)]
    gaps = [(a + 1, b - 1) for a, b in pairwise(ends) if b > a + 1]
    if gaps != [span for span in line.lost if span[0] <= ends[-1]]:
        first, _ = next((gap for gap in gaps if gap not in line.lost), (line.lost or gaps)[0])
        raise _invalid(f"event {first} of session {line.end!r} is missing")
    if line.end != bundle.session_id or line.events != len(bundle.log):
        raise _invalid(
            f"{line.events} events of session {line.end!r} end here, and there are "
            f"{len(bundle.log)} of {bundle.session_id!r}"
        )
    bundle.is_complete, bundle.redacted, bundle.lost = True, line.redacted, line.lost


def _add_session(archive: _Archive, line: _ArchiveLine) -> _ArchivedSession:
    if line.perdure != FORMAT:
        raise _invalid(f"format {line.perdure} is unknown: a newer perdure wrote it")
    names = (check_tenant(line.tenant), check_id(line.session_id))
    if names in archive.sessions:
        raise _invalid(f"session {names[1]!r} is in the file twice")
    agent = check_id(line.agent, "agent name")
    queue = queues.check_queue(line.queue)
    bundle = archive.sessions[names] = _ArchivedSession(
        names[1], names[0], agent, queue, line.parent
    )
    return bundle


def _add_event(bundle: _ArchivedSession, line: _ArchiveLine) -> None:
    if line.type is None or line.timestamp is None or line.seq is None:
        raise _invalid("neither a session nor an event")
    if bundle.log and line.seq <= bundle.log[-1].seq:
        raise _invalid(f"event {line.seq} after event {bundle.log[-1].seq}")
    data = bytes(line.data)
    msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    event = codec.decode(line.type, data)
    bundle.log.append(StampedEvent(line.seq, line.timestamp, event))
    bundle.records.append(Record(line.type, data, line.timestamp))


def _bytes(name: str, text: msgspec.Raw) -> bytes:
    try:
        data = base64.b64decode(msgspec.json.decode(text, type=str), validate=True)
    except binascii.Error as error:
        raise _invalid(f"not base64: {error}") from error
    if content_digest(data) != name:
        raise _invalid(f"these are not the bytes of {name}")
    return data


def _check_blobs(archive: _Archive) -> None:
    for bundle in archive.sessions.values():
        for stamped in bundle.log:
            for digest in event_blobs(stamped.event):
                if digest not in archive.blobs:
                    raise _invalid(
                        f"event {stamped.seq} of session {bundle.session_id!r} has a file "
                        f"{digest} that is missing"
                    )


def _orphans(archive: _Archive) -> Iterator[PendingRecord]:
    for record in archive.pending.values():
        bundle = archive.sessions.get((record.tenant, record.session_id))
        opened = () if bundle is None else (stamped.event for stamped in bundle.log)
        if not any(isinstance(e, events.Pending) and e.pending_id == record.id for e in opened):
            yield record


# --- writing --------------------------------------------------------------------------------------


async def _create(store: Store, archive: _Archive, bundle: _ArchivedSession) -> ImportedSession:
    if not bundle.log and not bundle.lost:
        raise _invalid(f"session {bundle.session_id!r} has no events")
    session, salvaged = await host.run_in_thread(_new_session, archive, bundle, store.now())
    try:
        await create_session(store, session)
    except (HeadMoved, VersionMoved) as error:
        raise _exists(bundle) from error
    names = (bundle.session_id, bundle.tenant, len(session.log), len(session.calls))
    lost = sum(last - first + 1 for first, last in bundle.lost)
    return ImportedSession(*names, lost, salvaged.calls, salvaged.is_incomplete)


def _new_session(
    archive: _Archive, bundle: _ArchivedSession, now: int
) -> tuple[NewSession, SalvagedLog]:
    """Return the session to create, and how a damaged one continues."""
    names = SessionNames(bundle.tenant, bundle.session_id, bundle.agent, bundle.queue)
    # The receivers of webhooks are not in the file.
    records = [replace(record, hooks=()) for record in archive.pending.values()]
    own = [record for record in records if (record.tenant, record.session_id) == names[:2]]
    salvaged = SalvagedLog(bundle.log)
    if bundle.lost:
        issue = {"type": "EVENTS_MISSING", "details": "it was damaged when it was exported"}
        launch = _launched_record(archive, bundle)
        lost = [seq for a, b in bundle.lost for seq in range(a, min(b, a + _MOST_LOST) + 1)]
        remains = Remains(bundle.log, lost, own, session=launch)
        salvaged = salvage(remains, [issue], now)
    session = session_from_log(names, salvaged.events, now, own)
    if not bundle.lost:
        session = dataclasses.replace(session, records=bundle.records)
    record = replace(session.record, parent=bundle.parent or session.record.parent)
    return dataclasses.replace(session, record=record), salvaged


def _launched_record(archive: _Archive, bundle: _ArchivedSession) -> SessionRecord | None:
    """Return whose background agent a session is, by the log of its parent."""
    parent = archive.sessions.get((bundle.tenant, bundle.parent or ""))
    for stamped in () if parent is None else parent.log:
        event = stamped.event
        if isinstance(event, events.Delegation) and event.session_id == bundle.session_id:
            return SessionRecord(
                id=bundle.session_id,
                tenant=bundle.tenant,
                agent=bundle.agent,
                task_id=event.run or None,
                parent=bundle.parent,
                background=event.task_id,
                ancestry=(bundle.parent or "",),
            )
    return None


def _exists(bundle: _ArchivedSession) -> Conflict:
    return Conflict(
        f"session {bundle.session_id!r} exists, or one of its calls does",
        code="SESSION_EXISTS",
        hint="an import never changes a session; nothing of this session was written",
        details={"sessionID": bundle.session_id, "tenant": bundle.tenant},
    )
