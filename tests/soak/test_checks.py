"""The checks of the soak can fail."""

from typing import Any

from tests.soak.checks import overlaps
from tests.soak.workers import Nap


def ran(call: str, pid: int, began: float, ended: float) -> dict[str, Any]:
    return {"session": "s", "call": call, "pid": pid, "began": began, "ended": ended}


def test_tools_of_a_session_that_ran_at_once_in_two_processes_are_found() -> None:
    """G5"""
    two = [ran("c1", 1, 0, 2), ran("c2", 2, 1, 3)]
    assert overlaps(two, []) == ["s: c1 and c2 ran at once in two processes"]
    assert overlaps(two, [Nap(2, 0.5, 1.5), Nap(1, 2.5, 9)]) != []
    assert overlaps(two, [Nap(1, 0.5, 1.5)]) == []  # it slept inside the tool, and was taken over
    assert overlaps([ran("c1", 1, 0, 2), ran("c2", 1, 1, 3), ran("c3", 2, 4, 5)], []) == []


def test_one_that_ran_on_and_on_is_found_behind_others() -> None:
    """Also where the next one to begin was of its own process."""
    lines = [ran("c1", 1, 0, 9), ran("c2", 1, 1, 2), ran("c3", 2, 3, 4)]
    assert overlaps(lines, []) == ["s: c1 and c3 ran at once in two processes"]
