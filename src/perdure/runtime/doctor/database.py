"""Checks of a database and everything in it."""

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session import naming as index
from perdure.core.session.naming import SessionRecord
from perdure.errors import Corrupt, SchemaNewer, StoreError
from perdure.findings.severities import (
    DAMAGED,
    MAX_LISTED,
    Findings,
    failure,
    fine,
    warning,
)
from perdure.runtime.diagnosis.agents import overdue
from perdure.runtime.diagnosis.calls import diagnosed
from perdure.runtime.diagnosis.queues import due_findings, worker_findings
from perdure.runtime.diagnosis.reasons import stored_reason
from perdure.runtime.diagnosis.sessions import entry_findings
from perdure.runtime.doctor.integrity import IntegrityCheckup
from perdure.runtime.doctor.postgres import schema_check, server_checks
from perdure.runtime.records.entries import POISONED_STATE
from perdure.runtime.transfer.readable import decode_or_none
from perdure.runtime.views import call_view
from perdure.store.base import Entry
from perdure.store.inspect import Sizes, StoreInspector, Vitals
from perdure.store.postgres.inspect import PostgresInspector
from perdure.store.sqlite.inspect import (
    LinkedSqlite,
    SqliteInspector,
    known_schema,
    linked_sqlite,
    rate_path,
)
from perdure.views.durations import format_ms
from perdure.views.findings import Finding, Step

_MAX_AHEAD_MS: Final = 60_000
_MAX_LEASE_MS: Final = 3_600_000
_MIN_FREE: Final = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Checkup:
    """Checks one database."""

    inspector: StoreInspector
    now: int
    full: bool = False  # also compare every index with its table
    agents: Collection[str] = ()  # names of those that are defined here

    def checks(self) -> Findings:
        """Yield all checks, the most basic first; ends early if the database cannot be read."""
        integrity = IntegrityCheckup(self.inspector, self.now, self.full)
        yield from self._all_checks(integrity, integrity.checks())

    def quick_checks(self) -> Findings:
        """Yield the checks that read no logs."""
        integrity = IntegrityCheckup(self.inspector, self.now)
        yield from self._all_checks(integrity, ())

    def _all_checks(self, integrity: IntegrityCheckup, more: Iterable[Finding]) -> Findings:
        try:
            yield from self._environment()
            vitals = self.inspector.vitals(self.now)
        except Corrupt as error:
            yield from _unreadable(integrity, error, more)
            return
        except SchemaNewer as error:
            yield failure("SCHEMA_NEWER", error.message, *_notes(error))
            return
        except StoreError as error:
            yield failure(error.code, error.message, *_notes(error))
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

    def _environment(self) -> Findings:
        if isinstance(self.inspector, PostgresInspector):
            yield from server_checks(self.inspector.server())
        if isinstance(self.inspector, SqliteInspector):
            yield _sqlite_check(linked_sqlite())
            yield self._file_system(self.inspector.path)

    def _file_system(self, path: Path) -> Finding:
        kind, rating = rate_path(path)
        if rating == "network":
            text = f"{path} is on a network file system ({kind})"
            return warning("NETWORK_FILE_SYSTEM", text, "move it to a local disk")
        if rating == "doubtful":
            text = f"{path} is in a folder shared with another machine ({kind})"
            return warning("SHARED_FOLDER", text, "move it to a disk of this machine")
        return fine("FILE_SYSTEM", f"file system: {kind or 'unknown'}")

    def _schema(self, vitals: Vitals) -> Finding:
        if isinstance(self.inspector, PostgresInspector):
            return schema_check(vitals.schema)
        newest = known_schema()
        if vitals.schema == newest:
            return fine("SCHEMA", f"schema {newest}, the newest")
        text = f"schema {vitals.schema}; the next command that writes upgrades it to {newest}"
        return fine("SCHEMA", text)

    # --- contents -------------------------------------------------------------------------------

    def _contents(self, vitals: Vitals) -> Findings:
        yield _space_check(self.inspector.sizes())
        yield self._clock(vitals)
        yield from worker_findings(vitals, self.now)
        yield from due_findings(vitals, self.now, self.agents)
        yield from self._stuck()
        yield from self._poisoned()
        yield from self._calls()

    def _clock(self, vitals: Vitals) -> Finding:
        note = "set the clock: deadlines and leases depend on it"
        show = Step(label="show the clock", command="timedatectl")
        ahead = (vitals.newest or 0) - self.now
        if ahead > _MAX_AHEAD_MS:
            text = (
                f"the newest event is {format_ms(ahead // 1000 * 1000)} in the future: this "
                "machine's clock is behind, or was ahead"
            )
            return warning("CLOCK", text, note, steps=[show])
        if any(until > self.now + _MAX_LEASE_MS for _, until, _ in vitals.holders):
            text = (
                "a lease ends more than an hour from now: the clock was set back, or "
                "PERDURE_LEASE is long; a worker that dies is replaced only then"
            )
            return warning("CLOCK", text, "set the clock, or wait", steps=[show])
        return fine("CLOCK", "clock: no event is in the future")

    def _stuck(self) -> Findings:
        records = self._sessions("stuck")
        for record in records[:MAX_LISTED]:
            yield from entry_findings(record, "waiting")
        if not records:
            yield fine("STUCK", "sessions: none is stuck")

    def _poisoned(self) -> Findings:
        records = self._sessions(POISONED_STATE)
        for record in records[:MAX_LISTED]:
            yield from entry_findings(record, "failed")
        if not records:
            yield fine(index.POISONED, "sessions: none stops its processes")

    def _calls(self) -> Findings:
        calls = self._open_calls()
        listed = [
            (call, problem)
            for call in calls
            if (problem := stored_reason(call.problem) or overdue(call, self.now)) is not None
        ]
        for call, problem in listed[:MAX_LISTED]:
            yield diagnosed(call_view(call), problem).findings[0]
        if not listed:
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


def _unreadable(integrity: IntegrityCheckup, error: Corrupt, more: Iterable[Finding]) -> Findings:
    """Yield the damage of a database of which not even the numbers can be read."""
    findings: list[Finding] = []
    with suppress(Corrupt):
        findings += more
    if not any(finding.code == DAMAGED for finding in findings):
        yield integrity.unreadable(error)
    yield from findings


def _notes(error: StoreError) -> tuple[str, ...]:
    return () if error.hint is None else (error.hint,)


def _sqlite_check(sqlite: LinkedSqlite) -> Finding:
    if sqlite.number < (3, 35):
        text = f"SQLite {sqlite.version} is linked; perdure needs 3.35 or newer"
        return failure("SQLITE_OLD", text, "use a Python with a newer SQLite")
    if not sqlite.has_wal_reset_bug:
        return fine("SQLITE", f"SQLite {sqlite.version}, without the WAL-reset bug")
    return fine(
        "SQLITE",
        f"SQLite {sqlite.version} has the WAL-reset bug (before 3.51.3: checkpoints beside writers "
        "can damage a file); perdure does both one at a time, under the lock file, and is not "
        "affected. Do not write the file with other programs.",
    )


def _space_check(sizes: Sizes) -> Finding:
    if sizes.disk_free is None:
        return fine("SPACE", f"the database takes {sizes.file / 2**20:,.1f} MiB")
    free = f"{sizes.disk_free / 2**20:,.0f} MiB free"
    if sizes.disk_free >= max(_MIN_FREE, sizes.file // 10):
        return fine("SPACE", f"disk: {free}, the database takes {sizes.file / 2**20:,.1f} MiB")
    remedy = "free some space: nothing can be recorded on a full disk"
    return warning("SPACE", f"disk: only {free}", remedy)
