"""Findings: what is the matter with a session, a call, a task, an agent or the store, and steps."""

from typing import Final, Literal

from perdure.views.base import View, Word

Severity = Literal["ok", "waiting", "warning", "error"]
SEVERITIES: Final[tuple[Severity, ...]] = ("ok", "waiting", "warning", "error")  # the worst is last


class Step(View, frozen=True, kw_only=True):
    """Something to do about a finding: as a command, and as a request if HTTP has the route."""

    label: str
    command: str
    method: str | None = None
    path: str | None = None


class Finding(View, frozen=True, kw_only=True):
    """One reason why something waits, does not move or is damaged, and what to do about it.

    A finding that only waits needs no repair: somebody or something else acts next.
    """

    code: str
    severity: Word[Severity]
    subject: str  # the id of the session, call, task, agent or queue, or a part of the store
    text: str
    missing: str | None = None  # who or what it waits for: an approver, a worker, a tool
    steps: tuple[Step, ...] = ()


def worst_first(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return findings by their severity, and otherwise in the order that they had."""
    return tuple(sorted(findings, key=lambda finding: -SEVERITIES.index(finding.severity)))
