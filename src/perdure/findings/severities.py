"""Findings about a store: what is fine, what an operator should change, and damage."""

from collections.abc import Iterable, Iterator
from typing import Final

from perdure.errors import Corrupt
from perdure.findings.steps import step
from perdure.views.findings import SEVERITIES, Finding, Severity, Step

Findings = Iterator[Finding]

STORE: Final = "store"  # subject of what concerns all of it
MAX_LISTED: Final = 10  # findings listed of each kind
DAMAGED: Final = "DATABASE_DAMAGED"
_DAMAGE: Final = frozenset(
    {
        DAMAGED,
        Corrupt.code,
        "ENTRY_MISSING",
        "ENTRY_UNREADABLE",
        "EVENTS_MISSING",
        "EVENT_UNREADABLE",
        "MORE_DAMAGED",
        "ORPHANED_ENTRY",
        "ORPHANED_ROWS",
        "STREAM_DAMAGED",
        "STREAM_MISSING",
        "TASK_DAMAGED",
    }
)
RESTORE_NOTE: Final = "stop all workers and restore a backup"


def fine(code: str, text: str, *, subject: str = STORE) -> Finding:
    """Return a finding that says what is as it should be."""
    return Finding(code=code, severity="ok", subject=subject, text=text)


def warning(
    code: str, text: str, *notes: str, subject: str = STORE, steps: Iterable[Step] = ()
) -> Finding:
    """Return a finding that needs an operator soon."""
    return _finding(code, "warning", "\n".join((text, *notes)), subject, steps)


def failure(
    code: str, text: str, *notes: str, subject: str = STORE, steps: Iterable[Step] = ()
) -> Finding:
    """Return a finding about damage, or about what does not work at all."""
    return _finding(code, "error", "\n".join((text, *notes)), subject, steps)


def _finding(
    code: str, severity: Severity, text: str, subject: str, steps: Iterable[Step]
) -> Finding:
    return Finding(code=code, severity=severity, subject=subject, text=text, steps=tuple(steps))


def unrepairable(code: str, text: str, *, subject: str = STORE) -> Finding:
    """Return a finding about damage in a store to which nothing should be written any more."""
    return failure(code, text, RESTORE_NOTE, subject=subject, steps=[export_step()])


def export_step() -> Step:
    """Return the step that saves all sessions that can be read."""
    return step("export what can be read", "sessions", "export", "--all")


def is_damage(finding: Finding) -> bool:
    """Return whether a finding says that something stored is damaged."""
    return finding.severity == "error" and finding.code in _DAMAGE


def is_fine(findings: Iterable[Finding]) -> bool:
    """Return whether nothing needs an operator: all is well, or waits for somebody else."""
    return all(SEVERITIES.index(item.severity) < SEVERITIES.index("warning") for item in findings)


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 0 if nothing needs an operator, 7 for damage, and otherwise 1."""
    listed = list(findings)
    return 7 if any(map(is_damage, listed)) else 0 if is_fine(listed) else 1
