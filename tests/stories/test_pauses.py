"""Pausing again and again: questions, several cycles, answers that cannot be acted on here."""

from collections.abc import Callable

import pytest
from tests.support.findings import code_of, problem_of
from tests.support.shop import (
    agent,
    clerk,
    look,
    model_of,
    paused,
    ran,
    refunds,
    tool_results,
)

from perdure import Conflict, PendingCall, Runtime, tool

MakeRuntime = Callable[..., Runtime]


@pytest.fixture(autouse=True)
def _clean() -> None:
    ran.clear()


async def test_a_run_may_pause_any_number_of_times(runtime: MakeRuntime) -> None:
    """S4.30"""
    one = agent(*[refunds(n) for n in (1, 2, 3, 4)], {"text": "Done."})
    tasks: set[str | None] = set()
    for cents in (1, 2, 3, 4):
        async with runtime(one) as rt:
            result = await rt.session("s", agent=one).run("Go", key="k")
            (call,) = result.pending
            assert call.args["cents"] == cents
            tasks.add(result.task_id)
            await rt.approve(call.id, by="ana")
            await rt.session("s", agent=one).run()
    async with runtime(one) as rt:
        result = await rt.session("s").get()
        assert (result.state, result.output) == ("completed", "Done.")
    assert tasks == {result.task_id}
    assert ran == [("refund", 1, n) for n in (1, 2, 3, 4)]
    assert len(model_of(one).requests) == 5


async def test_turns_are_counted_over_all_pauses(in_memory: MakeRuntime) -> None:
    """S4.33"""
    one = agent(*[refunds(n) for n in (1, 2, 3)], max_turns=2, instructions="Be kind.")
    for _ in range(2):
        async with in_memory(one) as rt:
            result = await rt.session("s", agent=one).run("Go", key="k")
            await rt.approve(result.pending[0].id, by="ana")
    async with in_memory(one) as rt:
        result = await rt.session("s", agent=one).run()
        assert result.state == "failed"
        assert result.error is not None
        assert result.error.code == "SAFETY_LIMIT"
    assert {r.instructions for r in model_of(one).requests} == {"Be kind."}
    assert [r.turn for r in model_of(one).requests] == [1, 2]


async def test_an_answer_that_cannot_be_acted_on_here_is_kept_and_acted_on_elsewhere(
    runtime: MakeRuntime,
) -> None:
    """S4.34"""
    one = clerk()
    async with runtime(one) as rt:
        (call,) = (await paused(rt, one)).pending
    async with runtime() as rt:
        await rt.approve(call.id, by="ana")
        await rt.work(once=True)
        found = await rt.session("s").get()
        assert found.state != "completed"
        assert problem_of(found) is not None
    bare = agent(refunds(5), {"text": "Done."}, tools=[look])
    async with runtime(bare) as rt:
        stuck = await rt.session("s", agent=bare).run()
        assert stuck.state == "waiting"
        assert problem_of(stuck) is not None
        assert code_of(stuck) == "TOOL_MISSING"
        status = stuck.to_json()["status"]
        assert status["type"] != "waiting_async" or "pendingID" in status
    async with runtime(one) as rt:
        assert (await rt.session("s", agent=one).run()).output == "Done."
    assert ran == [("refund", 1, 5)]


async def test_a_question_is_answered_with_free_text(runtime: MakeRuntime) -> None:
    """S4.37"""
    turn = {"calls": [{"tool": "ask_user", "args": {"question": "Which {tool}?"}}]}
    one = agent(turn, {"text": "Blue it is."}, tools=["ask_user"])
    async with runtime(one) as rt:
        (call,) = (await paused(rt, one)).pending
        assert (call.kind, call.prompt, call.expires_at) == ("question", "Which {tool}?", None)
        with pytest.raises(Conflict, match="respond") as conflict:
            await rt.approve(call.id, by="ana")
        assert conflict.value.code == "WRONG_KIND"
        await rt.respond(call.id, "ü blue", by="ana")
        assert (await rt.session("s", agent=one).run()).output == "Blue it is."
        assert [t["result"] for t in await tool_results(rt)] == ["ü blue"]


async def test_a_question_may_be_declined(in_memory: MakeRuntime) -> None:
    """S4.37"""
    turn = {"calls": [{"tool": "ask_user", "args": {"question": "Which?"}}]}
    one = agent(turn, {"text": "Well."}, tools=["ask_user"])
    async with in_memory(one) as rt:
        (call,) = (await paused(rt, one)).pending
        await rt.deny(call.id, by="ana", reason="Private.")
        assert (await rt.session("s", agent=one).run()).output == "Well."
        (told,) = await tool_results(rt)
        assert told["result"] == "The user declined to answer. Private."


async def test_after_a_paused_session_is_cancelled_answers_are_refused(
    runtime: MakeRuntime,
) -> None:
    """S4.38"""
    one = clerk()
    async with runtime(one) as rt:
        (call,) = (await paused(rt, one)).pending
        cancelled = await rt.session("s").cancel(by="ana", reason="enough")
        assert (cancelled.state, cancelled.pending) == ("cancelled", ())
        with pytest.raises(Conflict, match=r"already answered.*cancelled"):
            await rt.approve(call.id, by="ben")
        assert (await rt.session("s", agent=one).run()).state == "cancelled"
        again = await rt.session("s", agent=one).run("Go on")
        assert (again.state, again.output) == ("completed", "Done.")
    assert ran == []


async def test_a_gated_deferred_call_waits_twice_for_one_effect(in_memory: MakeRuntime) -> None:
    @tool(deferred=True, requires_approval=True)
    def build(call: PendingCall) -> str:
        ran.append(call.effect_id)
        return "ref"

    one = agent({"calls": [{"tool": "build"}]}, {"text": "Built."}, tools=[build])
    async with in_memory(one) as rt:
        (gate,) = (await paused(rt, one)).pending
        assert ran == []
        await rt.approve(gate.id, by="ana")
        (wait,) = (await rt.session("s", agent=one).run()).pending
        assert (gate.kind, wait.kind) == ("approval", "tool")
        assert gate.id != wait.id
        assert ran == [gate.effect_id] == [wait.effect_id]
        await rt.submit_result(wait.id, "ok")
        assert (await rt.session("s", agent=one).run()).output == "Built."
