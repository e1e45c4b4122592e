"""How a session waits: for all of its calls, in their order, and in no process."""

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from perdure import Agent, PendingCall, Runtime, ToolError, tool
from perdure.core.conversation.messages import ToolMessage
from perdure.testing import ManualClock, ScriptedModel

MakeRuntime = Callable[..., Runtime]

DAY = 86_400_000


def agent(*turns: dict[str, Any], tools: Sequence[Any] = (), **options: Any) -> Agent[str]:
    return Agent("helper", model=ScriptedModel(turns), tools=tools, **options)


def calls(*names: str) -> dict[str, Any]:
    return {"text": "Go.", "calls": [{"tool": name} for name in names]}


@tool(deferred=True)
def start() -> str:
    """Start."""
    return "ref-1"


async def tool_results(rt: Runtime, session: str = "s") -> list[Any]:
    events = await rt.session(session).events()
    return [event.data for event in events if event.type == "tool_result"]


async def test_a_result_may_come_before_the_start_has_returned(runtime: MakeRuntime) -> None:
    """S0.23"""
    asked_early: list[int] = []

    @tool(deferred=True)
    async def build(call: PendingCall) -> str:
        await rt.submit_result(call.id, "very fast")
        await anyio.wait_all_tasks_blocked()
        assert isinstance(one.model, ScriptedModel)
        asked_early.append(len(one.model.requests))
        return "ref"

    one = agent(calls("build"), {"text": "Built."}, tools=[build])
    async with runtime(one) as rt:
        with anyio.fail_after(10):
            result = await rt.session("s", agent=one).run("Go")
        assert (result.state, result.output) == ("completed", "Built.")
        assert [t["result"] for t in await tool_results(rt)] == ["very fast"]
    assert asked_early == [1]


async def test_in_one_turn_plain_calls_finish_and_deferred_ones_wait(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.24, S0.26, S0.31"""
    ran: list[str] = []

    @tool
    def quick() -> str:
        ran.append("quick")
        return "quick is done"

    one = agent(calls("start", "quick", "start"), {"text": "Done."}, tools=[start, quick])
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert result.state == "waiting"
        assert [call.call_id for call in result.pending] == ["call_1_1", "call_1_3"]
        assert result.to_json()["status"] == {
            "type": "waiting_async",
            "pendingID": result.pending[0].id,
            "tool": "start",
            "since": clock.now(),
            "timeout": clock.now() + DAY,
        }
        assert [t["result"] for t in await tool_results(rt)] == ["quick is done"]
        again = await rt.session("s", agent=one).run()
        assert again.state == "waiting"
    assert ran == ["quick"]
    assert isinstance(one.model, ScriptedModel)
    assert len(one.model.requests) == 1


async def test_a_session_goes_on_when_all_are_settled_and_keeps_their_order(
    runtime: MakeRuntime,
) -> None:
    """S0.27, S0.31"""
    one = agent(calls("start", "start", "start"), {"text": "Done."}, tools=[start])
    assert isinstance(one.model, ScriptedModel)
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        for number in (2, 0):
            await rt.submit_result(result.pending[number].id, f"result {number}")
            assert (await rt.session("s", agent=one).run()).state == "waiting"
        assert len(one.model.requests) == 1
        await rt.submit_result(result.pending[1].id, "result 1")
        assert (await rt.session("s", agent=one).run()).output == "Done."
    told = [m for m in one.model.requests[1].messages if isinstance(m, ToolMessage)]
    assert [m.content for m in told] == ["result 0", "result 1", "result 2"]


async def test_more_than_ten_waiting_calls_are_listed_in_their_order(
    in_memory: MakeRuntime,
) -> None:
    """S0.26"""
    one = agent(calls(*["start"] * 12), tools=[start])
    async with in_memory(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
    assert [call.call_id for call in result.pending] == [f"call_1_{n}" for n in range(1, 13)]


async def test_nothing_of_a_waiting_session_is_only_in_memory(runtime: MakeRuntime) -> None:
    """S0.28"""
    turns = (calls("start"), {"text": "Done."})
    first = agent(*turns, tools=[start])
    async with runtime(first) as rt:
        before = await rt.session("s", agent=first).run("Go")
    second = agent(*turns, tools=[start])
    async with runtime(second) as rt:
        found = await rt.session("s").get()
        assert found.to_json() == before.to_json()
        await rt.submit_result(found.pending[0].id, "ok")
        assert (await rt.session("s", agent=second).run()).output == "Done."
    assert isinstance(second.model, ScriptedModel)
    assert len(second.model.requests) == 1


@pytest.mark.parametrize("error", [ToolError("no CI today"), OSError("no CI today")])
async def test_a_start_that_fails_is_told_and_nobody_waits(
    runtime: MakeRuntime, error: Exception
) -> None:
    """S0.17"""

    @tool(deferred=True)
    async def build(call: PendingCall) -> str:
        await call.mark_started()
        raise error

    one = agent(calls("build"), {"text": "Oh."}, tools=[build])
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert (result.state, result.output, result.pending) == ("completed", "Oh.", ())
        (told,) = await tool_results(rt)
        assert told["isError"]
        assert told["result"].endswith("no CI today")
        (call,) = [call async for call in rt.pending(status="all")]
        assert call.status == "failed"
        with pytest.raises(Exception, match="Not waiting"):
            await rt.submit_result(call.id, "late")
