"""Which words decide."""

import pytest

from perdure.core.pending.commands import parse_decision


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
