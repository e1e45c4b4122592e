"""What was accepted and not acted on: found again, once, by whoever can."""

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from tests.support.findings import problem_of

from perdure import Agent, Context, NotFound, PendingCall, PendingResult, Runtime, tool
from perdure.testing import ManualClock, ScriptedModel

MakeRuntime = Callable[..., Runtime]


def agent(*turns: dict[str, Any], tools: Sequence[Any] = (), **options: Any) -> Agent[str]:
    return Agent("helper", model=ScriptedModel(turns), tools=tools, **options)


def is_number(result: PendingResult) -> bool:
    return int(result.output) >= 0


@tool(deferred=True, timeout="1h", validate_result=is_number)
def count() -> str:
    """Count."""
    return "ref-1"


@tool(deferred=True, timeout="1h")
def start() -> str:
    """Start."""
    return "ref-1"


def starter(*names: str) -> Agent[str]:
    turn = {"text": "Go.", "calls": [{"tool": name} for name in names or ("start",)]}
    return agent(turn, {"text": "Done."}, {"text": "More."}, tools=[start, count])


async def waiting(rt: Runtime, one: Agent[str]) -> PendingCall:
    result = await rt.session("s", agent=one).run("Go")
    assert result.state == "waiting"
    return result.pending[0]


async def tool_results(rt: Runtime) -> list[Any]:
    events = await rt.session("s").events()
    return [event.data for event in events if event.type == "tool_result"]


async def test_a_run_that_fails_afterwards_does_not_unaccept_the_result(
    runtime: MakeRuntime,
) -> None:
    """S0.41"""
    turn = {"calls": [{"tool": "start"}]}
    one = agent(turn, {"error": "overloaded"}, tools=[start])
    async with runtime(one) as rt:
        call = await waiting(rt, one)
        accepted = await rt.submit_result(call.id, "ok")
        assert accepted.status == "completed"
        assert isinstance(one.model, ScriptedModel)
        assert len(one.model.requests) == 1  # the answer did not wait for the run
        failed = await rt.session("s", agent=one).run()
        assert failed.state == "failed"
        assert failed.error is not None
        assert "overloaded" in str(failed.error)
        assert [c.status async for c in rt.pending(status="all")] == ["completed"]
        one.model.turns[1] = {"text": "Done."}
        assert (await rt.session("s", agent=one).run()).output == "Done."
        assert [t["result"] for t in await tool_results(rt)] == ["ok"]


async def test_a_result_that_nobody_could_act_on_is_due_until_somebody_can(
    runtime: MakeRuntime,
) -> None:
    """S0.42, S0.69"""
    one = starter()
    async with runtime(one) as rt:
        call = await waiting(rt, one)
    async with runtime() as rt:  # a process without the agent
        await rt.submit_result(call.id, "ok")
        await rt.work(once=True)
        found = await rt.session("s").get()
        assert problem_of(found) is not None
        assert found.to_json()["nextAt"] is not None
    async with runtime(one) as rt:
        await rt.work(once=True)
        assert (await rt.session("s").get()).output == "Done."


async def test_recovering_twice_or_by_two_at_once_is_as_once(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.70"""
    one = starter("start", "start")
    async with runtime(one) as rt:
        call = await waiting(rt, one)
        await rt.submit_result(call.id, "ok")
        clock.advance("2h")
    reports: list[Any] = []
    async with runtime(one) as rt, runtime(one) as other:

        async def recover(door: Runtime) -> None:
            reports.append(await door.recover())
            await door.work(once=True)
            reports.append(await door.recover())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(recover, rt)
            tasks.start_soon(recover, other)
        assert (await rt.session("s").get()).output == "Done."
        types = [e.type for e in await rt.session("s").events()]
        assert (types.count("tool_result"), types.count("assistant")) == (2, 2)
    assert sum(len(report.expired) for report in reports) == 1


async def test_pending_calls_are_listed_by_what_is_asked(in_memory: MakeRuntime) -> None:
    one = starter("start", "count")
    async with in_memory(one) as rt:
        call = await waiting(rt, one)
        await rt.session("t", agent=one).run("Go")
        await rt.submit_result(call.id, "ok")
        listed = [(c.session_id, c.tool) async for c in rt.pending()]
        assert sorted(listed) == [("s", "count"), ("t", "count"), ("t", "start")]
        assert [c.tool async for c in rt.pending(session="s")] == ["count"]
        assert len([c async for c in rt.pending(tool="count")]) == 2
        assert [c async for c in rt.pending(kind="approval")] == []
        assert [c.id async for c in rt.pending(status="completed")] == [call.id]
        assert len([c async for c in rt.pending(status="all")]) == 4
        assert len([c async for c in rt.pending(status="waiting")]) == 3
        assert [c async for c in rt.pending(status="processing")] == []
        with pytest.raises(NotFound):
            _ = [c async for c in rt.pending(session="nobody")]


async def test_processing_calls_wait_again_after_a_restart(runtime: MakeRuntime) -> None:
    """S0.66"""

    @tool(deferred=True)
    async def deploy(ctx: Context) -> str:
        await ctx.mark_started()
        return "ref"

    one = agent({"calls": [{"tool": "deploy"}]}, {"text": "Done."}, tools=[deploy])

    async def statuses(rt: Runtime) -> list[str]:
        return [call.status async for call in rt.pending()]

    async with runtime(one) as rt:
        await waiting(rt, one)
        assert await statuses(rt) == ["processing"]
    async with runtime(one) as rt:
        assert [call.status for call in (await rt.recover()).waiting] == ["waiting"]
        assert await statuses(rt) == ["waiting"]
        (call,) = [call async for call in rt.pending()]
        await rt.submit_result(call.id, "up")
        assert (await rt.session("s", agent=one).run()).output == "Done."
