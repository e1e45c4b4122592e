"""Checks of a database's integrity: its file, and every session and other stream in it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from perdure.core.session.naming import session_label
from perdure.errors import PerdureError
from perdure.runtime.diagnosis.commands import Commands
from perdure.runtime.doctor.checks import (
    MAX_LISTED,
    CheckResult,
    Checks,
    fine,
    restore_command,
)
from perdure.runtime.doctor.rows import is_session
from perdure.runtime.doctor.session import SessionCheckup
from perdure.store.inspect import StoreInspector, StreamInspection
from perdure.store.postgres.inspect import PostgresInspector
from perdure.store.sqlite.inspect import SqliteInspector

DAMAGED: Final = "DATABASE_DAMAGED"


@dataclass(frozen=True, slots=True)
class IntegrityCheckup:
    """Checks whether everything in a database can be read, and belongs together."""

    inspector: StoreInspector
    commands: Commands
    now: int
    is_full: bool = False  # also compare every index with its table

    def checks(self) -> Checks:
        """Yield the damage, or one check that there is none."""
        damage = list(self.damage())
        findings = _Findings(self.commands)
        is_writable = self.may_write(damage)

        def check(stream: StreamInspection) -> None:
            checkup = (
                self._session(stream, is_writable=is_writable)
                if is_session(stream)
                else _other_stream(stream, self.commands)
            )
            for finding in checkup:
                findings.add(finding)

        self.inspector.each_stream(check)
        yield from damage
        yield from findings.listed()
        if not damage and not findings.listed():
            yield fine("INTEGRITY", f"integrity: {self._clean_text()}every event can be read")

    def damage(self) -> Checks:
        """Yield what is damaged in the file or folder itself, whatever session it concerns."""
        for text in self.inspector.damage(full=self.is_full)[:MAX_LISTED]:
            if self._is_sqlite:
                remedy = restore_command(self.commands)
                yield CheckResult("corrupt", DAMAGED, f"SQLite: {text}", remedy)
            else:
                again = self.commands.command("sessions", "list")
                remedy = f"it is kept, and created again by: {again}"
                yield CheckResult("finding", "JOURNAL_DAMAGED", text, remedy)

    def may_write(self, damage: Sequence[CheckResult]) -> bool:
        """Return whether sessions may be rebuilt: not in a file whose pages are damaged."""
        return not (damage and self._is_sqlite)

    def unreadable(self, error: PerdureError) -> CheckResult:
        """Return the check of a database that cannot be read at all."""
        remedy = restore_command(self.commands)
        return CheckResult("corrupt", DAMAGED, error.message, remedy)

    @property
    def _is_sqlite(self) -> bool:
        return isinstance(self.inspector, SqliteInspector)

    def _clean_text(self) -> str:
        if isinstance(self.inspector, PostgresInspector):
            return ""
        method = "integrity_check" if self.is_full else "quick_check"
        return f"{method} is clean, and " if self._is_sqlite else "every checksum is right, and "

    def _session(self, stream: StreamInspection, *, is_writable: bool) -> Iterator[CheckResult]:
        """Yield those findings of `doctor SESSION` that concern the store, with its name."""
        checkup = SessionCheckup.create(stream, self.now, self.commands, is_writable=is_writable)
        for check in checkup.findings():
            tenant, session_id, *_ = checkup.names
            details = {**check.details, "sessionID": session_id, "tenant": tenant}
            text = f"{session_label(tenant, session_id)}: {check.text}"
            yield replace(check, text=text, details=details)


def _other_stream(stream: StreamInspection, commands: Commands) -> Checks:
    """Yield what is damaged in a delivery, task or file: it cannot be rebuilt."""
    remedy = restore_command(commands)
    details = {"stream": stream.stream}
    if stream.row != "sound":
        text = f"the row of the stream {stream.stream} is {stream.row}"
        code = "STREAM_MISSING" if stream.row == "missing" else "STREAM_DAMAGED"
        yield CheckResult("corrupt", code, text, remedy, details)
    seqs = {record.seq for record in stream.records}
    for record in stream.records:
        if record.problem:
            text = f"record {record.seq} of {stream.stream} cannot be read: {record.problem}"
            details = {"stream": stream.stream, "seq": record.seq}
            yield CheckResult("corrupt", "EVENT_UNREADABLE", text, remedy, details)
    missing = stream.head - len(seqs & set(range(1, stream.head + 1)))
    if missing:
        records = "1 record" if missing == 1 else f"{missing} records"
        text = f"{stream.stream} has lost {records}"
        yield CheckResult("corrupt", "EVENTS_MISSING", text, remedy, {"stream": stream.stream})


@dataclass(slots=True)
class _Findings:
    """Findings about all streams: some of each kind, and the number of the others."""

    commands: Commands
    by_code: dict[str, list[CheckResult]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, check: CheckResult) -> None:
        """Add a finding; of a long list only the number is kept."""
        checks = self.by_code.setdefault(check.code, [])
        self.counts[check.code] = self.counts.get(check.code, 0) + 1
        if len(checks) < MAX_LISTED:
            checks.append(check)

    def listed(self) -> list[CheckResult]:
        """Return the findings, those of one kind together."""
        listed: list[CheckResult] = []
        for code, checks in self.by_code.items():
            listed += checks
            more = self.counts[code] - len(checks)
            if more:
                remedy = f"{self.commands.command('doctor', '--fix')} rebuilds all damaged sessions"
                text = f"{more} more findings of this kind"
                listed.append(replace(checks[0], text=text, remedy=remedy, details={"more": more}))
        return listed
