"""Tools and models that do what they should not: the session goes on all the same."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from perdure import Agent, Context, Delta, PerdureError, Runtime, tool
from perdure.core.conversation.messages import Answer
from perdure.runtime.models.base import Request
from perdure.testing import ScriptedModel

MakeRuntime = Callable[..., Runtime]


@pytest.mark.parametrize("deferred", [True, False])
async def test_a_tool_that_cancels_itself_has_failed(
    in_memory: MakeRuntime, deferred: bool
) -> None:
    """A library may raise it: awaiting a future that somebody cancelled is enough."""

    @tool(deferred=deferred)
    async def act() -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        future.cancel()
        return await future

    turns: list[dict[str, Any]] = [{"calls": [{"tool": "act"}]}, {"text": "Done."}]
    one = Agent("a", model=ScriptedModel(turns), tools=[act])
    async with in_memory(one) as rt:
        session = rt.session("s", agent=one)
        with anyio.fail_after(5):
            assert (await session.run("Go")).output == "Done."
        (told,) = [e.data for e in await session.events() if e.type == "tool_result"]
        assert told["isError"]
        assert "CancelledError" in told["result"]


async def test_a_predicate_that_cancels_itself_asks_a_person(in_memory: MakeRuntime) -> None:
    async def cancelled(_: Context) -> bool:
        raise asyncio.CancelledError

    @tool(requires_approval=cancelled)
    def act() -> str:
        return "acted"

    one = Agent("a", model=ScriptedModel([{"calls": [{"tool": "act"}]}]), tools=[act])
    async with in_memory(one) as rt:
        with anyio.fail_after(5):
            (call,) = (await rt.session("s", agent=one).run("Go")).pending
        assert call.kind == "approval"


async def test_a_tool_that_cancels_its_task_is_told_as_interrupted(
    in_memory: MakeRuntime,
) -> None:
    """That task is a part of the drive: the lease is given back, not kept undriven."""

    @tool
    async def act() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await anyio.lowlevel.checkpoint()
        return "never"

    model = ScriptedModel([{"calls": [{"tool": "act"}]}, {"text": "Done."}])
    one = Agent("a", model=model, tools=[act])
    async with in_memory(one) as rt:
        session = rt.session("s", agent=one)
        with anyio.fail_after(5):
            with pytest.raises(PerdureError, match="cut off"):
                await session.run("Go")
            assert (await session.run()).output == "Done."
        (told,) = [e.data for e in await session.events() if e.type == "tool_result"]
        assert told["interrupted"]


async def test_a_model_that_cancels_itself_has_failed(in_memory: MakeRuntime) -> None:
    class Cancelling:
        name = "test:cancelling"

        async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
            raise asyncio.CancelledError
            yield Answer("never")

    one = Agent("a", model=Cancelling())
    async with in_memory(one) as rt:
        with anyio.fail_after(5):
            result = await rt.session("s", agent=one).run("Go")
        assert result.state == "failed"


async def test_a_call_that_ends_after_it_was_called_off_is_not_taken_for_its_namesake(
    in_memory: MakeRuntime,
) -> None:
    """Some models give each call the same id in every turn."""
    begun, may_end, both = anyio.Event(), anyio.Event(), anyio.Event()
    ran: list[Any] = []

    @tool
    async def act() -> str:
        ran.append(len(ran))
        if len(ran) == 1:
            begun.set()
            with anyio.CancelScope(shield=True):
                await may_end.wait()
            return "of the first"
        both.set()
        may_end.set()
        await anyio.wait_all_tasks_blocked()
        return "of the second"

    call = {"calls": [{"tool": "act", "id": "act"}]}
    one = Agent("a", model=ScriptedModel([call, call, {"text": "Done."}]), tools=[act])
    async with in_memory(one) as rt, anyio.create_task_group() as tasks:
        session = rt.session("s", agent=one)
        with anyio.fail_after(5):
            tasks.start_soon(session.run, "Go")
            await begun.wait()
            await session.cancel()
            await session.send("Once more")
            await both.wait()
            result = await session.run()
        assert result.output == "Done."
        told = [e.data["result"] for e in await session.events() if e.type == "tool_result"]
        assert told[-1] == "of the second"


async def test_a_session_goes_on_beside_a_call_that_cannot_be_called_off(
    in_memory: MakeRuntime,
) -> None:
    begun, may_end = anyio.Event(), anyio.Event()

    @tool
    async def stubborn() -> str:
        begun.set()
        with anyio.CancelScope(shield=True):
            await may_end.wait()
        return "late"

    turns: list[dict[str, Any]] = [{"calls": [{"tool": "stubborn"}]}, {"text": "Done."}]
    one = Agent("a", model=ScriptedModel(turns), tools=[stubborn])
    async with in_memory(one) as rt, anyio.create_task_group() as tasks:
        session = rt.session("s", agent=one)
        with anyio.fail_after(5):
            tasks.start_soon(session.run, "Go")
            await begun.wait()
            await session.cancel()
            while (await session.get()).to_json()["driver"]:
                await anyio.lowlevel.checkpoint()
            with anyio.CancelScope() as waiting:
                waiting.deadline = anyio.current_time() + 2
                result = await session.run("Go on")
                assert result.output == "Done."
            may_end.set()
            assert not waiting.cancelled_caught
