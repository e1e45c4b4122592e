"""Checks of a database's integrity: its file, and every session and other stream in it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

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
            if is_session(stream):
                findings.add(self._session(stream, is_writable=is_writable))
            else:
                findings.add(_other_stream(stream, self.commands))

        self.inspector.each_stream(check)
        yield from damage
        yield from findings.all()
        if not damage and not findings.listed:
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
    details: dict[str, Any] = {"stream": stream.stream}
    if stream.row != "sound":
        text = f"the row of the stream {stream.stream} is {stream.row}"
        code = "STREAM_MISSING" if stream.row == "missing" else "STREAM_DAMAGED"
        yield CheckResult("corrupt", code, text, remedy, details)
    for record in stream.records:
        if record.problem:
            text = f"record {record.seq} of {stream.stream} cannot be read: {record.problem}"
            at = {**details, "seq": record.seq}
            yield CheckResult("corrupt", "EVENT_UNREADABLE", text, remedy, at)
    missing = stream.head - len({r.seq for r in stream.records if 0 < r.seq <= stream.head})
    if missing:
        records = "1 record" if missing == 1 else f"{missing} records"
        text = f"{stream.stream} has lost {records}"
        yield CheckResult("corrupt", "EVENTS_MISSING", text, remedy, details)


@dataclass(slots=True)
class _Findings:
    """Findings about all streams: everything of some, and the number of the others."""

    commands: Commands
    listed: list[CheckResult] = field(default_factory=list)
    streams: int = 0

    def add(self, checks: Iterable[CheckResult]) -> None:
        """Add the findings about a stream."""
        findings = list(checks)
        if findings:
            self.streams += 1
        if self.streams <= MAX_LISTED:
            self.listed += findings

    def all(self) -> Checks:
        """Yield the findings, and how many streams with others there are."""
        yield from self.listed
        more = self.streams - MAX_LISTED
        if more > 0:
            sessions = "1 more session is" if more == 1 else f"{more} more sessions are"
            remedy = f"{self.commands.command('doctor', '--fix')} rebuilds all damaged sessions"
            yield CheckResult(
                "corrupt", "MORE_DAMAGED", f"{sessions} damaged", remedy, {"more": more}
            )
