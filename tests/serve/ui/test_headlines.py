"""Headlines of sessions: the words of the diagnosis, with a sign and advice for each case."""

from typing import get_args

import pytest

from perdure.runtime.diagnosis.sessions import Case, Diagnosis
from perdure.serve.ui.headlines import session_headline


@pytest.mark.parametrize("case", get_args(Case))
def test_every_case_has_a_sign_and_the_words_of_the_diagnosis(case: Case) -> None:
    diagnosis = Diagnosis(case, "Session s", "is as it is", "It is so.", ("  ! A note",))
    headline = session_headline(diagnosis, decisions=0)
    assert headline.title == "As it is"
    assert headline.meaning == "It is so. A note."
    assert headline.tone
    assert headline.icon


def test_a_session_that_waits_for_people_is_paused_and_says_when_it_continues() -> None:
    """S4.55"""
    diagnosis = Diagnosis("waiting", "Session s", "waits for 2 decisions", "It is saved.")
    headline = session_headline(diagnosis, decisions=2)
    assert headline.is_paused_for_people
    assert headline.advice.endswith("It continues after the last decision.")
    assert not session_headline(diagnosis, decisions=0).is_paused_for_people


def test_the_hint_of_a_problem_is_the_advice_of_a_blocked_session() -> None:
    diagnosis = Diagnosis("blocked", "Session s", "cannot continue by itself: x (TOOL_MISSING)")
    headline = session_headline(diagnosis, decisions=0, hint="deploy it again")
    assert headline.advice == "Deploy it again."
