"""Deadlines of pending calls that pass while `run()` drives a session, or a tree of sessions."""

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest
from tests.stories.test_background import call, events, lead, results, set_turns
from tests.support.runtimes import MakeRuntime

from perdure import Agent, Approval, BackgroundTask, Runtime, tool
from perdure.core.conversation.messages import Answer
from perdure.runtime.models.base import Request
from perdure.testing import ManualClock, ScriptedModel

pytestmark = pytest.mark.parametrize("runtime", ["memory", "sqlite", "postgres"], indirect=True)


@tool(deferred=True, timeout="1s")
def look() -> str:
    """Look."""
    return "ref"


class HeldModel:
    """A model that answers when the test lets it."""

    name = "held"

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.may_answer = anyio.Event()

    async def answer(self, request: Request) -> AsyncIterator[Answer]:
        self.asked.set()
        await self.may_answer.wait()
        yield Answer("At last.")


async def until(is_true: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds."""
    while not await is_true():  # noqa: ASYNC110 - read from the store
        await anyio.sleep(0.01)


async def wait_for_event(rt: Runtime, session: str, kind: str) -> None:
    """Wait until a session has an event of this type."""

    async def is_there() -> bool:
        return bool(await events(rt, session, kind))

    await until(is_there)


async def wait_for_pending(task: BackgroundTask, count: int) -> None:
    """Wait until a task has so many pending calls."""

    async def are_there() -> bool:
        return len((await task.get()).pending) == count

    await until(are_there)


async def test_the_time_of_a_blocking_call_is_over_while_run_drives_the_child(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S1.19, S1.18: without a worker, and long before the child ends."""
    model = HeldModel()
    one = lead({"text": "Started."}, child=Agent("researcher", model=model))
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Start")
        task = await rt.spawn("researcher", "Tides?", parent="s")
        wait = call("background_output", task_id=task.id, block=True, timeout=1500)
        set_turns(one, [{"text": "Started."}, {"calls": [wait]}, {"text": "Later."}])
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(rt.session("s").run, "Read it")
                await model.asked.wait()
                await wait_for_event(rt, "s", "pending")
                clock.advance("2s")
                await wait_for_event(rt, "s", "tool_result")
                assert not model.may_answer.is_set()
                (answer,) = await results(rt)
                assert (answer["status"], "still running" in answer["message"]) == ("running", True)
                model.may_answer.set()


async def test_a_deadline_of_a_child_passes_while_run_drives_its_sibling(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S1.19: a deferred call, and one that needs an approval."""

    @tool(requires_approval=Approval(timeout="1s"))
    def pay() -> str:
        """Pay."""
        return "paid"

    calls = {"calls": [call("look"), call("pay")]}
    asking = ScriptedModel([calls, {"text": "No answer."}])
    waiting = Agent("waiting", model=asking, tools=[look, pay])
    model = HeldModel()
    one = Agent(
        "lead",
        model=ScriptedModel([{"text": "Started."}]),
        sub_agents=[waiting, Agent("held", model=model)],
    )
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Start")
        first = await rt.spawn("waiting", "Ask", parent="s")
        await rt.spawn("held", "Work", parent="s")
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(rt.session("s").run)
                await model.asked.wait()
                await wait_for_pending(first, 2)
                clock.advance("2s")
                await wait_for_event(rt, first.session_id, "agent_complete")
                assert (await first.get()).output_json == "No answer."
                model.may_answer.set()


async def test_a_deadline_passes_while_another_call_of_the_turn_runs(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """The driver of the session notices it, and no worker is needed."""
    started, may_end = anyio.Event(), anyio.Event()

    @tool
    async def work() -> str:
        """Work."""
        started.set()
        await may_end.wait()
        return "worked"

    model = ScriptedModel([{"calls": [call("look"), call("work")]}, {"text": "Done."}])
    agent = Agent("one", model=model, tools=[look, work])
    async with runtime(agent) as rt:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(rt.session("s", agent=agent).run, "Go")
                await started.wait()
                await wait_for_event(rt, "s", "pending")
                clock.advance("2s")
                await wait_for_event(rt, "s", "settled")
                assert not may_end.is_set()
                may_end.set()
        assert (await rt.session("s").get()).output == "Done."


async def test_a_caller_that_waits_for_a_task_sees_the_deadlines_of_its_calls(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S1.22: nothing drives the task while it waits."""
    asking = ScriptedModel([{"calls": [call("look")]}, {"text": "No answer."}])
    agent = Agent("waiting", model=asking, tools=[look])
    async with runtime(agent) as rt:
        task = await rt.spawn("waiting", "Ask")
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:

                async def read() -> None:
                    assert (await task.output(block=True)).output == "No answer."

                group.start_soon(read)
                await wait_for_pending(task, 1)
                clock.advance("2s")
