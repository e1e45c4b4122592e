"""Repair costs what the history is long, however it is damaged: counted in calls."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from perdure.core.conversation.repair import repair
from perdure.core.providers.formats import render
from perdure.core.transfer.event_log import conversations

SHORT, LONG = 300, 3_000


def event(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "timestamp": 1, "data": data}


def call(call_id: str) -> dict[str, Any]:
    return event("tool_call", id=call_id, tool="read", params={}, agent="main")


def result(call_id: str) -> dict[str, Any]:
    return event("tool_result", toolCallId=call_id, result="ok")


def one_id(count: int) -> list[Any]:
    """The same id for every call, each answered at once."""
    return [one("a") for _ in range(count // 2) for one in (call, result)]


def late(count: int) -> list[Any]:
    """All calls first, then all results."""
    half = range(count // 2)
    return [call(f"c{n}") for n in half] + [result(f"c{n}") for n in half]


def late_and_one_id(count: int) -> list[Any]:
    half = count // 2
    return [call("a")] * half + [result("a")] * half


def unanswered(count: int) -> list[Any]:
    """Users in between, no result ever, and results that nobody asked for."""
    each = (event("user", role="user", content="hi"), call("a"), result("b"))
    return [one for _ in range(count // 3) for one in each]


def answered_far_away(count: int) -> list[Any]:
    """Each in a turn of its own, and every result at the very end, last call first."""
    half = range(count // 3)
    turns = [one for n in half for one in (event("user", content="hi"), call(f"c{n}"))]
    return turns + [result(f"c{n}") for n in reversed(half)]


def delegated(count: int) -> list[Any]:
    """An agent that is started again and again."""
    each = (
        event("agent_start", agent="main", depth=0),
        event("delegation", parent="main", child="helper", task="dig"),
        event("agent_start", agent="helper", depth=1),
        event("user", content="dig"),
    )
    return [one for _ in range(count // 4) for one in each]


def calls_during(work: Callable[[], object]) -> int:
    """How many functions are called, ours and the interpreter's."""
    count = 0

    def profile(_: object, kind: str, __: object) -> None:
        nonlocal count
        count += kind in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def recover(log: list[Any]) -> None:
    for messages in conversations(log).by_agent.values():
        repair(messages)
        render(messages, "anthropic")
        render(messages, "openai-chat")


@pytest.mark.parametrize(
    "log",
    [one_id, late, late_and_one_id, unanswered, answered_far_away, delegated],
    ids=lambda log: log.__name__,
)
def test_ten_times_the_events_are_ten_times_the_work(log: Callable[[int], list[Any]]) -> None:
    """S2.45"""
    short, long = (calls_during(lambda n=n: recover(log(n))) for n in (SHORT, LONG))  # type: ignore[misc]
    assert long <= 1.1 * short * LONG / SHORT
