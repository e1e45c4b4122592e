"""Cancelling a run, and messages to a session that waits."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import anyio
import pytest

from perdure import Agent, Conflict, Delta, Refused, Runtime, tool
from perdure.core.conversation.messages import Answer
from perdure.runtime.models import Request
from perdure.testing import ScriptedModel

MakeRuntime = Callable[..., Runtime]


def agent(*turns: dict[str, Any], tools: Sequence[Any] = (), **options: Any) -> Agent[str]:
    return Agent("helper", model=ScriptedModel(turns), tools=tools, **options)


@tool(deferred=True)
def start() -> str:
    """Start."""
    return "ref-1"


@tool(requires_approval=True)
def act() -> str:
    """Act."""
    return "acted"


BOTH = {"text": "Go.", "calls": [{"tool": "start"}, {"tool": "act"}]}


class Slow(ScriptedModel):
    """Answers when it may."""

    def __init__(self, turns: Sequence[dict[str, Any]]) -> None:
        super().__init__(turns)
        self.asked, self.may_answer = anyio.Event(), anyio.Event()

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        pieces = [piece async for piece in super().answer(request)]
        self.asked.set()
        await self.may_answer.wait()
        for piece in pieces:
            yield piece


def model_of(one: Agent[Any]) -> ScriptedModel:
    assert isinstance(one.model, ScriptedModel)
    return one.model


async def tool_results(rt: Runtime) -> list[Any]:
    events = await rt.session("s").events()
    return [event.data for event in events if event.type == "tool_result"]


async def test_cancelling_while_a_tool_runs_stops_it(runtime: MakeRuntime) -> None:
    begun = anyio.Event()
    ended: list[str] = []

    @tool
    async def slow() -> str:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("stopped")
        return "never"

    one = agent({"calls": [{"tool": "slow"}]}, {"text": "Again."}, tools=[slow])
    async with runtime(one) as rt, anyio.create_task_group() as tasks:
        results: list[Any] = []

        async def follow() -> None:
            results.append(await rt.session("s", agent=one).run("Go"))

        tasks.start_soon(follow)
        with anyio.fail_after(10):
            await begun.wait()
            cancelled = await rt.session("s").cancel(by="ana", reason="enough")
            assert (cancelled.state, cancelled.error) == ("cancelled", None)
            again = await rt.session("s", agent=one).run("And now?")
        assert (again.state, again.output) == ("completed", "Again.")
        (event,) = [e.data for e in await rt.session("s").events() if e.type == "cancelled"]
        assert (event["by"], event["reason"]) == ("ana", "enough")
        (told,) = await tool_results(rt)
        assert told["interrupted"]
    assert ended == ["stopped"]
    assert len(results) == 1


async def test_cancelling_while_it_waits_closes_every_call(runtime: MakeRuntime) -> None:
    one = agent(BOTH, {"text": "Again."}, tools=[start, act])
    async with runtime(one) as rt:
        first, second = (await rt.session("s", agent=one).run("Go")).pending
        cancelled = await rt.session("s").cancel(by="ana")
        assert (cancelled.state, cancelled.pending) == ("cancelled", ())
        assert cancelled.to_json()["status"] == {"type": "idle"}
        assert [c.status async for c in rt.pending(status="all")] == ["cancelled"] * 2
        with pytest.raises(Conflict, match="cancelled by ana"):
            await rt.submit_result(first.id, "late")
        with pytest.raises(Conflict, match="cancelled by ana"):
            await rt.approve(second.id, by="ben")
        await rt.work(once=True)
        assert (await rt.session("s").get()).state == "cancelled"
    assert len(model_of(one).requests) == 1


async def test_cancelling_what_is_over_changes_nothing(in_memory: MakeRuntime) -> None:
    one = agent({"text": "Hello."})
    async with in_memory(one) as rt:
        done = await rt.session("s", agent=one).run("Go")
        again = await rt.session("s").cancel(by="ana")
        assert (again.state, again.seq, again.output) == ("completed", done.seq, "Hello.")


async def test_cancelling_twice_is_as_once(in_memory: MakeRuntime) -> None:
    one = agent(BOTH, tools=[start, act])
    async with in_memory(one) as rt:
        await rt.session("s", agent=one).run("Go")
        first = await rt.session("s").cancel(by="ana")
        second = await rt.session("s").cancel(by="ben")
        assert first.seq == second.seq


async def test_cancelling_what_nobody_drives_begins_nothing(in_memory: MakeRuntime) -> None:
    one = agent({"text": "Hello."})
    async with in_memory(one) as rt:
        await rt.session("s", agent=one).send("Go")
        assert (await rt.session("s").cancel()).state == "cancelled"
        await rt.work(once=True)
    assert model_of(one).requests == []


@pytest.mark.parametrize("by, reason", [("\ud800", None), (7, None), (None, "\ud800"), ("", None)])
async def test_a_cancellation_that_could_not_be_kept_is_refused(
    in_memory: MakeRuntime, by: Any, reason: Any
) -> None:
    one = agent(BOTH, tools=[start, act])
    async with in_memory(one) as rt:
        await rt.session("s", agent=one).run("Go")
        with pytest.raises(Refused):
            await rt.session("s").cancel(by=by, reason=reason)
        assert (await rt.session("s").get()).state == "waiting"


async def test_an_answer_to_a_cancelled_run_is_dropped_also_if_the_next_has_begun(
    in_memory: MakeRuntime,
) -> None:
    ran: list[str] = []

    @tool
    def deed() -> str:
        ran.append("deed")
        return "done"

    model = Slow([{"calls": [{"tool": "deed"}]}, {"text": "ok"}])
    one = Agent("helper", model=model, tools=[deed])
    async with in_memory(one) as rt, anyio.create_task_group() as tasks:
        tasks.start_soon(rt.session("s", agent=one).run, "Do the deed")
        with anyio.fail_after(5):
            await model.asked.wait()
            await rt.session("s").cancel()
            model.turns[0] = {"text": "Good morning."}
            await rt.session("s").send("Hello")
            model.may_answer.set()
            result = await rt.session("s", agent=one).run()
        assert (result.state, result.output) == ("completed", "Good morning.")
    assert ran == []


# --- messages to a session that waits ---------------------------------------------------------


async def test_a_message_to_a_waiting_session_is_answered_after_its_calls(
    runtime: MakeRuntime,
) -> None:
    """S0.30, S0.31"""
    one = agent(BOTH, {"text": "To both."}, tools=[start, act])
    async with runtime(one) as rt:
        first, second = (await rt.session("s", agent=one).run("Go")).pending
        still = await rt.session("s", agent=one).run("Hurry")
        assert (still.state, len(still.pending)) == ("waiting", 2)
        assert len(model_of(one).requests) == 1
        await rt.submit_result(first.id, "ok")
        await rt.deny(second.id, by="ana")
        assert (await rt.session("s", agent=one).run()).output == "To both."
    kinds = [type(m).__name__ for m in model_of(one).requests[1].messages]
    expected = ["UserMessage", "AssistantMessage", "ToolMessage", "ToolMessage", "UserMessage"]
    assert kinds == expected


@pytest.mark.parametrize("named", [True, False], ids=["with agent", "without agent"])
async def test_a_session_that_takes_no_message_while_it_waits_says_so(
    in_memory: MakeRuntime, named: bool
) -> None:
    """S0.30"""
    one = agent(BOTH, {"text": "Done."}, {"text": "More."}, tools=[start, act])
    strict = agent(
        BOTH, {"text": "Done."}, {"text": "More."}, tools=[start, act], while_waiting="reject"
    )
    async with in_memory(one) as rt:
        await rt.session("s", agent=one).run("Go")
    async with in_memory(strict) as rt:
        handle = rt.session("s", agent=strict) if named else rt.session("s")
        before = (await handle.get()).seq
        with pytest.raises(Conflict) as conflict:
            await handle.send("Hurry")
        assert conflict.value.code == "SESSION_WAITING"
        assert (await handle.get()).seq == before
        for call in (await handle.get()).pending:
            await rt.cancel_call(call.id)
        assert (await handle.run("Well?")).output == "Done."


@pytest.mark.parametrize("named", [True, False], ids=["with agent", "without agent"])
async def test_a_message_may_cancel_what_the_session_waits_for(
    in_memory: MakeRuntime, named: bool
) -> None:
    """S0.30"""
    one = agent(BOTH, {"text": "Never mind."}, tools=[start, act], while_waiting="cancel_calls")
    async with in_memory(one) as rt:
        (first, _) = (await rt.session("s", agent=one).run("Go")).pending
        handle = rt.session("s", agent=one) if named else rt.session("s")
        result = await handle.run("Forget it")
        assert (result.state, result.output) == ("completed", "Never mind.")
        assert [c.status async for c in rt.pending(status="all")] == ["cancelled"] * 2
        with pytest.raises(Conflict):
            await rt.submit_result(first.id, "late")
        assert {t["result"] for t in await tool_results(rt)} == {"Cancelled by user"}
