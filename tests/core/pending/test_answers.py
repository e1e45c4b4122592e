"""Answers: typed text becomes JSON or a decision, and what does not fit is named."""

from typing import Any

import pytest
from tests.core.pending.test_settlement import NOW, record

from perdure.core.pending.answers import check_question, parse_answer, parse_decision
from perdure.core.pending.commands import Respond
from perdure.core.pending.settlement import settle
from perdure.errors import Refused

ADDRESS = {
    "type": "object",
    "properties": {"zip": {"type": "string"}, "floor": {"type": "integer"}},
    "required": ["zip"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "text, schema, choices, answer",
    [
        ("yes", None, None, "yes"),
        ("12", None, None, "12"),
        ("12", {"type": "string"}, None, "12"),
        ("12", {"type": "integer"}, None, 12),
        ("true", {"type": "boolean"}, None, True),
        ('{"zip": "1"}', ADDRESS, None, {"zip": "1"}),
        ("not json", {"type": "integer"}, None, "not json"),
        ("b", None, ["a", "b"], "b"),
        ("2", None, ["a", "b"], "b"),
        ("2", None, [3, 2], 2),
        ("3", None, ["a", "b"], "3"),
    ],
)
def test_a_typed_text_is_the_answer_that_fits(
    text: str, schema: Any, choices: Any, answer: object
) -> None:
    assert parse_answer(text, schema, choices) == answer


@pytest.mark.parametrize(
    "answer, problem",
    [
        ({"floor": 1}, "zip is missing"),
        ({"zip": 1}, "zip must be string"),
        ({"zip": "1", "x": 1}, "x is not a known"),
        ("1", "the answer must be object"),
    ],
)
def test_an_answer_that_does_not_fit_the_schema_is_refused_with_the_reason(
    answer: object, problem: str
) -> None:
    with pytest.raises(Refused, match=problem) as caught:
        settle(record("question", schema=ADDRESS), Respond("ana", "ui", answer), NOW)
    assert (caught.value.code, caught.value.details["schema"]) == ("ANSWER_INVALID", ADDRESS)


def test_the_model_reads_a_structured_answer_as_json() -> None:
    outcome = settle(record("question", schema=ADDRESS), Respond("ana", "ui", {"zip": "1"}), NOW)
    assert [getattr(fact, "result", None) for fact in outcome.facts] == [None, '{"zip":"1"}']


def test_true_is_not_the_choice_1() -> None:
    with pytest.raises(Refused):
        settle(record("question", choices=[1, 2]), Respond("ana", "ui", True), NOW)


@pytest.mark.parametrize(
    "schema",
    [
        5,
        {"type": "whole"},
        {"type": 5},
        {"properties": []},
        {"properties": {"a": 1}},
        {"items": 3},
        {"enum": "ab"},
        {"anyOf": [1]},
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_checked_is_refused(schema: Any) -> None:
    with pytest.raises(Refused) as caught:
        check_question(schema, None)
    assert caught.value.code == "QUESTION_INVALID"


@pytest.mark.parametrize("text", ["approve", "yes", "y", " Yes\n", "APPROVE", "Y"])
def test_these_words_approve(text: str) -> None:
    """S4.23"""
    assert parse_decision(text) == "approve"


@pytest.mark.parametrize("text", ["deny", "no", "n", "\tNO ", "Deny"])
def test_these_words_deny(text: str) -> None:
    """S4.23"""
    assert parse_decision(text) == "deny"


@pytest.mark.parametrize(
    "text",
    [
        *("do not approve", "disapprove", "approved", "yes please", "yes.", "no way", "", " "),
        *("y e s", "ok", "sure", "nope", "approve it", "not sure", "\u200byes", "\u0443es"),
    ],
)
def test_nothing_else_decides(text: str) -> None:
    """S4.23"""
    assert parse_decision(text) is None
