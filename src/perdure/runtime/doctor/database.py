"""Checks of a database and everything in it, each finding with a command as its remedy."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perdure.core.durations import format_ms
from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session import naming as index
from perdure.core.session.naming import SessionRecord
from perdure.core.session.queues import DEFAULT, MANY_QUEUES, is_worker
from perdure.errors import Corrupt, SchemaNewer, StoreError
from perdure.runtime.diagnosis.commands import Commands
from perdure.runtime.doctor.checks import (
    MAX_LISTED,
    CheckResult,
    Checks,
    decode_or_none,
    fine,
)
from perdure.runtime.doctor.integrity import DAMAGED, IntegrityCheckup
from perdure.runtime.doctor.postgres import schema_check, server_checks
from perdure.runtime.queues import due_by_queue, workers_by_queue
from perdure.runtime.records.entries import POISONED_STATE
from perdure.store.base import Entry
from perdure.store.files.inspect import FilesInspector
from perdure.store.inspect import Sizes, StoreInspector, Vitals
from perdure.store.postgres.inspect import PostgresInspector
from perdure.store.sqlite.inspect import (
    LinkedSqlite,
    SqliteInspector,
    known_schema,
    linked_sqlite,
    rate_path,
)

_GRACE_MS: Final = 10_000  # by then a live worker has acted
_MAX_AHEAD_MS: Final = 60_000
_MAX_LEASE_MS: Final = 3_600_000
_MIN_FREE: Final = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Checkup:
    """Checks one database; `commands` are the remedies."""

    inspector: StoreInspector
    now: int
    commands: Commands
    full: bool = False  # also compare every index with its table

    def checks(self) -> Checks:
        """Yield all checks, the most basic first; ends early if the database cannot be read."""
        integrity = IntegrityCheckup(self.inspector, self.commands, self.now, self.full)
        yield from self._all_checks(integrity, integrity.checks())

    def quick_checks(self) -> Checks:
        """Yield the checks that read no logs."""
        integrity = IntegrityCheckup(self.inspector, self.commands, self.now)
        yield from self._all_checks(integrity, ())

    def _all_checks(self, integrity: IntegrityCheckup, more: Iterable[CheckResult]) -> Checks:
        try:
            yield from self._environment()
            vitals = self.inspector.vitals(self.now)
        except Corrupt as error:
            yield from _unreadable(integrity, error, more)
            return
        except SchemaNewer as error:
            yield CheckResult("finding", "SCHEMA_NEWER", error.message, error.hint or "")
            return
        except StoreError as error:
            yield CheckResult("finding", error.code, error.message, error.hint or "")
            return
        yield self._schema(vitals)
        try:
            yield from self._contents(vitals)
        except Corrupt as error:
            yield from _unreadable(integrity, error, more)
            return
        try:
            yield from more
        except Corrupt as error:
            yield integrity.unreadable(error)

    # --- environment ----------------------------------------------------------------------------

    def _environment(self) -> Checks:
        if isinstance(self.inspector, PostgresInspector):
            yield from server_checks(self.inspector.server())
        if isinstance(self.inspector, SqliteInspector):
            yield _sqlite_check(linked_sqlite())
        if isinstance(self.inspector, SqliteInspector | FilesInspector):
            yield self._file_system(self.inspector.path)

    def _file_system(self, path: Path) -> CheckResult:
        kind, rating = rate_path(path)
        if rating == "network":
            text = f"{path} is on a network file system ({kind})"
            return CheckResult("finding", "NETWORK_FILE_SYSTEM", text, "move it to a local disk")
        if rating == "doubtful":
            text = f"{path} is in a folder shared with another machine ({kind})"
            return CheckResult(
                "finding", "SHARED_FOLDER", text, "move it to a disk of this machine"
            )
        return fine("FILE_SYSTEM", f"file system: {kind or 'unknown'}")

    def _schema(self, vitals: Vitals) -> CheckResult:
        if isinstance(self.inspector, PostgresInspector):
            return schema_check(vitals.schema)
        if not isinstance(self.inspector, SqliteInspector):
            return fine("SCHEMA", f"a folder of files, format {vitals.schema}")
        newest = known_schema()
        if vitals.schema == newest:
            return fine("SCHEMA", f"schema {newest}, the newest")
        text = f"schema {vitals.schema}; the next command that writes upgrades it to {newest}"
        return fine("SCHEMA", text)

    # --- contents -------------------------------------------------------------------------------

    def _contents(self, vitals: Vitals) -> Checks:
        yield _space_check(self.inspector.sizes())
        yield from self._clock(vitals)
        yield from self._workers(vitals)
        yield from self._due(vitals)
        yield from self._stuck()
        yield from self._poisoned()
        yield from self._calls()

    def _clock(self, vitals: Vitals) -> Checks:
        ahead = (vitals.newest or 0) - self.now
        if ahead > _MAX_AHEAD_MS:
            yield CheckResult(
                "finding",
                "CLOCK",
                f"the newest event is {format_ms(ahead // 1000 * 1000)} in the future: this "
                "machine's clock is behind, or was ahead",
                "set the clock (timedatectl): deadlines and leases depend on it",
                {"aheadMs": ahead},
            )
        elif any(until > self.now + _MAX_LEASE_MS for _, until, _ in vitals.holders):
            yield CheckResult(
                "finding",
                "CLOCK",
                "a lease ends more than an hour from now: the clock was set back, or "
                "PERDURE_LEASE is long; a worker that dies is replaced only then",
                "set the clock (timedatectl), or wait",
            )
        else:
            yield fine("CLOCK", "clock: no event is in the future")

    def _workers(self, vitals: Vitals) -> Checks:
        expired = [holder for holder in vitals.holders if holder[1] <= self.now - _GRACE_MS]
        for name, until, count in expired:
            silence = format_ms((self.now - until) // 1000 * 1000)
            text = f"worker {name} has been silent for {silence} beyond its lease"
            if count:
                sessions = "1 session" if count == 1 else f"{count} sessions"
                text = f"{text} and still holds {sessions}"
            remedy = f"the next worker takes over: {self._any_worker()}"
            details = {"worker": name, "sessions": count}
            yield CheckResult("finding", "STALE_LEASE", text, remedy, details)
        if not expired:
            alive = sum(is_worker(name) for name, _, _ in vitals.holders)
            yield fine("WORKERS", f"workers: {alive} alive")

    def _due(self, vitals: Vitals) -> Checks:
        unserved = self._unserved(vitals)
        for queue, count in unserved.items():
            sessions = "1 session is" if count == 1 else f"{count} sessions are"
            yield CheckResult(
                "finding",
                "NO_WORKER",
                f"{sessions} due in queue {queue}, and no worker serves it",
                self.commands.worker_command("their agent", queue),
                {"queue": queue, "due": count},
            )
        overdue = [
            (stream, kind, since)
            for stream, kind, since in vitals.due.streams
            if since <= self.now - _GRACE_MS and index.parse_stream_kind(kind)[1] not in unserved
        ]
        for stream, kind, since in overdue[:MAX_LISTED]:
            names = index.parse_session_stream(stream) or ("", stream)
            agent, queue = index.parse_stream_kind(kind)
            waits = format_ms((self.now - since) // 1000 * 1000)
            yield CheckResult(
                "finding",
                "NO_WORKER",
                f"session {names[1]} of agent {agent} has been due for {waits}, and no worker "
                "drives it",
                self._drive(names[1], agent, queue),
                {"sessionID": names[1], "tenant": names[0], "agent": agent, "due": since},
            )
        if len(overdue) > MAX_LISTED:
            text = f"{vitals.due.count} sessions in all"
            yield CheckResult("finding", "NO_WORKER", text, self._any_worker())
        if not overdue and not unserved:
            yield fine("DUE", "sessions: none is due without a driver")

    def _unserved(self, vitals: Vitals) -> dict[str, int]:
        """Return the queues with due sessions that no live worker serves.

        `default` is not among them: any worker may serve it, and only time tells.
        """
        served = workers_by_queue(vitals, self.now)
        due = {} if served[MANY_QUEUES] else due_by_queue(vitals)
        return {name: due[name] for name in sorted(due) if name != DEFAULT and not served[name]}

    def _drive(self, session: str, agent: str, queue: str) -> str:
        start = self.commands.worker_command(agent, queue)
        if not self.commands.has_code:
            return start
        return f"{start}; or: {self.commands.command('sessions', 'resume', session)}"

    def _any_worker(self) -> str:
        return self.commands.command("worker") if self.commands.has_code else "perdure worker"

    def _stuck(self) -> Checks:
        records = self._sessions("stuck")
        for record in records[:MAX_LISTED]:
            yield CheckResult(
                "finding",
                record.problem or "STUCK",
                f"session {record.id} cannot continue: {record.problem_text or record.problem}",
                self.commands.command("sessions", "show", record.id),
                {"sessionID": record.id, "tenant": record.tenant},
            )
        if not records:
            yield fine("STUCK", "sessions: none is stuck")

    def _poisoned(self) -> Checks:
        records = self._sessions(POISONED_STATE)
        for record in records[:MAX_LISTED]:
            resume = self.commands.command("sessions", "resume", record.id)
            yield CheckResult(
                "finding",
                index.POISONED,
                f"{index.session_label(record.tenant, record.id)} of agent {record.agent} failed: "
                f"{record.problem_text or record.problem}",
                f"read the logs of the workers and remove the cause, then: {resume}",
                {"sessionID": record.id, "tenant": record.tenant, "agent": record.agent},
            )
        if not records:
            yield fine(index.POISONED, "sessions: none stops its processes")

    def _calls(self) -> Checks:
        calls = self._open_calls()
        overdue = [
            call for call in calls if call.due is not None and call.due <= self.now - _GRACE_MS
        ]
        for call in overdue[:MAX_LISTED]:
            text = f"{call.tool} ({call.id}) of session {call.session_id} is past its deadline"
            remedy = f"any worker expires it: {self.commands.worker_command(call.agent)}"
            details = {"pendingID": call.id, "due": call.due}
            yield CheckResult("finding", "OVERDUE", text, remedy, details)
        interrupted = [call for call in calls if call.problem == "START_INTERRUPTED"]
        for call in interrupted[:MAX_LISTED]:
            yield CheckResult(
                "finding",
                "START_INTERRUPTED",
                f"{call.tool} ({call.id}) of session {call.session_id} was being started when its "
                "process stopped; it may or may not have started",
                "look at the external system, then: "
                + self.commands.command("pending", "result", call.id, "--output", "…")
                + " or "
                + self.commands.command("pending", "cancel", call.id),
                {"pendingID": call.id, "externalRef": call.external_ref},
            )
        if not overdue and not interrupted:
            yield fine("CALLS", f"calls: {len(calls)} open, none is overdue")

    def _sessions(self, state: str) -> list[SessionRecord]:
        records: list[SessionRecord] = []

        def add(entry: Entry) -> None:
            if (record := decode_or_none(index.decode, entry.data)) is not None:
                records.append(record)

        self.inspector.entries(add, "session", state)
        return records

    def _open_calls(self) -> list[PendingRecord]:
        records: list[PendingRecord] = []

        def add(entry: Entry) -> None:
            if (record := decode_or_none(pending.decode, entry.data)) is not None:
                records.append(record)

        self.inspector.entries(add, "pending", "open")
        return records


def _unreadable(integrity: IntegrityCheckup, error: Corrupt, more: Iterable[CheckResult]) -> Checks:
    """Yield the damage of a database of which not even the numbers can be read."""
    findings: list[CheckResult] = []
    with suppress(Corrupt):
        findings += more
    if not any(finding.code == DAMAGED for finding in findings):
        yield integrity.unreadable(error)
    yield from findings


def _sqlite_check(sqlite: LinkedSqlite) -> CheckResult:
    if sqlite.number < (3, 35):
        text = f"SQLite {sqlite.version} is linked; perdure needs 3.35 or newer"
        return CheckResult("finding", "SQLITE_OLD", text, "use a Python with a newer SQLite")
    if not sqlite.has_wal_reset_bug:
        return fine("SQLITE", f"SQLite {sqlite.version}, without the WAL-reset bug")
    return fine(
        "SQLITE",
        f"SQLite {sqlite.version} has the WAL-reset bug (before 3.51.3: checkpoints beside writers "
        "can damage a file); perdure does both one at a time, under the lock file, and is not "
        "affected. Do not write the file with other programs.",
    )


def _space_check(sizes: Sizes) -> CheckResult:
    if sizes.disk_free is None:
        return fine("SPACE", f"the database takes {sizes.file / 2**20:,.1f} MiB")
    free = f"{sizes.disk_free / 2**20:,.0f} MiB free"
    if sizes.disk_free >= max(_MIN_FREE, sizes.file // 10):
        return fine("SPACE", f"disk: {free}, the database takes {sizes.file / 2**20:,.1f} MiB")
    remedy = "free some space: nothing can be recorded on a full disk"
    return CheckResult("finding", "SPACE", f"disk: only {free}", remedy, {"free": sizes.disk_free})
