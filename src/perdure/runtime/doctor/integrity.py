"""Checks of a database's integrity: its file, and every session and other stream in it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from perdure.core.session.naming import session_label
from perdure.errors import PerdureError
from perdure.findings.severities import (
    DAMAGED,
    MAX_LISTED,
    Findings,
    failure,
    fine,
    unrepairable,
)
from perdure.findings.steps import step
from perdure.findings.texts import plural
from perdure.runtime.doctor.rows import is_session
from perdure.runtime.doctor.session import SessionCheckup
from perdure.runtime.doctor.strays import is_stray, stray_finding
from perdure.store.inspect import StoreInspector, StreamInspection
from perdure.store.sqlite.inspect import SqliteInspector
from perdure.views.findings import Finding


@dataclass(frozen=True, slots=True)
class IntegrityCheckup:
    """Checks whether everything in a database can be read, and belongs together."""

    inspector: StoreInspector
    now: int
    is_full: bool = False  # also compare every index with its table

    def checks(self) -> Findings:
        """Yield the damage, or one check that there is none."""
        damage = list(self.damage())
        findings = _Findings()
        is_writable = self.may_write(damage)

        def check(stream: StreamInspection) -> None:
            if is_stray(self.inspector, stream):
                findings.add([self._stray(stream, is_writable=is_writable)])
            elif is_session(stream):
                findings.add(self._session(stream, is_writable=is_writable))
            else:
                findings.add(_other_stream(stream))

        self.inspector.each_stream(check)
        yield from damage
        yield from findings.all()
        if not damage and not findings.listed:
            yield fine("INTEGRITY", f"integrity: {self._clean_text()}every event can be read")

    def damage(self) -> Findings:
        """Yield what is damaged in the file itself, whatever session it concerns."""
        for text in self.inspector.damage(full=self.is_full)[:MAX_LISTED]:
            yield unrepairable(DAMAGED, f"SQLite: {text}")

    def may_write(self, damage: Sequence[Finding]) -> bool:
        """Return whether sessions may be rebuilt: not in a file whose pages are damaged."""
        return not damage

    def unreadable(self, error: PerdureError) -> Finding:
        """Return the finding about a database that cannot be read at all."""
        return unrepairable(DAMAGED, error.message)

    @property
    def _is_sqlite(self) -> bool:
        return isinstance(self.inspector, SqliteInspector)

    def _clean_text(self) -> str:
        return "the file is sound, and " if self._is_sqlite else ""

    def _stray(self, stream: StreamInspection, *, is_writable: bool) -> Finding:
        finding = stray_finding(stream)
        if is_writable:
            return finding
        return unrepairable(finding.code, finding.text, subject=finding.subject)

    def _session(self, stream: StreamInspection, *, is_writable: bool) -> Iterator[Finding]:
        """Yield those findings of `doctor SESSION` that concern the store, with its name."""
        checkup = SessionCheckup.create(stream, self.now, is_writable=is_writable)
        for check in checkup.findings():
            tenant, session_id, *_ = checkup.names
            yield replace(check, text=f"{session_label(tenant, session_id)}: {check.text}")


def _other_stream(stream: StreamInspection) -> Findings:
    """Yield what is damaged in a delivery, task or file: it cannot be rebuilt."""
    name = stream.stream
    if stream.row != "sound":
        code = "STREAM_MISSING" if stream.row == "missing" else "STREAM_DAMAGED"
        yield unrepairable(code, f"the row of the stream {name} is {stream.row}", subject=name)
    for record in stream.records:
        if record.problem:
            text = f"record {record.seq} of {name} cannot be read: {record.problem}"
            yield unrepairable("EVENT_UNREADABLE", text, subject=name)
    missing = stream.head - len({r.seq for r in stream.records if 0 < r.seq <= stream.head})
    if missing:
        text = f"{name} has lost {plural(missing, 'record')}"
        yield unrepairable("EVENTS_MISSING", text, subject=name)


@dataclass(slots=True)
class _Findings:
    """Findings about all streams: everything of some, and the number of the others."""

    listed: list[Finding] = field(default_factory=list)
    streams: int = 0

    def add(self, checks: Iterable[Finding]) -> None:
        """Add the findings about a stream."""
        findings = list(checks)
        if findings:
            self.streams += 1
        if self.streams <= MAX_LISTED:
            self.listed += findings

    def all(self) -> Findings:
        """Yield the findings, and how many streams with others there are."""
        yield from self.listed
        more = self.streams - MAX_LISTED
        if more > 0:
            sessions = "1 more session is" if more == 1 else f"{more} more sessions are"
            steps = [step("rebuild all damaged sessions", "doctor", "--fix")]
            yield failure("MORE_DAMAGED", f"{sessions} damaged", steps=steps)
