"""Waiting in place: the run itself waits for a person, and ends with its process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from tests.support.runtimes import MakeRuntime
from tests.support.shop import agent, ran, refunds

from perdure import Agent, Conflict, PendingCall, Result, Runtime
from perdure.testing import ManualClock, ScriptedModel

ASK: dict[str, Any] = {"calls": [{"tool": "ask_user", "args": {"question": "Which?"}}]}


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def clerk(*turns: dict[str, Any], hitl: Any = "blocking", **options: Any) -> Agent[str]:
    return agent(*(turns or (refunds(5),)), {"text": "Done."}, hitl=hitl, **options)


class Running:
    """A run under way in the background of a test, and how it ended."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._ended = anyio.Event()
        self._result: Result[Any] | None = None

    async def run(self, one: Agent[Any]) -> None:
        self._result = await self._rt.session("s", agent=one).run("Go")
        self._ended.set()

    async def call(self, number: int = 0) -> PendingCall:
        """The call that is waited for, as soon as it is; by its number in the session."""
        async for event in self._rt.stream(session="s", after=0, types=("pending",)):
            if number == 0:
                calls = [one async for one in self._rt.pending(status="all")]
                return next(one for one in calls if one.id == event.data["pendingID"])
            number -= 1
        raise AssertionError("the stream never ends")

    async def result(self) -> Result[Any]:
        await self._ended.wait()
        assert self._result is not None
        return self._result

    @property
    def is_over(self) -> bool:
        return self._ended.is_set()


@pytest.mark.parametrize("limit", ["worker_pool", "concurrency"])
async def test_a_run_that_waits_in_place_holds_no_place_of_a_limit(
    in_memory: MakeRuntime, limit: str
) -> None:
    pool = {"worker_pool": 1} if limit == "worker_pool" else {}
    waiting = clerk(**pool)
    plain = Agent("plain", model=ScriptedModel([{"text": "Hello."}]))
    async with in_memory(waiting, plain) as rt, anyio.create_task_group() as tasks:
        await rt.session("s", agent=waiting).send("Go")
        with anyio.fail_after(20):
            tasks.start_soon(partial(rt.work, concurrency=1 if limit == "concurrency" else None))
            async for _ in rt.stream(session="s", after=0, types=("pending",)):
                break
            other = waiting if limit == "worker_pool" else plain
            await rt.session("other", agent=other).send("Go")
            event = "pending" if limit == "worker_pool" else "agent_complete"
            async for _ in rt.stream(session="other", after=0, types=(event,)):
                break
            (call,) = (await rt.session("s").get()).pending
            await rt.approve(call.id, by="ana")
            async for _ in rt.stream(session="s", after=0, types=("agent_complete",)):
                break
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def running(rt: Runtime, one: Agent[Any]) -> AsyncIterator[Running]:
    async with rt, anyio.create_task_group() as tasks:
        under_way = Running(rt)
        tasks.start_soon(under_way.run, one)
        with anyio.fail_after(20):
            yield under_way
        tasks.cancel_scope.cancel()


async def starts(rt: Runtime) -> int:
    return sum(event.type == "agent_start" for event in await rt.session("s").events())


async def test_the_answer_continues_the_same_run(runtime: MakeRuntime) -> None:
    """S4.42"""
    one = clerk()
    async with running(rt := runtime(one), one) as run:
        call = await run.call()
        assert not run.is_over
        assert (await rt.session("s").get()).state == "waiting"
        await rt.approve(call.id, by="ana")
        result = await run.result()
        assert (result.state, result.output) == ("completed", "Done.")
        assert await starts(rt) == 1
    assert ran == [("refund", 1, 5)]


async def test_a_question_is_waited_for_in_place_too(in_memory: MakeRuntime) -> None:
    """S4.37 S4.42"""
    one = agent(ASK, {"text": "Done."}, tools=["ask_user"], hitl="blocking")
    async with running(rt := in_memory(one), one) as run:
        await rt.respond((await run.call()).id, "the red one", by="ana")
        assert (await run.result()).state == "completed"
        assert await starts(rt) == 1


async def test_several_pauses_of_one_run_are_waited_for_one_after_the_other(
    in_memory: MakeRuntime,
) -> None:
    """S4.30 S4.42"""
    one = clerk(refunds(1, 2), refunds(3))
    async with running(rt := in_memory(one), one) as run:
        await run.call(1)
        first, second = sorted([c async for c in rt.pending()], key=lambda c: c.args["cents"])
        await rt.deny(second.id, by="ana")
        await rt.approve(first.id, by="ana")
        third = await run.call(2)
        await rt.approve(third.id, by="ana")
        assert (await run.result()).state == "completed"
    assert ran == [("refund", 1, 1), ("refund", 1, 3)]


@pytest.mark.parametrize(
    "options, seconds", [({}, 600), ({"input_timeout": 60}, 60), ({"input_timeout": "2h"}, 7200)]
)
async def test_who_does_not_answer_in_time_fails_the_run(
    in_memory: MakeRuntime, clock: ManualClock, options: dict[str, Any], seconds: int
) -> None:
    """S4.42: 600 seconds unless said otherwise."""
    one = clerk(**options)
    async with running(rt := in_memory(one), one) as run:
        call = await run.call()
        assert call.expires_at is not None
        assert (call.expires_at - call.created_at).total_seconds() == seconds
        clock.advance(seconds)
        result = await run.result()
        assert result.state == "failed"
        assert result.error is not None
        assert result.error.code == "INPUT_TIMEOUT"
        assert result.error.message == "refund was not answered in time"
        (late,) = [one async for one in rt.pending(status="expired")]
        assert late.id == call.id
        with pytest.raises(Conflict, match=r"expired: refund .* was not decided"):
            await rt.approve(call.id, by="ana")
    assert ran == []


async def test_the_time_for_an_approver_is_not_spent_of_a_budget(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    one = clerk(budget={"seconds": 60})
    async with running(rt := in_memory(one), one) as run:
        call = await run.call()
        clock.advance("5m")
        await rt.approve(call.id, by="ana")
        assert (await run.result()).state == "completed"


async def test_a_run_may_be_cancelled_instead_after_its_grace(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    """S4.42 S4.66"""
    one = clerk(refunds(1, 2), on_expire="cancel", expire_grace=60)
    async with running(rt := in_memory(one), one) as run:
        await run.call(1)
        clock.advance(659)
        await anyio.lowlevel.checkpoint()
        assert not run.is_over
        clock.advance(1)
        assert (await run.result()).state == "cancelled"
        assert [one async for one in rt.pending()] == []


async def test_a_late_answer_is_taken_where_it_is_kept_open(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    """S4.47"""
    one = clerk(on_expire="keep")
    async with running(rt := in_memory(one), one) as run:
        call = await run.call()
        clock.advance("1h")
        await rt.approve(call.id, by="ana")
        assert (await run.result()).state == "completed"
        (told,) = [e.data for e in await rt.session("s").events() if e.type == "decision"]
        assert told["late"] is True


async def test_a_cancellation_ends_the_wait(in_memory: MakeRuntime) -> None:
    """S4.42"""
    one = clerk()
    async with running(rt := in_memory(one), one) as run:
        await run.call()
        await rt.session("s").cancel(by="ana")
        assert (await run.result()).state == "cancelled"
    assert ran == []


async def stopped(rt: Runtime, one: Agent[Any]) -> PendingCall:
    """A run that waited in place when its process was told to stop."""
    async with running(rt, one) as run:
        return await run.call()


async def test_what_was_waited_for_in_place_is_lost_at_a_restart(runtime: MakeRuntime) -> None:
    """S4.46"""
    one = clerk()
    call = await stopped(runtime(one), one)
    async with runtime(one) as rt:
        result = await rt.session("s").run()
        assert result.state == "failed"
        assert result.error is not None
        assert result.error.code == "LOST_AT_RESTART"
        assert result.error.message.startswith("lost at restart: ")
        with pytest.raises(Conflict) as caught:
            await rt.approve(call.id, by="ana")
        assert caught.value.code == "LOST_AT_RESTART"
        assert caught.value.message == (
            f"refund ({call.id}): lost at restart: the process that waited in place for a "
            "decision is gone"
        )
        assert "session_store" in (caught.value.hint or "")
    assert ran == []


async def test_a_worker_says_at_its_start_that_it_is_lost(in_memory: MakeRuntime) -> None:
    """S4.46"""
    one = clerk()
    await stopped(in_memory(one), one)
    async with in_memory(one) as rt:
        await rt.work(once=True)
        assert (await rt.session("s").get()).state == "failed"


@pytest.mark.parametrize("with_code", [True, False])
async def test_who_answers_first_after_a_restart_is_told(
    in_memory: MakeRuntime, *, with_code: bool
) -> None:
    """S4.46"""
    one = clerk()
    call = await stopped(in_memory(one), one)
    async with in_memory(*([one] if with_code else [])) as rt:
        with pytest.raises(Conflict, match="lost at restart"):
            await rt.approve(call.id, by="ana")
        state = (await rt.session("s").get()).state
        assert state == ("failed" if with_code else "waiting")
    assert ran == []


async def test_a_lost_run_can_be_tried_again(in_memory: MakeRuntime) -> None:
    """S4.46: a new run goes on from what is recorded, and the model knows what was lost."""
    one = clerk(refunds(5), refunds(6))
    await stopped(in_memory(one), one)
    async with in_memory(one) as rt:
        assert (await rt.session("s").run()).state == "failed"
    async with running(rt := in_memory(one), one) as run:
        call = await run.call(1)
        await rt.approve(call.id, by="ana")
        assert (await run.result()).state == "completed"
    assert ran == [("refund", 1, 6)]


@pytest.mark.parametrize("verb", ["approve", "deny"])
async def test_both_modes_ask_and_answer_alike(in_memory: MakeRuntime, verb: str) -> None:
    """S4.44 S4.59: the same request, the same rules, the same words to the model."""
    told = {}
    for mode in ("async", "blocking"):
        one = clerk(hitl="auto" if mode == "async" else mode)
        async with running(rt := Runtime("memory:", agents=[one]), one) as run:
            call = await run.call()
            if verb == "approve":
                await rt.approve(call.id, by="ana", args={"cents": 4})
            else:
                await rt.deny(call.id, by="ana", reason="no")
            await run.result()
            result = await rt.session("s").run()
            said = [
                e.data["result"] for e in await rt.session("s").events() if e.type == "tool_result"
            ]
            told[mode] = (call.prompt, call.args, call.kind, said, result.output, result.state)
    assert told["async"] == told["blocking"]
