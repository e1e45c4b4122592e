"""Headline of a session: its finding with a sign, and what a person can do on its page."""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from perdure.core.pending.record import APPROVER_KINDS
from perdure.errors import Corrupt
from perdure.findings.steps import call_lines, finding_lines
from perdure.findings.texts import line
from perdure.serve.ui.calls import is_input_missing
from perdure.serve.ui.templates import sentence
from perdure.views.findings import Severity
from perdure.views.sessions import Result


class _Sign(NamedTuple):
    """Color and icon of a finding, and the advice that fits the buttons of the page."""

    tone: str  # waiting, running, completed, failed, cancelled, pending
    icon: str
    advice: str = ""


_SAFE: Final = "It is safe to close, restart or deploy."
_CONTINUE: Final = "Send a message to continue the conversation."
_STATES: Final = {
    "completed": _Sign("completed", "check", _CONTINUE),
    "cancelled": _Sign("cancelled", "stop", _CONTINUE),
    "failed": _Sign("failed", "alert", "Retry continues from what is recorded."),
}
_CODES: Final = {
    Corrupt.code: _Sign(
        "failed",
        "alert",
        "Everything before the damage can be kept: restart from the last good event, start again,"
        " or download what can be read.",
    ),
    "NO_WORKER": _Sign("waiting", "alert", "Start a worker that has this agent."),
    "WAITING_IN_MEMORY": _Sign(
        "waiting",
        "pause",
        "Decide now, or configure a session store so that it can wait without a process.",
    ),
    "RETRYING": _Sign("waiting", "restart", "Resume retries now."),
    "WAITING": _Sign("waiting", "machine", f"{_SAFE} It continues with the result."),
    "NOT_STARTED": _Sign("pending", "clock", "Resume it, or send a message."),
    "DUE": _Sign("running", "play", "A worker takes it next."),
}
_SEVERITIES: Final[dict[Severity, _Sign]] = {
    "ok": _Sign("running", "play"),
    "waiting": _Sign("waiting", "clock"),
    "warning": _Sign("waiting", "restart"),
    "error": _Sign("failed", "alert"),
}


@dataclass(frozen=True, slots=True)
class SessionHeadline:
    """Headline of a session, what it means, and what to do."""

    tone: str
    icon: str
    title: str
    meaning: str
    advice: str
    is_resumable: bool
    is_damaged: bool
    is_paused_for_people: bool
    commands: tuple[str, ...]  # the same, and what to type in a terminal


def session_headline(session: Result[Any]) -> SessionHeadline:
    """Return the headline of a session."""
    finding = session.findings[0]
    decisions = sum(call.kind in APPROVER_KINDS for call in session.pending)
    is_paused = bool(decisions) and finding.code in ("WAITING", "WAITING_IN_MEMORY")
    sign = _CODES.get(finding.code) or _STATES.get(session.state) or _SEVERITIES[finding.severity]
    if is_paused and finding.code == "WAITING":
        sign = sign._replace(icon="pause", advice=f"{_SAFE} {_next_decision(session, decisions)}")
    first, *notes = finding.text.split("\n")
    text = first.removeprefix(f"Session {line(session.session_id)} ").removeprefix("is ")
    title, _, meaning = text.partition(". ")
    sentences = [meaning, *(note.removeprefix("hint: ") for note in notes)]
    return SessionHeadline(
        sign.tone,
        sign.icon,
        f"{title[:1].upper()}{title[1:].removesuffix('.')}",
        " ".join(sentence(text) for text in sentences if text),
        sign.advice,
        any(step.path is not None and "/resume" in step.path for step in finding.steps),
        finding.code == Corrupt.code,
        is_paused,
        tuple(_commands(session)),
    )


def _next_decision(session: Result[Any], decisions: int) -> str:
    if not is_input_missing(session.pending):
        return f"It waits for {session.findings[0].missing}."
    return "Decide below." if decisions == 1 else "It continues after the last decision."


def _commands(session: Result[Any]) -> list[str]:
    """Return the findings about a session and its calls as lines of text."""
    lines = [text for item in session.findings for text in finding_lines(item)]
    for call in session.pending:
        lines += call_lines(call.findings[-1].text, call.findings)
    return lines
