"""Background agents at the worst moment: two readers, late callers, deletions, damaged logs."""

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from tests.support.runtimes import MakeRuntime

from perdure import Agent, Conflict, NotFound, Runtime, tool
from perdure.core.session import child_tasks
from perdure.core.session.child_tasks import MAIL, TASK, ChildTask
from perdure.core.session.children import BACKGROUND_AUTHOR
from perdure.core.session.naming import session_stream
from perdure.errors import Corrupt
from perdure.runtime.inbox.sessions import NewMessage
from perdure.runtime.records.entries import SessionRef
from perdure.store.base import Slice, Store
from perdure.testing import ManualClock, ScriptedModel


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"tool": name, "args": args}


@tool(deferred=True)
def look() -> str:
    """Look."""
    return "ref"


def researcher(*turns: dict[str, Any], **options: Any) -> Agent[str]:
    script = turns or ({"text": "First."}, {"text": "Second."}, {"text": "Third."})
    return Agent("researcher", model=ScriptedModel(script), **options)


def slow_researcher() -> Agent[str]:
    """Agent that waits for a result in its first turn."""
    return researcher({"calls": [call("look")]}, {"text": "Seen."}, tools=[look])


def lead(*turns: dict[str, Any], child: Agent[Any] | None = None) -> Agent[str]:
    return Agent("lead", model=ScriptedModel(turns), sub_agents=[child or researcher()])


def set_turns(one: Agent[Any], *turns: dict[str, Any]) -> None:
    assert isinstance(one.model, ScriptedModel)
    one.model.turns = ScriptedModel(turns).turns


def requests(agent: Agent[Any]) -> Sequence[Any]:
    assert isinstance(agent.model, ScriptedModel)
    return agent.model.requests


async def begun(rt: Runtime, one: Agent[Any]) -> str:
    """Return a parent session that has completed its first run."""
    await rt.session("s", agent=one).run("Start")
    return "s"


async def deliveries(rt: Runtime, session: str = "s") -> list[str]:
    """Return the ids of the mail that the log says was delivered, in order."""
    found = []
    for event in await rt.session(session).events():
        if event.type in ("user", "tool_result", "mail_taken"):
            found += event.data.get("mail", ())
    return found


async def entry_of(rt: Runtime, task_id: str) -> ChildTask:
    entry = await store_of(rt).get(TASK, child_tasks.task_key("", task_id))
    assert entry is not None
    return child_tasks.decode_task(entry.data)


def store_of(rt: Runtime) -> Store:
    return rt._resources.store


@pytest.mark.parametrize("block", [False, True])
async def test_two_calls_of_one_turn_read_the_same_task(runtime: MakeRuntime, block: bool) -> None:
    """S1.22, S1.23: both have the answer, and its mail is delivered once."""
    child = slow_researcher()
    one = lead({"text": "Started."}, child=child)
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        (below,) = (await rt.session(task.session_id).run()).pending
        if not block:
            await rt.submit_result(below.id, "seen")
        twice = [call("background_output", task_id=task.id, block=block)] * 2
        set_turns(one, {"text": "Started."}, {"calls": twice}, {"text": "Got it."})
        if block:
            await rt.session("s").run("Read it")
            await rt.submit_result(below.id, "seen")
            result = await rt.session("s").run()
        else:
            await task.output(block=True)
            result = await rt.session("s").run("Read it")
        assert (result.state, result.output) == ("completed", "Got it.")
        assert await deliveries(rt) == [f"{task.id}.1"]


async def test_a_caller_that_waits_for_a_paused_child_does_not_poll(
    runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.19: the child waits for a person, and the caller for the child."""
    one = lead(child=slow_researcher())
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?")
        await rt.session(task.session_id).run()
        store, reads = store_of(rt), 0
        read = store.read

        async def counted(*args: Any, **options: Any) -> Slice:
            nonlocal reads
            reads += 1
            return await read(*args, **options)

        monkeypatch.setattr(store, "read", counted)
        result = await task.output(block=True, timeout=0.5)
        assert result.state == "waiting"
        assert reads < 30


async def test_a_follow_up_that_comes_after_a_cancel_is_refused(runtime: MakeRuntime) -> None:
    """S1.9, S1.12: its sender saw the task completed, and another caller was faster twice."""
    one = lead()
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?")
        await task.output(block=True)
        inbox = rt._resources.child_inbox
        seen = await inbox.find("", task.id)
        await task.resume("Mine first")
        await task.cancel()
        with pytest.raises(Conflict) as caught:
            await inbox.resume(seen, NewMessage("Too late"))
        assert caught.value.message == (
            "Cannot resume task: status is 'cancelled'. Only completed tasks can be resumed."
        )
        assert (await task.record()).resume_count == 1


async def test_a_follow_up_that_comes_after_a_clear_is_refused(runtime: MakeRuntime) -> None:
    """S1.8, S1.29"""
    one = lead({"text": "Started."})
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        await task.output(block=True)
        inbox = rt._resources.child_inbox
        seen = await inbox.find("", task.id)
        await inbox.clear(session_stream("", "s"))
        with pytest.raises(NotFound) as caught:
            await inbox.resume(seen, NewMessage("Too late"))
        assert caught.value.message == f"Task not found: {task.id}"
        assert caught.value.details["reason"] == "cleared"
        assert (await entry_of(rt, task.id)).resume_count == 0


async def test_a_task_that_is_resumed_while_it_is_cleared_is_cancelled(
    runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.30"""
    one = lead({"text": "Started."})
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        await task.output(block=True)
        inbox = rt._resources.child_inbox
        clear = inbox._clear

        async def resumed_first(*args: Any, **options: Any) -> Any:
            monkeypatch.setattr(inbox, "_clear", clear)
            await task.resume("More?")
            return await clear(*args, **options)

        monkeypatch.setattr(inbox, "_clear", resumed_first)
        (cleared,) = await inbox.clear(session_stream("", "s"))
        assert cleared.status == "cancelled"
        assert (await rt.session(task.session_id).get()).state == "cancelled"
        await rt.session("s").run()
        open_mail = await store_of(rt).find(MAIL, state="open")
        assert (await deliveries(rt), list(open_mail.entries)) == ([], [])


async def test_a_parent_is_at_rest_as_soon_as_a_caller_has_taken_the_answer(
    runtime: MakeRuntime,
) -> None:
    """S1.18: `run()` does not wait for the end of a reservation that nobody needs any more."""
    one = lead({"text": "Started."})
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        await rt.session("s").run()
        background = rt._service.background
        record = await background.resume(await task.record(), "More?", wait_ms=60_000)
        await rt.work(once=True)  # the parent waits for the end of the reservation
        await background.wait_and_take(record, 60_000)
        with anyio.fail_after(5):
            await rt.session("s").run()
        assert await deliveries(rt) == [f"{task.id}.1", f"{task.id}.2"]


async def test_a_waiting_caller_takes_the_answer_to_its_own_message_only(
    runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.17, S1.18: another follow-up is sent between the answer and its taking."""
    one = lead({"text": "Started."})
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        await task.output(block=True)
        await rt.session("s").run()
        background = rt._service.background
        follow = background._runs.follow

        async def another_follow_up(entry: Any) -> Any:
            drive = await follow(entry)
            monkeypatch.setattr(background._runs, "follow", follow)
            await rt.task(task.id).resume("Mine too")
            return drive

        monkeypatch.setattr(background._runs, "follow", another_follow_up)
        with anyio.fail_after(5):
            await task.resume("More?", block=True)
        assert (await deliveries(rt))[1:] == [f"{task.id}.2"]
        assert (await task.record()).status == "resumed"


async def test_deleting_a_parent_starts_no_run_of_it(
    runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.29: a worker drives the parent as soon as a child of it is cancelled."""
    one = lead({"text": "Started."}, child=slow_researcher())
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        await rt.session(task.session_id).run()
        before, sessions = len(requests(one)), rt._resources.session_inbox
        cancel = sessions.cancel

        async def cancel_and_drive(*args: Any, **options: Any) -> None:
            await cancel(*args, **options)
            await rt.work(once=True)

        monkeypatch.setattr(sessions, "cancel", cancel_and_drive)
        await rt.session("s").delete()
        assert len(requests(one)) == before
        for session_id in ("s", task.session_id):
            with pytest.raises(NotFound):
                await rt.session(session_id).get()


async def test_a_child_that_ends_after_its_parent_was_erased_ends_alone(
    runtime: MakeRuntime,
) -> None:
    """The parent's `Gone` is not the child's."""
    one = lead({"text": "Started."}, child=slow_researcher())
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        (below,) = (await rt.session(task.session_id).run()).pending
        await rt._resources.session_inbox.erase(SessionRef("", "s"))
        await rt.submit_result(below.id, "seen")
        result = await rt.session(task.session_id).run()
        assert (result.state, result.output) == ("completed", "Seen.")


async def test_a_child_whose_log_cannot_be_read_is_an_error_for_its_parent(
    runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.26, S1.34: never silently stuck."""
    one = lead({"text": "Started."}, {"text": "Sad."})
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        stream = session_stream("", task.session_id)
        await rt._resources.verifier.fail_session(stream, Corrupt("event 2 cannot be read"))
        assert (await entry_of(rt, task.id)).status == "error"
        result = await rt.session("s").run()
        assert result.output == "Sad."
        notes = [e.data for e in await rt.session("s").events() if e.type == "user"]
        assert "event 2 cannot be read" in notes[-1]["content"]
        assert notes[-1]["by"] == BACKGROUND_AUTHOR


async def test_the_entry_of_a_child_that_was_lost_says_what_the_log_says(
    runtime: MakeRuntime,
) -> None:
    """SX.2: its session is gone, and its parent is cancelled."""
    one = Agent(
        "lead",
        model=ScriptedModel([{"calls": [call("ask_user", question="?")]}]),
        tools=["ask_user"],
        sub_agents=[slow_researcher()],
    )
    async with runtime(one) as rt:
        await rt.session("s", agent=one).run("Start")
        task = await rt.spawn("researcher", "Tides?", parent="s")
        await rt._resources.session_inbox.erase(SessionRef("", task.session_id))
        await rt.session("s").cancel()
        await rt.session("s").run()
        ends = [e.data for e in await rt.session("s").events() if e.type == "delegation_complete"]
        assert [end["status"] for end in ends] == ["cancelled"]
        assert (await entry_of(rt, task.id)).status == "cancelled"


async def test_mail_that_another_process_took_is_not_looked_for_again_and_again(
    runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.23: the driver has not read yet that it was taken."""
    one = lead({"text": "Started."})
    async with runtime(one) as rt, runtime(one) as other:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        await rt._service.runs._follow_one(
            await rt._resources.session_inbox.session_entry(SessionRef("", task.session_id))
        )
        inbox, looks = rt._resources.child_inbox, 0
        look_for = inbox.mail_entry

        async def taken_first(tenant: str, mail: str) -> Any:
            nonlocal looks
            looks += 1
            if looks == 1:
                await other._resources.child_inbox.take(tenant, mail, "ana")
            return await look_for(tenant, mail)

        monkeypatch.setattr(inbox, "mail_entry", taken_first)
        with anyio.fail_after(10):
            await rt.session("s").run()
        assert looks < 4
        assert await deliveries(rt) == [f"{task.id}.1"]


async def test_run_returns_if_the_agent_of_a_child_is_not_known_here(
    runtime: MakeRuntime,
) -> None:
    one = Agent(
        "lead",
        model=ScriptedModel(
            [
                {"calls": [call("background_task", agent="researcher", prompt="Tides?")]},
                {"text": "Asked."},
            ]
        ),
        sub_agents=["researcher"],
    )
    async with runtime(one) as rt:
        with anyio.fail_after(5):
            result = await rt.session("s", agent=one).run("Go")
        assert result.output == "Asked."
        (task,) = [t async for t in rt.tasks()]
        assert (await task.record()).status == "running"
        problem = (await task.get()).problem
        assert problem is not None
        assert problem.code in ("AGENT_UNKNOWN", "NO_WORKER")
    child = researcher()
    async with runtime(child) as rt:
        await rt.work(once=True)
        assert (await rt.task(task.id).record()).status == "completed"
    async with runtime(one) as rt:
        assert (await rt.session("s").run()).output == "done"
        assert await deliveries(rt) == [f"{task.id}.1"]


async def test_mail_to_a_failed_parent_waits_until_it_is_started_again(
    runtime: MakeRuntime,
) -> None:
    """S1.23"""
    one = lead({"text": "Started."}, {"error": "no key"})
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        assert (await rt.session("s").run("Fail")).state == "failed"
        await rt.session(task.session_id).run()
        with anyio.fail_after(5):
            assert (await rt.session("s").get()).state == "failed"
        set_turns(one, {"text": "Started."}, {"text": "Better."})
        result = await rt.session("s").run("Again")
        assert result.state == "completed"
        assert await deliveries(rt) == [f"{task.id}.1"]


async def test_a_child_that_says_the_same_thing_twice_is_delivered_twice(
    runtime: MakeRuntime,
) -> None:
    """S1.17, S1.23"""
    one = lead({"text": "Started."}, child=researcher({"text": "Same."}, {"text": "Same."}))
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        await rt.session("s").run()
        await task.resume("Again?")
        await rt.session("s").run()
        assert await deliveries(rt) == [f"{task.id}.1", f"{task.id}.2"]
        notes = [
            e.data["content"]
            for e in await rt.session("s").events()
            if e.type == "user" and e.data.get("by") == BACKGROUND_AUTHOR
        ]
        assert all("Same." in note for note in notes)


async def test_the_answer_for_a_caller_that_left_reaches_the_parent_later(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S1.19, S1.20: until the reservation ends it is not delivered to anybody."""
    one = lead({"text": "Started."})
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        await rt.session("s").run()
        record = await task.record()
        await rt._service.background.resume(record, "More?", wait_ms=60_000)
        await rt.session(task.session_id).run()
        await rt.work(once=True)
        assert await deliveries(rt) == [f"{task.id}.1"]
    clock.advance("66s")
    async with runtime(one) as rt:
        await rt.work(once=True)
        assert await deliveries(rt) == [f"{task.id}.1", f"{task.id}.2"]


async def test_a_worker_that_runs_once_drives_a_parent_whose_child_ends_last(
    runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.23: the child ends right after the worker has found nothing due for the parent."""
    may_end = anyio.Event()

    @tool
    async def think() -> str:
        await may_end.wait()
        return "thought"

    child = researcher({"calls": [call("think")]}, {"text": "First."}, tools=[think])
    one = lead({"text": "Started."}, child=child)
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        drives = rt._service.drives
        start_due = drives.start_due

        async def outlasted(name: str, limit: int, **options: Any) -> Any:
            started = await start_due(name, limit, **options)
            while name == "lead" and not started and drives.running:
                may_end.set()
                await drives.drive_ended().wait()
            return started

        monkeypatch.setattr(drives, "start_due", outlasted)
        await rt.work(once=True)
        assert await deliveries(rt) == [f"{task.id}.1"]
