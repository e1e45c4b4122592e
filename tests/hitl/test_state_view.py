"""The state of our own paused runs: computed from the log, saved beside it, restored elsewhere."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest
from tests.support.runtimes import MakeRuntime
from tests.support.shop import agent, clerk, paused, ran, refunds

from perdure import Agent, Approval, File, NotFound, Refused, Runtime, hitl, tool
from perdure.errors import Conflict, NotAllowed, StoreError
from perdure.hitl import (
    ExecutionState,
    clear_execution_state_from_session,
    get_session_metadata,
    load_execution_state_from_session,
    restore_reasoning_state,
    save_execution_state_to_session,
    update_session_metadata,
)
from perdure.pending import PendingToolCall
from perdure.store.base import Write
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel

ON_EVERY_STORE = pytest.mark.parametrize("runtime", ["memory", "sqlite", "postgres"], indirect=True)

LOOK: dict[str, Any] = {
    "thinking": "Hm.",
    "text": "I look.",
    "calls": [{"tool": "look", "id": "c_look"}],
}
PAY = {"tool": "refund", "id": "c_pay", "args": {"order": 1, "cents": 5}}
REFUND: dict[str, Any] = {"text": " I refund.", "calls": [PAY]}
AGAIN: dict[str, Any] = {"text": "Once more.", "calls": [{"tool": "look"}]}


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def teller(*then: dict[str, Any], **options: Any) -> Agent[str]:
    turns: list[dict[str, Any]] = [{"text": "Hello."}, LOOK, REFUND, *then, {"text": "Done."}]
    return agent(*turns, show_thinking=True, **options)


async def second_run(rt: Runtime, one: Agent[str]) -> tuple[str, ExecutionState]:
    """A session whose second run is paused, and the state of that run."""
    session = rt.session("s", agent=one)
    await session.run(["Hi", File("text/plain", b"x", name="a.txt")])
    result = await session.run("Refund order 1")
    assert result.task_id is not None
    return result.task_id, await load_execution_state_from_session(rt, "s", result.task_id)


async def test_the_state_of_a_paused_run_is_read_from_its_log(runtime: MakeRuntime) -> None:
    """S4.9 S4.12 S4.17"""
    one = teller()
    async with runtime(one) as rt:
        task, state = await second_run(rt, one)
        snapshot = state.reasoning_state
        assert (state.task_id, state.context_id, state.query) == (task, "s", "Refund order 1")
        assert state.pending_tool_call == hitl.ToolCall("c_pay", "refund", {"order": 1, "cents": 5})
        assert [one["role"] for one in state.history] == ["user", "assistant"]
        assert state.history[0]["parts"][1]["name"] == "a.txt"
        roles = ["user", "assistant", "tool", "assistant"]
        assert [one["role"] for one in state.current_turn] == roles
        assert state.current_turn[1]["parts"][0] == {"type": "thinking", "thinking": "Hm."}
        assert (state.iteration, state.assistant_response) == (2, "I look. I refund.")
        assert snapshot.first_iteration_tool_calls == (hitl.ToolCall("c_look", "look"),)
        used = (await rt.session("s").get()).usage
        assert 0 < state.total_tokens < used.input_tokens + used.output_tokens
        assert (snapshot.agent_name, snapshot.query) == ("shop", "Refund order 1")
        assert (snapshot.show_thinking, snapshot.final_response_added) == (True, False)


async def test_it_stands_in_the_metadata_of_the_session(in_memory: MakeRuntime) -> None:
    """S4.12 SX.5: the documented shape; other keys stay, and it is gone when the run has ended."""
    one = clerk()
    async with in_memory(one) as rt:
        result = await paused(rt, one)
        await rt.session("s").set_metadata({"team": "red"})
        found = await get_session_metadata(rt, "s")
        assert found["team"] == "red"
        assert set(found["pending_executions"]) == {result.task_id}
        entry = found["pending_executions"][result.task_id]
        assert set(entry) == {"execution_state", "pending_tool_call", "checkpoint_data"}
        assert entry["pending_tool_call"]["name"] == "refund"
        assert entry["checkpoint_data"]["seq"] == (await rt.session("s").get()).seq
        await rt.approve(result.pending[0].id, by="ana")
        await rt.session("s").run()
        assert await get_session_metadata(rt, "s") == {"team": "red"}


SAMPLE = {
    "pending_executions": {
        "task-123": {
            "execution_state": {"task_id": "task-123", "context_id": "s", "query": "Go"},
            "pending_tool_call": {"id": "c1", "name": "refund", "args": {}},
            "checkpoint_data": {},
        }
    }
}


@ON_EVERY_STORE
async def test_the_literal_sample_is_read(runtime: MakeRuntime) -> None:
    """SX.5 S4.19: put there by other means, with its three parts."""
    one = agent({"text": "Hi."})
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Go")
        await update_session_metadata(rt, "s", SAMPLE)
        state = await load_execution_state_from_session(rt, "s", "task-123")
        assert state.pending_tool_call == hitl.ToolCall("c1", "refund")
        assert state.query == "Go"


async def test_what_was_saved_wins_until_it_is_cleared(runtime: MakeRuntime) -> None:
    """S4.12 S4.13"""
    one = teller()
    async with runtime(one) as rt:
        task, state = await second_run(rt, one)
        other = hitl.capture_execution_state(task, "s", "Another", state.reasoning_state)
        await save_execution_state_to_session(rt, "s", task, other)
        await save_execution_state_to_session(rt, "s", "task-2", other)
    async with runtime(one) as rt:
        assert (await load_execution_state_from_session(rt, "s", task)).query == "Another"
        await clear_execution_state_from_session(rt, "s", task)
        assert (await load_execution_state_from_session(rt, "s", task)) == state
        assert (await load_execution_state_from_session(rt, "s", "task-2")).query == "Another"
        await clear_execution_state_from_session(rt, "s", "task-2")
        await clear_execution_state_from_session(rt, "s", "task-2")  # nothing there is no error
        assert dict((await rt.session("s").get()).metadata) == {}


async def test_a_state_saved_at_a_pause_does_not_hide_the_next_pause(
    in_memory: MakeRuntime,
) -> None:
    """S4.12 S4.30"""
    teller_twice = agent(refunds(1), refunds(2), {"text": "Done."})
    async with in_memory(teller_twice) as rt:
        first = await paused(rt, teller_twice)
        task = str(first.task_id)
        state = await load_execution_state_from_session(rt, "s", task)
        await save_execution_state_to_session(rt, "s", task, state)
        await rt.approve(first.pending[0].id, by="ana")
        assert (await rt.session("s").run()).state == "waiting"
        second = await load_execution_state_from_session(rt, "s", task)
        assert second.pending_tool_call is not None
        assert second.pending_tool_call.args["cents"] == 2
        assert second.iteration == 2


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_a_saved_state_ends_with_its_run(in_memory: MakeRuntime, end: str) -> None:
    """S4.31"""
    last = {"error": "no credit"} if end == "failed" else {"text": "Done."}
    one = agent(refunds(5), last)
    async with in_memory(one) as rt:
        result = await paused(rt, one)
        task = result.task_id or ""
        state = await load_execution_state_from_session(rt, "s", task)
        await save_execution_state_to_session(rt, "s", task, state)
        if end == "cancelled":
            await rt.session("s").cancel()
        else:
            await rt.approve(result.pending[0].id, by="ana")
        result = await rt.session("s").get() if end == "cancelled" else await rt.session("s").run()
        assert result.state == end
        assert "pending_executions" not in result.metadata
        with pytest.raises(NotFound, match=f"no execution state found for task {task}"):
            await load_execution_state_from_session(rt, "s", task)


async def test_concurrent_saves_in_one_session_all_survive(runtime: MakeRuntime) -> None:
    """S4.15"""
    one = clerk()
    async with runtime(one) as rt:
        result = await paused(rt, one)
        state = await load_execution_state_from_session(rt, "s", result.task_id or "")
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                name = f"task-{number}"
                tasks.start_soon(save_execution_state_to_session, rt, "s", name, state)
        metadata = (await rt.session("s").get()).metadata
        assert len(metadata["pending_executions"]) == 10


async def test_sessions_are_isolated(in_memory: MakeRuntime) -> None:
    """S4.14"""
    one = clerk()
    async with in_memory(one) as rt:
        first = await paused(rt, one, "shop:a")
        second = await paused(rt, one, "other:a")
        for session, mine, foreign in (
            ("shop:a", first, second),
            ("other:a", second, first),
        ):
            state = await load_execution_state_from_session(rt, session, mine.task_id or "")
            assert state.context_id == session
            with pytest.raises(NotFound, match="execution state not found for task"):
                await load_execution_state_from_session(rt, session, foreign.task_id or "")
        with pytest.raises(NotFound):
            await load_execution_state_from_session(rt.tenant("t"), "shop:a", first.task_id or "")


async def test_the_run_of_a_deleted_session_is_cancelled_with_the_reason(
    memory: MemoryStore, in_memory: MakeRuntime
) -> None:
    """S4.16: for readers and receivers of webhooks; a completed run stays completed."""
    shop, facts = clerk(), list[dict[str, Any]]()
    commit = memory.commit

    async def watched(writes: Sequence[Write], *rest: Any) -> dict[str, int]:
        facts.extend(
            json.loads(record.data)
            for write in writes
            for record in write.records
            if record.type == "cancelled"
        )
        return await commit(writes, *rest)

    async with in_memory(shop) as rt:
        await paused(rt, shop)
        memory.commit = watched  # type: ignore[method-assign,assignment]
        await rt.session("s").delete()
        (fact,) = facts
        assert fact["reason"] == "the session was deleted"
        (call,) = (await paused(rt, shop)).pending
        await rt.deny(call.id, by="ana")
        assert (await rt.session("s").run()).state == "completed"
        await rt.session("s").delete()
        assert len(facts) == 1


async def test_a_deleted_session_has_no_state(in_memory: MakeRuntime) -> None:
    """S4.16"""
    one = clerk()
    async with in_memory(one) as rt:
        result = await paused(rt, one)
        await rt.session("s").delete()
        with pytest.raises(NotFound, match="there is no session 's'"):
            await load_execution_state_from_session(rt, "s", result.task_id or "")
        assert await hitl.get_tasks_by_state(rt, "INPUT_REQUIRED") == []
        with pytest.raises(NotFound, match="Unknown pending ID"):
            await rt.approve(result.pending[0].id, by="ana")


async def test_what_is_missing_is_said(in_memory: MakeRuntime) -> None:
    """S4.13 S4.19 S4.22 SX.6"""
    one = agent({"text": "Hi."})
    rt = in_memory(one)
    with pytest.raises(StoreError, match=r"(?m)^session service not available$"):
        await load_execution_state_from_session(rt, "s", "t")
    async with rt:
        await rt.session("s", agent=one).run("Go")
        with pytest.raises(NotFound, match=r"(?m)^no execution state found for task t$"):
            await load_execution_state_from_session(rt, "s", "t")
        await update_session_metadata(rt, "s", {"a": 1})
        with pytest.raises(NotFound, match=r"(?m)^no pending executions in session$"):
            await load_execution_state_from_session(rt, "s", "t")
        await update_session_metadata(rt, "s", {"pending_executions": {"x": {}}})
        with pytest.raises(NotFound, match=r"(?m)^execution state not found for task t$"):
            await load_execution_state_from_session(rt, "s", "t")
        with pytest.raises(Refused, match=r"^failed to load execution state: "):
            await load_execution_state_from_session(rt, "s", "x")
        await update_session_metadata(rt, "s", {"pending_executions": 5})
        with pytest.raises(Refused, match=r"(?m)^invalid pending_executions format$"):
            await load_execution_state_from_session(rt, "s", "t")
        await clear_execution_state_from_session(rt, "s", "t")
        with pytest.raises(Refused, match=r"(?m)^session ID required for async HITL$"):
            await update_session_metadata(rt, "", {})
        with pytest.raises(NotFound, match="there is no session 'nowhere'"):
            await update_session_metadata(rt, "nowhere", {"a": 1})


async def test_a_large_state_is_not_written_with_every_entry(in_memory: MakeRuntime) -> None:
    """S4.61: what is saved stands in the log once, not in what lists read."""
    one = clerk()
    async with in_memory(one) as rt:
        result = await paused(rt, one)
        state = await load_execution_state_from_session(rt, "s", result.task_id or "")
        big = hitl.capture_execution_state("t", "s", "x" * 1_000_000, state.reasoning_state)
        await save_execution_state_to_session(rt, "s", "t", big)
        (known,) = [one async for one in rt._service.sessions(None)]
        assert len(known.index_entry.data) < 2_000
        huge = hitl.capture_execution_state("t", "s", "x" * 11_000_000, state.reasoning_state)
        with pytest.raises(Refused, match="the execution state has 11,") as caught:
            await save_execution_state_to_session(rt, "s", "t", huge)
        assert caught.value.code == "TOO_LARGE"


# --- secrets ----------------------------------------------------------------------------------

CARD = "4111-1111"


@tool(requires_approval=True, redact=["card"])
def pay(card: str, cents: int) -> str:
    """Pay."""
    ran.append((card, cents))
    return "paid"


def payer() -> Agent[str]:
    call = {"tool": "pay", "id": "c_pay", "args": {"card": CARD, "cents": 5}}
    return agent({"text": "I pay.", "calls": [call]}, {"text": "Done."}, tools=[pay])


async def everything_stored(rt: Runtime) -> str:
    """All that the metadata of the session says, in its log and at every door."""
    shown = [await get_session_metadata(rt, "s"), dict((await rt.session("s").get()).metadata)]
    log = [event.data for event in await rt.session("s").events() if event.type == "metadata"]
    return json.dumps([*shown, *log])


async def test_a_state_holds_no_secret_argument(in_memory: MakeRuntime) -> None:
    """G11 S4.12: computed, loaded and saved, also by a program that has the whole."""
    one = payer()
    async with in_memory(one) as rt:
        task = (await paused(rt, one)).task_id or ""
        assert CARD not in await everything_stored(rt)
        state = await load_execution_state_from_session(rt, "s", task)
        assert CARD not in hitl.serialize_execution_state(state).decode()
        assert state.pending_tool_call is not None
        assert state.pending_tool_call.args == {"card": "***", "cents": 5}
        whole = await load_execution_state_from_session(rt, "s", task, secrets=True)
        assert CARD in hitl.serialize_execution_state(whole).decode()
        await save_execution_state_to_session(rt, "s", task, whole)
        bare = hitl.ToolCall("other", "pay", {"card": CARD})  # no call of this session
        said = {"role": "assistant", "native": [CARD], "parts": [_use("c_pay"), _use("other")]}
        snapshot = hitl.ReasoningStateSnapshot(
            agent_name="shop", history=(said,), first_iteration_tool_calls=(bare,)
        )
        made = hitl.capture_execution_state("t", "s", "Go", snapshot, bare)
        await save_execution_state_to_session(rt, "s", "t", made)
        assert CARD not in await everything_stored(rt)
        assert made.history[0]["native"] == [CARD]  # what was given is not changed


def _use(call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "pay", "input": {"card": CARD}}


async def test_a_run_is_restored_only_with_its_secrets_and_hides_them_there_too(
    in_memory: MakeRuntime,
) -> None:
    """G7 G11"""
    one = payer()
    async with in_memory(one) as rt:
        task = (await paused(rt, one)).task_id or ""
        state = await load_execution_state_from_session(rt, "s", task)
        whole = await load_execution_state_from_session(rt, "s", task, secrets=True)
    with pytest.raises(Refused, match="without the secret 'card' of 'pay'") as caught:
        await elsewhere(state, payer())
    assert caught.value.code == "STATE_REDACTED"
    there = await elsewhere(whole, payer())
    (call,) = (await there.session("s").get()).pending
    assert call.args == {"card": "***", "cents": 5}
    shown = [event.data for event in await there.session("s").events()]
    assert CARD not in json.dumps(shown) + await everything_stored(there)
    await there.approve(call.id, by="ana")
    assert (await there.session("s").run()).state == "completed"
    assert ran == [(CARD, 5)]
    await there.__aexit__(None, None, None)


# --- restored ---------------------------------------------------------------------------------


async def elsewhere(state: ExecutionState, *agents: Agent[Any]) -> Runtime:
    """The state, brought to another store as JSON."""
    rt = Runtime("memory:", agents=agents)
    await rt.__aenter__()
    text = hitl.serialize_execution_state(state)
    await restore_reasoning_state(rt, hitl.deserialize_execution_state(text))
    return rt


async def test_a_state_restored_elsewhere_is_the_same_state(in_memory: MakeRuntime) -> None:
    """S4.11"""
    one = teller()
    async with in_memory(one) as rt:
        task, state = await second_run(rt, one)
    there = await elsewhere(state, teller())
    again = await load_execution_state_from_session(there, "s", task)
    assert again == state
    (call,) = (await there.session("s").get()).pending
    assert (call.kind, call.tool, call.args) == ("approval", "refund", {"order": 1, "cents": 5})
    assert call.prompt == 'Run refund with {"order": 1, "cents": 5}?'
    await there.approve(call.id, by="ana")
    result = await there.session("s").run()
    assert (result.state, result.output, result.task_id) == ("completed", "Done.", task)
    assert ran == ["look", ("refund", 1, 5)]  # the look was not repeated
    await there.__aexit__(None, None, None)


def altered(state: ExecutionState, **changes: Any) -> ExecutionState:
    said = json.loads(hitl.serialize_execution_state(state))
    said["reasoning_state"] |= changes
    return hitl.deserialize_execution_state(json.dumps(said))


async def test_every_field_is_in_force_after_the_restore(in_memory: MakeRuntime) -> None:
    """S4.11 S4.33: turns count on against max_turns, tokens add up, and the rest is kept."""
    one = teller()
    async with in_memory(one) as rt:
        task, state = await second_run(rt, one)
    changed = altered(
        state,
        iteration=9,
        total_tokens=5_000,
        assistant_response="Long ago.",
        first_iteration_tool_calls=[{"id": "c_0", "name": "find", "args": {"x": 1}}],
        final_response_added=True,
    )
    bounded = teller(AGAIN, max_turns=10)
    there = await elsewhere(changed, bounded)
    assert await load_execution_state_from_session(there, "s", task) == changed
    (call,) = (await there.session("s").get()).pending
    await there.approve(call.id, by="ana")
    result = await there.session("s").run()
    assert result.state == "failed"
    assert result.error is not None
    assert result.error.message == "the run reached its limit: max_turns 10"
    await there.__aexit__(None, None, None)


@tool(requires_approval=Approval(not_by_starter=True))
def payout(cents: int) -> str:
    return f"paid {cents}"


async def test_a_restored_run_keeps_its_starters_and_the_answers_it_accepts(
    in_memory: MakeRuntime,
) -> None:
    ask = {"tool": "ask_user", "args": {"question": "Color?", "choices": ["red", "blue"]}}
    turn = {"calls": [{"tool": "payout", "args": {"cents": 5}}, ask]}

    def payer() -> Agent[str]:
        return agent(turn, turn, {"text": "Done."}, tools=[payout, "ask_user"])

    one = payer()
    async with in_memory(one) as rt:
        result = await rt.session("s", agent=one).run("Pay", by="zoe")
        assert result.task_id is not None
        state = await load_execution_state_from_session(rt, "s", result.task_id)
    there = await elsewhere(
        hitl.deserialize_execution_state(hitl.serialize_execution_state(state)), payer()
    )
    for _ in range(2):  # the calls that were restored, and those of the next turn
        calls = {call.kind: call for call in (await there.session("s").run()).pending}
        with pytest.raises(NotAllowed, match="'zoe' started this run"):
            await there.approve(calls["approval"].id, by="zoe")
        with pytest.raises(Refused, match="is not one of the choices"):
            await there.respond(calls["question"].id, "green", by="ana")
        await there.approve(calls["approval"].id, by="ana")
        await there.respond(calls["question"].id, "red", by="ana")
    assert (await there.session("s").run()).output == "Done."
    await there.__aexit__(None, None, None)


async def test_tokens_add_up_over_a_restore(in_memory: MakeRuntime) -> None:
    """S4.11"""
    one = teller()
    async with in_memory(one) as rt:
        _, state = await second_run(rt, one)
    there = await elsewhere(
        altered(state, total_tokens=5_000), teller(AGAIN, budget={"tokens": 5_001})
    )
    (call,) = (await there.session("s").get()).pending
    await there.approve(call.id, by="ana")
    (question,) = (await there.session("s").run()).pending
    assert (question.reason, "tokens 5001" in (question.prompt or "")) == ("budget", True)
    await there.__aexit__(None, None, None)


async def test_the_counts_of_a_paused_run_become_those_of_a_state(in_memory: MakeRuntime) -> None:
    """S4.11"""
    one = teller()
    async with in_memory(one) as rt:
        task, state = await second_run(rt, one)
        await restore_reasoning_state(rt, state)  # as it is: nothing to write
        before = (await rt.session("s").get()).seq
        await restore_reasoning_state(rt, altered(state, iteration=7))
        assert (await rt.session("s").get()).seq == before + 1
        assert (await load_execution_state_from_session(rt, "s", task)).iteration == 7
        said = hitl.capture_execution_state("t", "s", "", state.reasoning_state)
        with pytest.raises(Conflict, match="is not paused in it"):
            await restore_reasoning_state(rt, said)


async def test_a_run_is_not_restored_without_its_sub_agents(in_memory: MakeRuntime) -> None:
    """S4.33"""
    one = teller()
    async with in_memory(one) as rt:
        _, state = await second_run(rt, one)
    with pytest.raises(Refused, match="may use the sub-agent 'researcher', which agent 'shop'"):
        await elsewhere(altered(state, sub_agents=["researcher"]), teller())
    there = await elsewhere(altered(state, sub_agents=["researcher"]))
    again = await load_execution_state_from_session(there, "s", state.task_id)
    assert again.reasoning_state.sub_agents == ("researcher",)
    await there.__aexit__(None, None, None)


async def test_a_call_that_no_answer_asked_for_is_asked_about_all_the_same(
    in_memory: MakeRuntime,
) -> None:
    snapshot = hitl.ReasoningStateSnapshot(agent_name="shop", iteration=1)
    call = hitl.ToolCall("c9", "refund", {"order": 2, "cents": 7})
    one = agent({"text": "unused"}, {"text": "Done."})
    async with in_memory(one) as rt:
        state = hitl.capture_execution_state("task-9", "s9", "Refund it", snapshot, call)
        session = await restore_reasoning_state(rt, state)
        (asked,) = (await session.get()).pending
        await rt.approve(asked.id, by="ana")
        assert (await session.run()).output == "Done."
    assert ran == [("refund", 2, 7)]


async def test_calls_of_the_same_turn_are_never_run_unasked(in_memory: MakeRuntime) -> None:
    """S4.8"""
    both = {"calls": [*refunds(5)["calls"], *refunds(6)["calls"]]}
    one = agent(both, {"text": "Done."})
    async with in_memory(one) as rt:
        result = await paused(rt, one)
        state = await load_execution_state_from_session(rt, "s", result.task_id or "")
    there = await elsewhere(state, agent(both, {"text": "Done."}))
    assert [c.args["cents"] for c in (await there.session("s").get()).pending] == [5, 6]
    assert ran == []
    await there.__aexit__(None, None, None)


# --- tasks ------------------------------------------------------------------------------------


@ON_EVERY_STORE
async def test_tasks_are_found_by_their_state(runtime: MakeRuntime) -> None:
    """S4.52"""
    one = clerk()
    plain = Agent("plain", model=ScriptedModel([{"text": "Hi."}]))
    async with runtime(one, plain) as rt:
        for number in range(3):
            await paused(rt, one, f"w{number}")
        await rt.session("done", agent=plain).run("Go")
        waiting = await hitl.get_tasks_by_state(rt, "TASK_STATE_INPUT_REQUIRED")
        assert sorted(task.context_id for task in waiting) == ["w0", "w1", "w2"]
        assert {task.state for task in waiting} == {"INPUT_REQUIRED"}
        done = await hitl.get_tasks_by_state(rt, "completed")
        assert [(task.context_id, task.agent) for task in done] == [("done", "plain")]
        with pytest.raises(Refused, match="'SLEEPING' is not a state of a task"):
            await hitl.get_tasks_by_state(rt, "SLEEPING")


async def test_the_states_of_tasks_are_those_of_the_table(in_memory: MakeRuntime) -> None:
    """S4.52 SX.1: each session has one state, also one that waits for a deferred tool."""

    @tool(deferred=True)
    def deploy() -> str:
        """Deploy."""
        return "ref"

    shop = clerk()
    ci = Agent("ci", model=ScriptedModel([{"calls": [{"tool": "deploy"}]}]), tools=[deploy])
    plain = Agent("plain", model=ScriptedModel([{"text": "Hi."}]))
    broke = Agent("broke", model=ScriptedModel([{"error": "no credit"}]))
    async with in_memory(shop, ci, plain, broke) as rt:
        await paused(rt, shop, "asks")
        await paused(rt, ci, "deploys")
        approved = await paused(rt, shop, "approved")
        await rt.approve(approved.pending[0].id, by="ana")
        await rt.session("done", agent=plain).run("Go")
        await rt.session("broken", agent=broke).run("Go")
        await rt.session("sent", agent=plain).send("Go")
        await paused(rt, shop, "stopped")
        await rt.session("stopped").cancel()
        states = ("SUBMITTED", "WORKING", "INPUT_REQUIRED", "COMPLETED", "FAILED", "CANCELED")
        listed = {
            state: [task.context_id for task in await hitl.get_tasks_by_state(rt, state)]
            for state in states
        }
        assert listed == {
            "SUBMITTED": ["sent"],
            "WORKING": ["approved", "deploys"],
            "INPUT_REQUIRED": ["asks"],
            "COMPLETED": ["done"],
            "FAILED": ["broken"],
            "CANCELED": ["stopped"],
        }
        waiting = await hitl.get_tasks_by_state(rt, "waiting")
        assert [task.context_id for task in waiting] == ["approved", "asks", "deploys"]


async def test_two_sessions_with_one_task_are_both_listed(in_memory: MakeRuntime) -> None:
    """S4.52: restored under another context id, as the error of a restore says."""
    shop = clerk()
    async with in_memory(shop) as rt:
        task = str((await paused(rt, shop)).task_id)
        state = await load_execution_state_from_session(rt, "s", task)
        await restore_reasoning_state(rt, replace(state, context_id="copy"))
        listed = await hitl.get_tasks_by_state(rt, "INPUT_REQUIRED")
        assert [(item.task_id, item.context_id) for item in listed] == [(task, "copy"), (task, "s")]


async def test_more_tasks_than_fit_a_page_are_all_found(in_memory: MakeRuntime) -> None:
    """S4.52"""
    one = clerk()
    async with in_memory(one) as rt:
        for number in range(1_050):
            await paused(rt, one, f"w{number}")
        assert len(await hitl.get_tasks_by_state(rt, "INPUT_REQUIRED")) == 1_050


async def test_waiting_tasks_are_listed_and_resumed_by_nobody(
    in_memory: MakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    """S4.49"""
    one = clerk()
    async with in_memory(one) as rt:
        await paused(rt, one)
        before = (await rt.session("s").get()).seq
        caplog.set_level("INFO", "perdure")
        assert len(await hitl.recover_waiting_tasks(rt)) == 1
        assert "Found 1 tasks waiting for input" in caplog.text
        assert (await rt.session("s").get()).seq == before
    assert ran == []


async def test_a_pause_can_be_raised(in_memory: MakeRuntime) -> None:
    """S4.2"""
    one = clerk()
    async with in_memory(one) as rt:
        result = await paused(rt, one)
        with pytest.raises(hitl.InputRequired) as caught:
            hitl.InputRequired.check(result)
        assert caught.value.message == "input required - task paused for user approval"
        assert caught.value.details == {"taskID": result.task_id, "pending": [result.pending[0].id]}
        await rt.deny(result.pending[0].id, by="ana")
        done = await rt.session("s").run()
        assert hitl.InputRequired.check(done) is done


async def test_the_request_says_what_is_asked(in_memory: MakeRuntime) -> None:
    """S4.6"""
    one = clerk()
    async with in_memory(one) as rt:
        result = await paused(rt, one)
        (call,) = result.pending
        (same,) = [one async for one in rt.pending()]
        assert hitl.approval_request(same) == hitl.approval_request(call)
        assert hitl.approval_request(call) == call.to_json()["request"]
        (listed,) = await PendingToolCall(rt).list()
        assert hitl.approval_request(listed) == hitl.approval_request(call)
        wrong_values: list[Any] = [{}, {"request": 5}, None, "p_1", {**listed, "request": None}]
        for wrong in wrong_values:
            with pytest.raises(Refused, match="it is not a pending call"):
                hitl.approval_request(wrong)
        text, data = hitl.approval_request(call)["parts"]
        assert text["text"] == 'Run refund with {"order": 1, "cents": 5}?'
        assert data["data"] == {
            "interaction_type": "tool_approval",
            "tool_name": "refund",
            "tool_input": {"order": 1, "cents": 5},
            "options": ["approve", "deny"],
            "tool_call_id": call.call_id,
            "task_id": result.task_id,
            "pending_id": call.id,
            "expires_at": None,
        }
