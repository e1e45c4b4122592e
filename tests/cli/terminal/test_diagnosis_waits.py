"""Sessions that wait for nothing but a driver, as the command line shows them."""

from typing import Any

import pytest

from perdure.cli.settings import Settings
from perdure.runtime.diagnosis.sessions import SessionSnapshot, diagnose

NOW = 1_767_225_600_000


def lines(state: str, due_in_ms: int | None, updated_in_ms: int = 0) -> list[str]:
    session: dict[str, Any] = {
        "sessionID": "s",
        "agent": "a",
        "state": state,
        "status": {"type": "busy"},
        "problem": None,
        "driver": None,
        "pending": [],
        "updatedAt": NOW + updated_in_ms,
        "nextAt": None if due_in_ms is None else NOW + due_in_ms,
    }
    return diagnose(SessionSnapshot(session, NOW), Settings()).lines()


def test_a_message_recorded_while_the_clock_was_ahead_is_explained() -> None:
    head, command = lines("pending", 7_200_000, 7_200_000)
    assert head.startswith("Session s is pending, and due in 2h")
    assert head.endswith(": the clock was ahead when its message was recorded.")
    assert "perdure sessions resume s" in command


@pytest.mark.parametrize("state", ["pending", "running"])
def test_the_pause_after_a_process_that_stopped_is_explained(state: str) -> None:
    """S4.32: also if it stopped before anything was recorded."""
    head, pause, command = lines(state, 16_000)
    assert head == f"Session s is {state}, but the process that drove it has stopped."
    assert "tries again in 16s" in pause
    assert "perdure sessions resume s" in command


@pytest.mark.parametrize("due_in_ms", [0, -5_000])
def test_a_session_that_is_due_needs_no_explanation(due_in_ms: int) -> None:
    assert lines("running", due_in_ms) == ["Session s is running."]
