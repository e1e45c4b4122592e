"""Headlines of sessions: the words of the finding, with a sign and advice by code and severity."""

import pytest

from perdure.serve.ui.headlines import session_headline
from perdure.views.calls import CallTimes, PendingCall
from perdure.views.findings import SEVERITIES, Finding, Severity, Step
from perdure.views.literals import Act
from perdure.views.sessions import BusyStatus, Result


def session(
    code: str,
    severity: Severity,
    text: str,
    questions: int = 0,
    steps: tuple[Step, ...] = (),
    can: tuple[Act, ...] = ("respond",),
) -> Result[str]:
    missing = "ana or ben" if questions else None
    finding = Finding(
        code=code, severity=severity, subject="s", text=text, missing=missing, steps=steps
    )
    calls = [
        PendingCall(
            id=f"p_{number}",
            kind="question",
            status="waiting",
            session_id="s",
            agent="a",
            tool="ask",
            args={},
            call_id="c",
            effect_id="e",
            time=CallTimes(created=0),
            can=can,
            findings=(finding,),
        )
        for number in range(questions)
    ]
    return Result(
        session_id="s",
        agent="a",
        state="running",
        status=BusyStatus(),
        findings=(finding,),
        pending=tuple(calls),
        created_at_ms=0,
        updated_at_ms=0,
    )


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("code", ["WAITING", "NO_WORKER", "STORE_CORRUPT", "A_NEW_CODE"])
def test_every_finding_has_a_sign_and_its_own_words(code: str, severity: Severity) -> None:
    headline = session_headline(session(code, severity, "Session s is as it is. It is so.\nA note"))
    assert headline.title == "As it is"
    assert headline.meaning == "It is so. A note."
    assert headline.tone
    assert headline.icon
    assert headline.commands == ("Session s is as it is. It is so.", "  A note")


def test_a_session_that_waits_for_people_is_paused_and_says_when_it_continues() -> None:
    """S4.55"""
    text = "Session s waits for 2 decisions. It is saved."
    headline = session_headline(session("WAITING", "waiting", text, questions=2))
    assert headline.is_paused_for_people
    assert headline.advice.endswith("It continues after the last decision.")
    assert not session_headline(session("WAITING", "waiting", text)).is_paused_for_people


def test_only_who_may_decide_is_asked_to_and_others_read_who_is_missing() -> None:
    text = "Session s waits for 1 decision. It is saved."
    own = session_headline(session("WAITING", "waiting", text, questions=1))
    assert own.advice.endswith("Decide below.")
    foreign = session_headline(session("WAITING", "waiting", text, questions=1, can=("cancel",)))
    assert foreign.advice.endswith("It waits for ana or ben.")


def test_what_to_do_about_a_blocked_session_is_said_and_the_buttons_follow_its_steps() -> None:
    text = "Session s cannot continue by itself: x (TOOL_MISSING).\ndeploy it again"
    headline = session_headline(session("TOOL_MISSING", "error", text))
    assert "Deploy it again." in headline.meaning
    assert not headline.is_resumable
    resume = Step(
        label="try again",
        command="perdure sessions resume s",
        method="POST",
        path="/sessions/s/resume",
    )
    assert session_headline(session("X", "error", text, steps=(resume,))).is_resumable
