"""Deadlines and timers: by an injected clock, once, and with a defined outcome."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from perdure import Agent, Approval, Conflict, PendingCall, Runtime, hitl, tool
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel

MakeRuntime = Callable[..., Runtime]


def agent(*turns: dict[str, Any], tools: Sequence[Any] = (), **options: Any) -> Agent[str]:
    return Agent("helper", model=ScriptedModel(turns), tools=tools, **options)


@tool(deferred=True, timeout="1h")
async def start(call: PendingCall, mark: bool = False) -> str:
    """Start."""
    if mark:
        await call.mark_started()
    return "ref-1"


@tool(requires_approval=Approval(timeout="1h"))
def act() -> str:
    """Act."""
    return "acted"


@tool(requires_approval=True)
def plain() -> str:
    """Act without a deadline of its own."""
    return "acted"


def starter(**args: Any) -> Agent[str]:
    return agent({"calls": [{"tool": "start", "args": args}]}, {"text": "Done."}, tools=[start])


def actor(**options: Any) -> Agent[str]:
    return agent(
        {"calls": [{"tool": "act"}]}, {"text": "Done."}, {"text": "More."}, tools=[act], **options
    )


async def waiting(rt: Runtime, one: Agent[str], session: str = "s") -> PendingCall:
    result = await rt.session(session, agent=one).run("Go")
    assert result.state == "waiting"
    return result.pending[0]


async def tool_results(rt: Runtime) -> list[Any]:
    events = await rt.session("s").events()
    return [event.data for event in events if event.type == "tool_result"]


@pytest.mark.parametrize("mark", [False, True], ids=["waiting", "processing"])
async def test_an_overdue_call_expires_and_the_session_goes_on(
    runtime: MakeRuntime, clock: ManualClock, mark: bool
) -> None:
    """S0.62, S0.63, SX.8"""
    one = starter(mark=mark)
    async with runtime(one) as rt:
        call = await waiting(rt, one)
        clock.advance("59m")
        await rt.work(once=True)
        assert [c.id async for c in rt.pending()] == [call.id]
        clock.advance("1m")
        await rt.work(once=True)
        assert [c.status async for c in rt.pending(status="all")] == ["expired"]
        (told,) = await tool_results(rt)
        assert (told["result"], told["isError"]) == ("Tool execution timed out", True)
        assert (await rt.session("s").get()).output == "Done."
        before = (await rt.session("s").get()).seq
        await rt.work(once=True)
        assert (await rt.session("s").get()).seq == before


async def test_running_a_session_expires_its_overdue_calls_without_a_worker(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    """S0.62"""
    one = starter()
    async with in_memory(one) as rt:
        await waiting(rt, one)
        clock.advance("25h")
        assert (await rt.session("s", agent=one).run()).output == "Done."


async def test_a_result_after_the_deadline_is_refused_although_nobody_had_looked(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.43, S0.64"""
    one = starter()
    async with runtime(one) as rt:
        call = await waiting(rt, one)
        clock.advance("1h")
        with pytest.raises(Conflict, match=r"Not waiting.*expired") as conflict:
            await rt.submit_result(call.id, "late")
        assert conflict.value.details["status"] == "expired"
        assert (await rt.session("s", agent=one).run()).output == "Done."
        assert [t["result"] for t in await tool_results(rt)] == ["Tool execution timed out"]


async def test_of_an_expiry_and_a_result_at_once_one_counts(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.64"""
    one = starter()
    async with runtime(one) as rt, runtime(one) as other:
        call = await waiting(rt, one)
        clock.advance("1h")

        async def submit() -> None:
            with pytest.raises(Conflict):
                await rt.submit_result(call.id, "just")

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(submit)
                tasks.start_soon(other.recover)
        assert len(await tool_results(rt)) == 1


async def test_a_clock_that_goes_back_does_not_unexpire(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    """S0.72"""
    one = starter()
    async with in_memory(one) as rt:
        call = await waiting(rt, one)
        clock.advance("1h")
        await rt.recover()
        clock._now -= 2 * 3_600_000
        with pytest.raises(Conflict, match="expired"):
            await rt.submit_result(call.id, "early again")
        assert [c.status async for c in rt.pending(status="all")] == ["expired"]


async def test_a_deadline_is_an_instant_that_outlives_the_process(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.72"""
    one = starter()
    async with runtime(one) as rt:
        call = await waiting(rt, one)
        assert call.expires_at == datetime(2026, 1, 1, 1, tzinfo=UTC)
    clock.advance("30m")
    async with runtime(one) as rt:
        report = await rt.recover()
        assert [one.id for one in report.waiting] == [call.id]
        assert report.expired == ()
        assert (await rt.session("s").get()).pending == (call,)
    clock.advance("30m")
    async with runtime(one) as rt:
        report = await rt.recover()
        assert ([one.id for one in report.expired], report.waiting) == ([call.id], ())


async def test_more_overdue_calls_than_fit_a_page_all_expire(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    """S0.62"""
    turn = {"calls": [{"tool": "start"}] * 16}
    one = agent(turn, tools=[start])
    async with in_memory(one) as rt:
        for number in range(33):
            await waiting(rt, one, f"s{number}")
        clock.advance("1h")
        report = await rt.recover()
        assert (len(report.expired), len(report.waiting)) == (528, 0)


# --- when a person does not answer ------------------------------------------------------------


async def test_an_approval_that_expires_is_told_to_the_model(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    one = actor()
    async with in_memory(one) as rt:
        call = await waiting(rt, one)
        clock.advance("1h")
        with pytest.raises(Conflict, match=r"expired: act .* was not decided before its deadline"):
            await rt.approve(call.id, by="ana")
        assert (await rt.session("s", agent=one).run()).output == "Done."
        (result,) = await tool_results(rt)
        assert result["result"].startswith("Nobody decided about this call to act in time; it was")


async def test_the_state_of_a_pause_that_expired_is_kept_and_can_be_restored(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    """S4.47"""
    one = actor()
    async with in_memory(one) as rt:
        await waiting(rt, one)
        clock.advance("1h")
        result = await rt.session("s", agent=one).run()
        assert result.state == "completed"
        state = await hitl.load_execution_state_from_session(rt, "s", str(result.task_id))
        assert state.expired
        assert (state.query, state.iteration) == ("Go", 1)
        assert state.pending_tool_call is not None
        assert state.pending_tool_call.name == "act"
        saved = hitl.serialize_execution_state(state)
    assert hitl.deserialize_execution_state(saved) == state
    async with Runtime(MemoryStore(clock), agents=[again := actor()]) as other:
        session = await hitl.restore_reasoning_state(other, state)
        (call,) = (await session.get()).pending
        await other.approve(call.id, by="ana")
        assert (await other.session(session.id, agent=again).run()).output == "Done."


async def test_a_deferred_call_that_expires_may_be_kept_and_takes_a_late_result(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.43"""
    one = agent({"calls": [{"tool": "start"}]}, {"text": "Done."}, tools=[start], on_expire="keep")
    async with runtime(one) as rt:
        call = await waiting(rt, one)
        clock.advance("2h")
        assert (await rt.recover()).expired == ()
        await rt.work(once=True)
        assert (await rt.session("s").get()).state == "waiting"
        await rt.submit_result(call.id, "built")
        assert (await rt.session("s", agent=one).run()).output == "Done."
        (settled,) = [e.data for e in await rt.session("s").events() if e.type == "settled"]
        assert (settled["status"], settled["late"]) == ("completed", True)
        assert [t["result"] for t in await tool_results(rt)] == ["built"]


async def test_a_deferred_call_that_expires_never_cancels_its_run(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    """S0.62"""
    one = agent(
        {"calls": [{"tool": "start"}]}, {"text": "Done."}, tools=[start], on_expire="cancel"
    )
    async with in_memory(one) as rt:
        await waiting(rt, one)
        clock.advance("2h")
        assert (await rt.session("s", agent=one).run()).output == "Done."


async def test_an_approval_that_expires_may_cancel_the_run(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    one = actor(on_expire="cancel")
    async with runtime(one) as rt:
        await waiting(rt, one)
        clock.advance("1h")
        await rt.work(once=True)
        result = await rt.session("s", agent=one).run()
        assert (result.state, result.pending) == ("cancelled", ())
        assert [r.session_id async for r in rt.sessions(state="cancelled")] == ["s"]
        again = await rt.session("s", agent=one).run("Go on")
        assert (again.state, again.output) == ("completed", "Done.")
        assert again.task_id != result.task_id


async def test_a_run_is_cancelled_only_after_its_grace(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S4.66"""
    one = actor(on_expire="cancel", expire_grace="10m")
    async with runtime(one) as rt:
        await waiting(rt, one)
        clock.advance("69m")
        assert (await rt.session("s").run()).state == "waiting"
        clock.advance("1m")
        assert (await rt.session("s").run()).state == "cancelled"


async def test_an_answer_within_the_grace_is_taken_and_marked_late(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    """S4.66"""
    one = actor(on_expire="cancel", expire_grace="10m")
    async with in_memory(one) as rt:
        call = await waiting(rt, one)
        clock.advance("65m")
        await rt.approve(call.id, by="ana")
        assert (await rt.session("s").run()).state == "completed"
        (told,) = [e.data for e in await rt.session("s").events() if e.type == "decision"]
        assert told["late"] is True


@pytest.mark.parametrize(
    "options, seconds", [({}, None), ({"input_timeout": 600}, 600), ({"input_timeout": 0}, None)]
)
async def test_an_agent_can_bound_how_long_it_waits_for_people(
    in_memory: MakeRuntime, options: dict[str, Any], seconds: int | None
) -> None:
    """S4.47: without a deadline unless one is configured; that of the tool counts more."""
    calls = [{"tool": "plain"}, {"tool": "ask_user", "args": {"question": "Who?"}}, {"tool": "act"}]
    one = agent({"calls": calls}, tools=[plain, act, "ask_user"], **options)
    async with in_memory(one) as rt:
        pending = (await rt.session("s", agent=one).run("Go")).pending
        limits = [call.expires_at and call.expires_at - call.created_at for call in pending]
    wanted = None if seconds is None else timedelta(seconds=seconds)
    assert limits == [wanted, wanted, timedelta(hours=1)]


async def test_a_message_right_after_such_an_expiry_is_a_new_run(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    one = actor(on_expire="cancel")
    async with in_memory(one) as rt:
        await waiting(rt, one)
        first = (await rt.session("s").get()).task_id
        clock.advance("1h")
        await rt.recover()  # expired, and nobody has driven it
        again = await rt.session("s", agent=one).run("Go on")
        assert (again.state, again.output) == ("completed", "Done.")
        assert again.task_id != first


async def test_an_approval_that_expires_may_be_kept_and_answered_late(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.43"""
    one = actor(on_expire="keep")
    async with runtime(one) as rt:
        call = await waiting(rt, one)
        clock.advance("2h")
        report = await rt.recover()
        assert report.expired == ()
        assert [kept.id for kept in report.waiting] == [call.id]
        await rt.work(once=True)
        result = await rt.session("s").get()
        assert result.state == "waiting"
        assert result.to_json()["pending"][0]["late"] is True
        await rt.approve(call.id, by="ana")
        assert (await rt.session("s", agent=one).run()).output == "Done."
        (decision,) = [e.data for e in await rt.session("s").events() if e.type == "decision"]
        assert decision["late"] is True
        assert [t["result"] for t in await tool_results(rt)] == ["acted"]


async def test_a_late_answer_is_flagged_although_nobody_had_looked(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    """S0.43"""
    one = actor(on_expire="keep")
    async with in_memory(one) as rt:
        call = await waiting(rt, one)
        assert (await rt.session("s").get()).to_json()["pending"][0]["late"] is False
        clock.advance("2h")
        await rt.approve(call.id, by="ana")
        (decision,) = [e.data for e in await rt.session("s").events() if e.type == "decision"]
        assert decision["late"] is True


# --- timers -----------------------------------------------------------------------------------


async def test_a_wait_ends_when_its_time_has_come(runtime: MakeRuntime, clock: ManualClock) -> None:
    """SX.8"""
    turn = {"calls": [{"tool": "wait", "args": {"seconds": 3600}}]}
    one = agent(turn, {"text": "Good morning."}, tools=["wait"])
    async with runtime(one) as rt:
        call = await waiting(rt, one)
        assert (call.kind, call.tool) == ("timer", "wait")
        assert (await rt.session("s").get()).to_json()["nextAt"] == clock.now() + 3_600_000
    clock.advance(3599)
    async with runtime(one) as rt:
        await rt.work(once=True)
        assert (await rt.session("s").get()).state == "waiting"
        assert (await rt.session("s", agent=one).run()).state == "waiting"
        clock.advance(1)
        await rt.work(once=True)
        assert (await rt.session("s").get()).output == "Good morning."
        assert [c.status async for c in rt.pending(status="all")] == ["completed"]


async def test_a_wait_can_be_cut_short(in_memory: MakeRuntime) -> None:
    turn = {"calls": [{"tool": "wait", "args": {"seconds": 3600}}]}
    one = agent(turn, {"text": "Up early."}, tools=["wait"])
    async with in_memory(one) as rt:
        call = await waiting(rt, one)
        with pytest.raises(Conflict) as conflict:
            await rt.submit_result(call.id, "now")
        assert conflict.value.code == "WRONG_KIND"
        await rt.cancel_call(call.id, by="ana")
        assert (await rt.session("s", agent=one).run()).output == "Up early."


async def test_of_two_timers_each_fires_at_its_own_time(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    turn = {"calls": [{"tool": "wait", "args": {"seconds": s}} for s in (60, 120)]}
    one = agent(turn, {"text": "Both."}, tools=["wait"])
    async with in_memory(one) as rt:
        await waiting(rt, one)
        clock.advance(60)
        await rt.work(once=True)
        result = await rt.session("s").get()
        assert [call.args["seconds"] for call in result.pending] == [120]
        clock.advance(60)
        await rt.work(once=True)
        assert (await rt.session("s").get()).output == "Both."
