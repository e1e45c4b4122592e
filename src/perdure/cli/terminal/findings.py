"""Findings at the terminal: with signs, ages, and commands that reach the store of the command."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from perdure.cli.settings import Settings
from perdure.findings.steps import call_lines, finding_lines, step_lines
from perdure.findings.texts import age
from perdure.runtime.diagnosis.calls import call_sentence
from perdure.views.calls import PendingCall
from perdure.views.findings import Finding
from perdure.views.sessions import Result, SessionSummary

SHOW_AGE_FROM_MS: Final = 10_000
_SIGNS: Final = {"approval": "⏸", "question": "⏸", "timer": "⏲"}


def findings_of(shown: Result[Any] | PendingCall, settings: Settings) -> tuple[Finding, ...]:
    """Return the findings about something; their steps with the options of the command."""
    return tuple(completed(finding, settings) for finding in shown.findings)


def completed(finding: Finding, settings: Settings) -> Finding:
    """Return a finding with the steps that can be typed here, complete with their options."""
    commands = [(item, settings.complete(item.command)) for item in finding.steps]
    steps = [replace(item, command=text) for item, text in commands if text is not None]
    return replace(finding, steps=tuple(steps))


def problem_code(shown: Result[Any] | SessionSummary | PendingCall) -> str | None:
    """Return the code of the worst finding if it says that something is wrong."""
    findings = shown.findings
    is_wrong = bool(findings) and findings[0].severity in ("warning", "error")
    return findings[0].code if is_wrong else None


def session_lines(session: Result[Any], settings: Settings, now: int) -> list[str]:
    """Return where a session stands, and its open calls with the commands that settle them."""
    lines = [text for item in findings_of(session, settings) for text in finding_lines(item)]
    for call in session.pending:
        heading, since = call_line(call, now), now - call.time.created
        if since >= SHOW_AGE_FROM_MS:
            heading += f", waiting for {age(since)}"
        lines += call_lines(heading, findings_of(call, settings))
    return lines


def call_step_lines(call: PendingCall, settings: Settings) -> list[str]:
    """Return the steps that settle a call, as lines in two columns."""
    return step_lines([item for finding in findings_of(call, settings) for item in finding.steps])


def call_line(call: PendingCall, now: int) -> str:
    """Return the line of an open call."""
    return pending_line(call.to_json(), call.expires_at_ms, now)


def pending_line(pending: Mapping[str, Any], expires_at: int | None, now: int) -> str:
    """Return a line such as `⏸ refund(order_id=991) needs approval, expires in 24h`."""
    text = f"{_SIGNS.get(pending['kind'], '⏳')} {call_sentence(pending)}"
    if not expires_at:
        return text
    rest = age(expires_at - now)
    return (
        f"{text} for another {rest}" if pending["kind"] == "timer" else f"{text}, expires in {rest}"
    )
