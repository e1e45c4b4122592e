"""The finding that says what is wrong with a session or a call."""

from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.views.calls import PendingCall
from perdure.views.findings import Finding
from perdure.views.sessions import Result
from perdure.views.tasks import BackgroundTask

Shown = Result[Any] | PendingCall | BackgroundTask | Mapping[str, Any]


def problem_of(
    shown: Result[Any] | PendingCall | BackgroundTask | Mapping[str, Any],
) -> Finding | None:
    """Return the worst finding if it needs an operator; None if there is no such finding."""
    if isinstance(shown, Mapping):
        findings = msgspec.convert(shown.get("findings", ()), tuple[Finding, ...])
    else:
        findings = shown.findings
    return next((item for item in findings if item.severity in ("warning", "error")), None)


def code_of(shown: Shown) -> str | None:
    """Return the code of that finding; None without one."""
    problem = problem_of(shown)
    return None if problem is None else problem.code


def advice_of(finding: Mapping[str, Any]) -> str:
    """Return what the JSON of a finding says to do: its notes and its commands."""
    notes = finding["text"].split("\n")[1:]
    return "; ".join((*notes, *(step["command"] for step in finding["steps"])))
