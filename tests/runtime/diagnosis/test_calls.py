"""Open calls in words, which pages and the command line share."""

import pytest

from perdure.runtime.diagnosis.calls import question_text, waits_text
from perdure.views.literals import CallKind


@pytest.mark.parametrize(
    "prompt, question",
    [
        ("Refund an\n order?", "Refund an order?"),
        ('Run refund with {"cents": 4200}?', "Run refund?"),
        (None, "Run refund?"),
    ],
)
def test_a_prompt_that_only_repeats_the_arguments_is_not_the_question(
    prompt: str | None, question: str
) -> None:
    assert question_text("refund", prompt) == question


@pytest.mark.parametrize(
    "kinds, text",
    [
        (["approval"], "1 decision"),
        (["question", "approval"], "2 decisions"),
        (["tool", "approval", "question"], "2 decisions and 1 result"),
        (["child", "tool", "approval"], "1 decision, 1 result and 1 background agent"),
        (["timer"], "1 timer"),
    ],
)
def test_waits_are_counted_by_who_ends_them(kinds: list[CallKind], text: str) -> None:
    assert waits_text(kinds) == text
