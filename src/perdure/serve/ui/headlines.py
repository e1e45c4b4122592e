"""Headline of a session: its diagnosis with a sign, and what a person can do on its page."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from perdure.runtime.diagnosis.sessions import Case, Diagnosis
from perdure.serve.ui.templates import sentence

PAUSED: Final = "Task paused - waiting for your input"


class _Sign(NamedTuple):
    """Color and icon of a case, and the advice that fits the buttons of the page."""

    tone: str  # waiting, running, completed, failed, cancelled, pending
    icon: str
    advice: str = ""
    is_resumable: bool = False


_SAFE: Final = "It is safe to close, restart or deploy."
_CONTINUE: Final = "Send a message to continue the conversation."
_SIGNS: Final[dict[Case, _Sign]] = {
    "completed": _Sign("completed", "check", _CONTINUE),
    "cancelled": _Sign("cancelled", "stop", _CONTINUE),
    "failed": _Sign("failed", "alert", "Retry continues from what is recorded.", True),
    "damaged": _Sign(
        "failed",
        "alert",
        "Everything before the damage can be kept: restart from the last good event, start again,"
        " or download what can be read.",
    ),
    "no_worker": _Sign("waiting", "alert", "Start a worker that has this agent.", True),
    "blocked": _Sign("failed", "alert", "", True),
    "running": _Sign("running", "play"),
    "in_memory": _Sign(
        "waiting",
        "pause",
        "Decide now, or configure a session store so that it can wait without a process.",
    ),
    "retrying": _Sign("waiting", "restart", "Resume retries now.", True),
    "waiting": _Sign("waiting", "machine", f"{_SAFE} It continues with the result."),
    "not_started": _Sign("pending", "clock", "Resume it, or send a message.", True),
    "stopped": _Sign("waiting", "restart", "", True),
    "due": _Sign("running", "play", "A worker takes it next."),
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


def session_headline(diagnosis: Diagnosis, *, decisions: int, hint: str = "") -> SessionHeadline:
    """Return the headline of a session; `decisions` is how many calls wait for people."""
    sign = _SIGNS[diagnosis.case]
    is_paused = bool(decisions) and diagnosis.case in ("waiting", "in_memory")
    if is_paused and diagnosis.case == "waiting":
        last = "Decide below." if decisions == 1 else "It continues after the last decision."
        sign = sign._replace(icon="pause", advice=f"{_SAFE} {last}")
    text = diagnosis.headline.removeprefix("is ")
    meaning = " ".join(filter(None, (diagnosis.meaning, *map(sentence, diagnosis.notes))))
    return SessionHeadline(
        sign.tone,
        sign.icon,
        f"{text[:1].upper()}{text[1:]}",
        meaning,
        sentence(hint) if hint and not sign.advice else sign.advice,
        sign.is_resumable,
        diagnosis.case == "damaged",
        is_paused,
    )
