"""A person decides: one decision for one call, and exactly that call runs."""

import threading
from asyncio import all_tasks
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from msgspec.json import decode, encode
from tests.support.shop import (
    agent,
    clerk,
    model_of,
    paused,
    ran,
    refunds,
    tool_results,
)

from perdure import Approval, Conflict, Context, Refused, Runtime, tool
from perdure.store.base import Put, Write
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock

MakeRuntime = Callable[..., Runtime]


@pytest.fixture(autouse=True)
def _clean() -> None:
    ran.clear()


async def test_a_gated_call_pauses_and_others_run(runtime: MakeRuntime) -> None:
    """S4.1, S4.2, S4.8"""
    turn = {"calls": [{"tool": "look"}, *refunds(5)["calls"], {"tool": "look"}]}
    one = agent(turn, {"text": "Done."})
    async with runtime(one) as rt:
        result = await paused(rt, one)
        assert result.error is None
        assert ran == ["look", "look"]
        (call,) = result.pending
        assert (call.kind, call.tool, call.args) == ("approval", "refund", {"order": 1, "cents": 5})
        assert call.prompt == 'Run refund with {"order": 1, "cents": 5}?'
        assert call.expires_at is None
        await rt.approve(call.id, by="ana")
        assert (await rt.session("s", agent=one).run()).output == "Done."
    assert ran == ["look", "look", ("refund", 1, 5)]


async def test_the_prompt_of_an_approval_is_the_tools_own(in_memory: MakeRuntime) -> None:
    """S4.1"""

    @tool(requires_approval=Approval(timeout="1h"), approval_prompt="May I {tool}: {input}?")
    def act(x: str) -> str:
        return x

    one = agent({"calls": [{"tool": "act", "args": {"x": "{tool}"}}]}, tools=[act])
    async with in_memory(one) as rt:
        (call,) = (await paused(rt, one)).pending
        assert call.prompt == 'May I act: {"x": "{tool}"}?'
        assert call.expires_at is not None
        assert (call.expires_at - call.created_at).total_seconds() == 3600


@pytest.mark.parametrize("rule, asks", [("above", True), ("below", False), ("raises", True)])
async def test_a_rule_may_decide_whether_a_person_is_asked(
    in_memory: MakeRuntime, rule: str, asks: bool
) -> None:
    """S4.1"""
    asked: list[str] = []

    def must_ask(ctx: Context) -> bool:
        asked.append(ctx.session_id)
        limits = {"above": 3, "below": 30}
        return bool(ctx.args["cents"] > limits[rule])

    @tool(requires_approval=must_ask)
    def pay(cents: int) -> str:
        return f"paid {cents}"

    one = agent({"calls": [{"tool": "pay", "args": {"cents": 5}}]}, {"text": "Done."}, tools=[pay])
    async with in_memory(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert result.state == ("waiting" if asks else "completed")
        if asks:
            await rt.approve(result.pending[0].id, by="ana")
            assert (await rt.session("s", agent=one).run()).output == "Done."
        assert [t["result"] for t in await tool_results(rt)] == ["paid 5"]
    assert asked == ["s"]  # once, and recorded


async def test_waiting_sessions_hold_no_task_and_no_thread(in_memory: MakeRuntime) -> None:
    """S4.4"""
    one = clerk()
    async with in_memory(one) as rt:
        await paused(rt, one)
        before = (len(all_tasks()), threading.active_count())
        for number in range(300):
            await paused(rt, one, f"s{number}")
        assert len(all_tasks()) == before[0]
        assert threading.active_count() <= before[1]  # one of an earlier test may have ended
        assert len([call async for call in rt.pending()]) == 301


async def test_an_approval_runs_exactly_the_stored_call_without_a_new_request(
    runtime: MakeRuntime,
) -> None:
    """S4.25"""
    one = clerk()
    async with runtime(one) as rt:
        (call,) = (await paused(rt, one)).pending
        asked: list[int] = []

        @tool(requires_approval=True, name="refund")
        def watched(order: int, cents: int, ctx: Context) -> str:
            asked.append(len(model_of(again).requests))
            ran.append((order, cents, ctx.effect_id, ctx.call_id))
            return "ok"

    again = agent(refunds(5), {"text": "Done."}, tools=[watched])
    async with runtime(again) as rt:
        approved = await rt.approve(call.id, by="ana", note="fine")
        assert approved.status == "completed"
        assert approved.decision is not None
        assert (approved.decision.kind, approved.decision.by) == ("approve", "ana")
        assert approved.decision.note == "fine"
        await rt.session("s", agent=again).run()
    assert asked == [0]
    assert ran == [(1, 5, call.effect_id, call.call_id)]


async def test_an_approval_for_other_arguments_than_recorded_runs_nothing(
    in_memory: MakeRuntime, memory: MemoryStore
) -> None:
    """S4.25: what was shown for approval is what the log holds, or nothing runs."""
    one = clerk()
    async with in_memory(one) as rt:
        (call,) = (await paused(rt, one)).pending
        entry = await memory.get("pending", call.id)
        assert entry is not None
        shown = decode(entry.data)
        shown["input"]["cents"] = 1
        forged = Put("pending", call.id, entry.version, entry.stream, "open", None, encode(shown))
        await memory.commit([Write(entry.stream)], [forged])
        await rt.approve(call.id, by="ana")
        result = await rt.session("s", agent=one).run()
        assert (result.state, result.output) == ("completed", "Done.")
        (told,) = await tool_results(rt)
        assert told["isError"]
        assert "not run" in told["result"]
    assert ran == []


async def test_changes_of_an_approval_are_merged_and_seen_by_the_tool(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    seen: list[Any] = []

    @tool(requires_approval=True)
    def pay(order: int, cents: int, ctx: Context) -> str:
        seen.append((order, cents, dict(ctx.args), ctx.decision))
        return "paid"

    turn = {"calls": [{"tool": "pay", "args": {"order": 1, "cents": 5}}]}
    one = agent(turn, {"text": "Done."}, tools=[pay])
    async with in_memory(one) as rt:
        (call,) = (await paused(rt, one)).pending
        clock.advance(60)
        settled = await rt.approve(call.id, by="ana", args={"cents": 4})
        clock.advance(60)
        await rt.session("s", agent=one).run()
    ((order, cents, args, decision),) = seen
    assert (order, cents, args) == (1, 4, {"order": 1, "cents": 4})
    assert decision == settled.decision
    assert decision.kind == "edit"
    assert decision.args == {"cents": 4}
    assert decision.via == "python"


async def test_the_model_reads_the_edit_and_the_note_of_its_approver(
    runtime: MakeRuntime,
) -> None:
    one = clerk(9000)
    async with runtime(one) as rt:
        (call,) = (await paused(rt, one)).pending
        await rt.approve(call.id, by="ana", args={"cents": 1}, note="only one cent")
        await rt.session("s", agent=one).run()
        result = (await tool_results(rt))[0]["result"]
        first = model_of(one).requests[-1].messages
    async with runtime(again := agent({"text": "Hello."})) as rt:
        await rt.session("s", agent=again).run("And now?")
    assert result == "refunded 1"  # people see what the tool returned
    content = first[-1].content  # type: ignore[union-attr]
    assert content == (
        "The user changed the arguments of this call; what follows is the outcome of refund with "
        '{"order": 1, "cents": 1}. Note from the user: only one cent\n\nrefunded 1'
    )
    assert list(model_of(again).requests[-1].messages)[: len(first)] == list(first)


@pytest.mark.parametrize("args", [{"cents": "many"}, {"euros": 4}, {"order": None}])
async def test_changes_that_do_not_fit_consume_nothing(
    in_memory: MakeRuntime, args: dict[str, Any]
) -> None:
    one = clerk()
    async with in_memory(one) as rt:
        (call,) = (await paused(rt, one)).pending
        with pytest.raises(Refused) as refused:
            await rt.approve(call.id, by="ana", args=args)
        assert refused.value.code == "ARGS_INVALID"
        assert [c.status async for c in rt.pending()] == ["waiting"]
        await rt.approve(call.id, by="ana", args={"cents": 4})
        await rt.session("s", agent=one).run()
    assert ran == [("refund", 1, 4)]


@pytest.mark.parametrize(
    "bad",
    [{"by": ""}, {"by": 7}, {"by": "\ud800"}, {"by": "ana", "args": [1]}, {"by": "a", "note": 7}],
)
async def test_a_decision_that_could_not_be_kept_is_refused(
    in_memory: MakeRuntime, bad: dict[str, Any]
) -> None:
    one = clerk()
    async with in_memory(one) as rt:
        (call,) = (await paused(rt, one)).pending
        with pytest.raises(Refused) as refused:
            await rt.approve(call.id, **bad)
        assert refused.value.code == "VALUE_INVALID"
        with pytest.raises(Refused):
            await rt.deny(call.id, by="ana", reason="\ud800")
        assert [c.status async for c in rt.pending()] == ["waiting"]


async def test_a_denied_call_is_not_run_and_the_model_is_told(runtime: MakeRuntime) -> None:
    """S4.26"""
    one = clerk()
    async with runtime(one) as rt:
        (call,) = (await paused(rt, one)).pending
        denied = await rt.deny(call.id, by="ana", reason="too much")
        assert denied.decision is not None
        assert denied.decision.reason == "too much"
        result = await rt.session("s", agent=one).run()
        assert (result.state, result.output) == ("completed", "Done.")
        (told,) = await tool_results(rt)
        assert told["isError"]
        for words in ("denied", "not run", "too much", "Do not proceed", "do not invent"):
            assert words in told["result"]
    assert ran == []


async def test_an_output_may_be_given_instead_of_running(in_memory: MakeRuntime) -> None:
    one = clerk()
    async with in_memory(one) as rt:
        (call,) = (await paused(rt, one)).pending
        await rt.respond(call.id, "refunded by hand", by="ana")
        assert (await rt.session("s", agent=one).run()).output == "Done."
        assert [t["result"] for t in await tool_results(rt)] == ["refunded by hand"]
    assert ran == []


async def test_one_decision_is_for_one_call(runtime: MakeRuntime) -> None:
    """S4.28"""
    one = agent(refunds(5, 6), refunds(5), {"text": "Done."})
    async with runtime(one) as rt:
        first, second = (await paused(rt, one)).pending
        assert first.id != second.id
        await rt.approve(first.id, by="ana")
        again = await rt.session("s", agent=one).run()
        assert [call.id for call in again.pending] == [second.id]
        assert ran == [("refund", 1, 5)]
        await rt.deny(second.id, by="ana")
        third = await rt.session("s", agent=one).run()
        assert [call.args for call in third.pending] == [first.args]
        assert third.pending[0].id not in (first.id, second.id)
    assert ran == [("refund", 1, 5)]


async def test_of_two_answers_the_first_counts_and_the_other_is_told(
    runtime: MakeRuntime,
) -> None:
    """S4.29"""
    one = clerk()
    async with runtime(one) as rt:
        (call,) = (await paused(rt, one)).pending
        await rt.approve(call.id, by="ana", args={"cents": 4})
        await rt.approve(call.id, by="ana", args={"cents": 4})  # a retry
        for doing in (
            rt.deny(call.id, by="ben"),
            rt.approve(call.id, by="ben"),
            rt.approve(call.id, by="ana"),
            rt.approve(call.id, by="ana", args={"cents": 3}),
            rt.cancel_call(call.id),
        ):
            with pytest.raises(Conflict, match=r"already answered.*by ana") as conflict:
                await doing
            assert conflict.value.code == "ALREADY_DECIDED"
            assert conflict.value.winner["by"] == "ana"
            assert conflict.value.winner["kind"] == "edit"
        await rt.session("s", agent=one).run()
    assert ran == [("refund", 1, 4)]


async def test_contradictory_answers_at_once_have_one_winner(runtime: MakeRuntime) -> None:
    """S4.29, S4.35"""
    one = clerk()
    won: list[str] = []
    async with runtime(one, worker=True) as rt, runtime(one, worker=True) as other:
        (call,) = (await paused(rt, one)).pending

        async def answer(door: Runtime, by: str, approve: bool) -> None:
            try:
                await (door.approve if approve else door.deny)(call.id, by=by)
                won.append(by)
            except Conflict as conflict:
                assert "already answered" in str(conflict)  # noqa: PT017 - the loser is told

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                door, approve = (rt, other)[number % 2], number % 4 < 2
                tasks.start_soon(answer, door, f"p{number}", approve)
        with anyio.fail_after(10):
            assert (await other.session("s", agent=one).run()).output == "Done."
        decisions = [e.data for e in await rt.session("s").events() if e.type == "decision"]
        assert [d["by"] for d in decisions] == won
        assert len(ran) == (decisions[0]["kind"] == "approve")
