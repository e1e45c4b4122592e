"""`SessionResumer` and `recover_pending_sessions`."""

from typing import Any

import anyio
import pytest
from tests.pending.conftest import deploy

from perdure import Agent, NotFound, Refused, Runtime, tool
from perdure.pending import (
    DEFAULT_ASYNC_TIMEOUT,
    PendingToolCall,
    SessionResumer,
    check_expired_calls,
    recover_pending_sessions,
)
from perdure.store.base import Put, Write
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel


@pytest.fixture
def resumer(rt: Runtime) -> SessionResumer:
    return SessionResumer(rt)


async def test_the_last_result_lets_the_session_go_on(resumer: SessionResumer, rt: Runtime) -> None:
    """S0.33, S0.37, S0.41"""
    one, other = await resumer.find_waiting_sessions()
    assert one["sessionID"] == other["sessionID"] == "s"
    told = await resumer.submit_result(one["id"], "up")
    assert told == {"success": True, "sessionID": "s", "duplicate": False}
    assert (await resumer.submit_result(one["id"], "up"))["duplicate"] is True
    await resumer.submit_error(other["id"], "no disk")
    with anyio.fail_after(5):
        async for event in rt.stream(session="s", after=0):
            if event.type == "agent_complete":
                break
    assert await resumer.find_waiting_sessions() == []


async def test_unknown_ids_and_wrong_results_are_refused(resumer: SessionResumer) -> None:
    """S0.7, S0.32"""
    with pytest.raises(NotFound, match="Unknown pending ID"):
        await resumer.submit_result("p_none", "x")
    (one, _) = await resumer.find_waiting_sessions()
    with pytest.raises(Refused, match="unknown keys in result: extra"):
        await resumer.submit_result(one["id"], {"output": "x", "extra": 1})


async def test_a_session_or_a_call_s_session_is_resumed(
    resumer: SessionResumer, rt: Runtime
) -> None:
    one, other = await resumer.find_waiting_sessions()
    await rt.submit_result(one["id"], "up")
    assert (await resumer.resume("s")).state == "waiting"
    await rt.submit_result(other["id"], "up")
    assert (await resumer.resume(other)).output == "Both are up."
    with pytest.raises(NotFound):
        await resumer.resume("none")


async def test_what_a_session_waits_for_is_told(
    resumer: SessionResumer, rt: Runtime, clock: ManualClock
) -> None:
    """S0.44"""
    status = await resumer.get_waiting_status("s")
    one, other = (await rt.session("s").get()).pending
    assert status == {
        "waiting": True,
        "pendingCalls": [
            {
                "id": call.id,
                "tool": "deploy",
                "createdAt": clock.now(),
                "externalRef": call.external_ref,
            }
            for call in (one, other)
        ],
    }
    for call in (one, other):
        await rt.submit_result(call.id, "up")
    assert await resumer.get_waiting_status("s") == {"waiting": False}


async def test_a_process_may_end_unless_something_runs(
    resumer: SessionResumer, rt: Runtime
) -> None:
    """S0.29"""
    began, go_on = anyio.Event(), anyio.Event()

    @tool
    async def slow() -> str:
        """Take time."""
        began.set()
        await go_on.wait()
        return "done"

    turns: list[dict[str, Any]] = [{"calls": [{"tool": "slow"}]}, {"text": "Done."}]
    busy = Agent("busy", model=ScriptedModel(turns), tools=[slow])
    assert await resumer.can_shutdown("s")  # it waits
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rt.session("b", agent=busy).run, "Go")
        await began.wait()
        assert not await resumer.can_shutdown("b")
        go_on.set()
    assert await resumer.can_shutdown("b")  # it is idle
    await rt.session("b").send("More")
    assert not await resumer.can_shutdown("b")  # it is due
    with pytest.raises(NotFound):
        await resumer.can_shutdown("none")


async def test_recovery_reports_what_waits_expired_failed_and_went(
    rt: Runtime, clock: ManualClock, agent: Agent[str]
) -> None:
    """S0.68, S0.70"""
    store = rt._resources.store
    one, other = (await rt.session("s").get()).pending
    await rt.submit_result(one.id, "up")
    clock.advance("8d")
    await rt.session("t", agent=agent).run("Go")
    await PendingToolCall(rt).create(session_id="t", tool="ship", input={}, timeout=None)
    session = await store.get("session", "/t")
    assert session is not None
    await store.commit(
        [Write(session.stream)],
        [Put("pending", "p_bad", 0, session.stream, "open", None, b"{")],
    )
    report = await recover_pending_sessions(rt)
    assert report["expired"] == [other.id]
    assert report["cleanedUp"] == 1
    (recovered,) = report["recovered"]
    assert (recovered["sessionID"], recovered["pendingCount"]) == ("t", 3)
    assert sorted(recovered["tools"]) == ["deploy", "deploy", "ship"]
    assert [error["pendingID"] for error in report["errors"]] == ["p_bad"]
    again = await recover_pending_sessions(rt)
    assert (again["expired"], again["cleanedUp"]) == ([], 0)
    assert again["recovered"] == report["recovered"]


async def test_recovery_tells_a_tenant_of_its_own(
    memory: MemoryStore, clock: ManualClock, agent: Agent[str]
) -> None:
    async with Runtime(memory, agents=[agent]) as rt:
        await rt.tenant("acme").session("s", agent=agent).run("Go")
        assert len((await recover_pending_sessions(rt))["recovered"]) == 1
        assert (await recover_pending_sessions(rt.tenant("other")))["recovered"] == []
        clock.advance("25h")
        assert (await recover_pending_sessions(rt.tenant("other")))["expired"] == []


async def test_the_specification_s_loop_over_expired_calls_works_as_written(
    resumer: SessionResumer, rt: Runtime, clock: ManualClock
) -> None:
    """S0.62"""
    assert DEFAULT_ASYNC_TIMEOUT == 24 * 60 * 60 * 1000
    records = PendingToolCall(rt)
    clock.advance("25h")
    overdue = await records.find_expired()
    assert len(overdue) == 2
    for call in overdue:
        await records.expire(call["id"])
        told = await resumer.resume_with_error(call, "Tool execution timed out")
        assert (told["success"], told["sessionID"]) == (True, "s")
    assert (await resumer.resume("s")).output == "Both are up."
    statuses = [call["status"] for call in await records.list()]
    assert statuses == ["expired", "expired"]


async def test_a_session_is_resumed_with_an_error_for_an_open_call(
    resumer: SessionResumer, rt: Runtime
) -> None:
    one, other = await resumer.find_waiting_sessions()
    await resumer.resume_with_error(one, "no disk")
    await resumer.resume_with_error(other["id"], "no disk")
    assert {call["error"] for call in await PendingToolCall(rt).list()} == {"no disk"}


async def test_overdue_calls_can_be_expired_at_once(rt: Runtime, clock: ManualClock) -> None:
    """S0.62"""
    assert await check_expired_calls(rt) == []
    clock.advance("25h")
    assert [call["status"] for call in await check_expired_calls(rt)] == ["expired", "expired"]
    assert await check_expired_calls(rt) == []


async def test_records_are_listed_in_the_order_of_their_calls(rt: Runtime) -> None:
    """S0.47"""
    calls = [{"tool": "deploy", "args": {"branch": str(n)}} for n in range(12)]
    many = Agent("many", model=ScriptedModel([{"calls": calls}]), tools=[deploy])
    await rt.session("many", agent=many).run("Go")
    records = await PendingToolCall(rt).list_by_session("many")
    assert [record["input"]["branch"] for record in records] == [str(n) for n in range(12)]
