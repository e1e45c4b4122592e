"""Background agents at the worst moment: two readers, late callers, deletions, damaged logs."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from tests.support.child_tasks import child_task
from tests.support.findings import problem_of
from tests.support.runtimes import MakeRuntime

from perdure import Agent, Conflict, NotFound, Runtime, tool
from perdure.app import around_store
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
        assert (result.message or "").startswith("The task is still running. It waits")
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
        assert (await child_task(rt, task)).resume_count == 1


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
        clear = inbox.clear_task

        async def resumed_first(*args: Any, **options: Any) -> Any:
            monkeypatch.setattr(inbox, "clear_task", clear)
            await task.resume("More?")
            return await clear(*args, **options)

        monkeypatch.setattr(inbox, "clear_task", resumed_first)
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
        record = await background.resume(await child_task(rt, task), "More?", wait_ms=60_000)
        await rt.work(once=True)  # the parent waits for the end of the reservation
        await background.wait_and_take(record, 60_000)
        with anyio.fail_after(5):
            await rt.session("s").run()
        assert await deliveries(rt) == [f"{task.id}.1", f"{task.id}.2"]


async def test_a_waiting_caller_takes_only_the_answer_that_it_gets(
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
            await (await rt.background_task(task.id)).resume("Mine too")
            return drive

        monkeypatch.setattr(background._runs, "follow", another_follow_up)
        with anyio.fail_after(5):
            result = await task.resume("More?", block=True)
        assert (result.output, await deliveries(rt)) == (
            "Second.",
            [f"{task.id}.{number}" for number in (1, 2)],
        )
        assert (await child_task(rt, task)).status == "resumed"
        await rt.session("s").run()
        assert await deliveries(rt) == [f"{task.id}.{number}" for number in (1, 2, 3)]


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
        (task,) = [t async for t in rt.background_tasks()]
        assert (await child_task(rt, task)).status == "running"
        problem = problem_of(await task.get())
        assert problem is not None
        assert problem.code in ("AGENT_UNKNOWN", "NO_WORKER")
    child = researcher()
    async with runtime(child) as rt:
        await rt.work(once=True)
        assert (await child_task(rt, task.id)).status == "completed"
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
        record = await child_task(rt, task)
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


class Meanwhile:
    """Store on which something happens right after a session was read at rest, once."""

    def __init__(self, store: Store, session_id: str, hook: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._stream = session_stream("", session_id)
        self._hook: Callable[[], Awaitable[None]] | None = hook

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        page = await self._store.read(stream, after, limit)
        hook = self._hook
        is_at_rest = limit == 0 and page.holder is None and page.due is None
        if stream == self._stream and is_at_rest and hook is not None:
            self._hook = None
            await hook()
        return page


async def test_a_child_that_ends_while_its_tree_is_read_is_not_overlooked(tmp_path: Path) -> None:
    """S1.23: the parent was read at rest, and its child ends in another process before its turn."""
    url = f"sqlite:///{tmp_path}/h.db"

    async def end_the_child() -> None:
        async with Runtime(url, agents=[researcher()]) as other:
            await other.work(once=True, agents=["researcher"])

    token = around_store.set(lambda store: cast("Store", Meanwhile(store, "s", end_the_child)))
    model = ScriptedModel(
        [
            {"calls": [call("background_task", agent="researcher", prompt="Tides?")]},
            {"text": "Asked."},
            {"text": "Read."},
        ]
    )
    one = Agent("lead", model=model, sub_agents=["researcher"])
    try:
        async with Runtime(url, agents=[one]) as rt:
            result = await rt.session("s", agent=one).run("Go")
    finally:
        around_store.reset(token)
    assert (result.state, result.output) == ("completed", "Read.")


class CountingReads:
    """Store that counts the reads of each stream."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reads: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        self.reads[stream] += 1
        return await self._store.read(stream, after, limit)


async def test_a_run_reads_no_child_that_has_ended(tmp_path: Path) -> None:
    """A lead may delegate a thousand times: its children that have ended cost a run nothing."""
    stores: list[CountingReads] = []

    def around(store: Store) -> Store:
        stores.append(CountingReads(store))
        return cast("Store", stores[-1])

    one = lead(*[{"text": "Read."}] * 9)
    token = around_store.set(around)
    try:
        async with Runtime(f"sqlite:///{tmp_path}/h.db", agents=[one]) as rt:
            session = rt.session("s", agent=one)
            await session.run("Start")
            for _ in range(5):
                await rt.spawn("researcher", "Tides?", parent="s")
            await session.run()
            ended = [
                session_stream("", task.session_id)
                async for task in rt.background_tasks(parent="s")
            ]
            stores[0].reads.clear()
            await rt.spawn("researcher", "Moons?", parent="s")
            result = await session.run()
    finally:
        around_store.reset(token)
    assert (len(ended), result.output) == (5, "Read.")
    assert [stream for stream in ended if stores[0].reads[stream]] == []


async def test_the_usage_of_a_tree_grows_with_a_follow_up(runtime: MakeRuntime) -> None:
    """A snapshot keeps the sum only while no child can add to it."""
    child = researcher(*[{"text": "Found."}] * 3)
    one = lead(*[{"text": "Read."}] * 9, child=child)
    async with runtime(one) as rt:
        session = rt.session("s", agent=one)
        await session.run("Start")
        task = await rt.spawn("researcher", "Tides?", parent="s")
        await session.run()
        counts = [(await session.get()).tree_usage.requests for _ in range(3)]
        assert counts == [3, 3, 3]
        await task.resume("More.")
        await session.run()
        assert (await session.get()).tree_usage.requests == 5


async def test_the_end_of_a_child_keeps_what_another_process_wrote_of_its_task(
    runtime: MakeRuntime,
) -> None:
    """S1.24, S1.44: the process that launched the child knows the task only as it was then."""
    turns: list[dict[str, Any]] = [{"calls": [call("look")]}, {"text": "First."}, {"text": "2nd."}]
    child, script = researcher(*turns, tools=[look]), ScriptedModel([{"text": "Read."}] * 5)
    one = Agent("lead", model=script, sub_agents=[child], background={"queue_message": True})
    async with runtime(one) as rt, runtime(one) as other:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        (below,) = (await rt.session(task.session_id).run()).pending
        await (await other.background_task(task.id)).resume("More?")
        await rt.submit_result(below.id, "seen")
        await rt.session("s").run()
        record = await child_task(rt, task)
        assert (record.status, record.resume_count, record.is_queued) == ("completed", 1, False)
        assert await deliveries(rt) == [f"{task.id}.1", f"{task.id}.2"]


async def test_the_process_that_launched_a_child_ends_a_run_that_another_one_started(
    runtime: MakeRuntime,
) -> None:
    """S1.13, S1.23"""
    child = researcher()
    one = lead(*[{"text": "Read."}] * 5, child=child)
    async with runtime(one) as rt, runtime(one) as other:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        await other.session("s").run()
        await (await other.background_task(task.id)).resume("More?")
        await rt.session(task.session_id).run()
        await other.session("s").run()
        record = await child_task(rt, task)
        assert (record.status, record.resume_count) == ("completed", 1)
        assert await deliveries(rt) == [f"{task.id}.1", f"{task.id}.2"]
        assert await entry_of(rt, task.id) == record


async def test_a_child_ends_alone_if_another_process_erased_its_parent(
    runtime: MakeRuntime,
) -> None:
    """S1.39: also in the process that launched it for that parent."""
    child = slow_researcher()
    one = lead(*[{"text": "Read."}] * 5, child=child)
    async with runtime(one) as rt, runtime(one) as other:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        (below,) = (await rt.session(task.session_id).run()).pending
        await other._resources.session_inbox.erase(SessionRef("", "s"))
        await rt.submit_result(below.id, "seen")
        assert (await rt.session(task.session_id).run()).output == "Seen."
        with pytest.raises(NotFound):
            await child_task(rt, task)


async def test_the_time_that_a_child_takes_does_not_count_for_its_parent(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S4.39, S1.22: its run waits, and a caller may launch another child meanwhile."""
    child = slow_researcher()
    script = ScriptedModel([{"text": "Started."}])
    one = Agent("lead", model=script, sub_agents=[child], timeout="60s")
    async with runtime(one) as rt:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        waits = call("background_output", task_id=task.id, block=True, timeout=600_000)
        set_turns(one, {"text": "Started."}, {"calls": [waits]}, {"text": "Got it."})
        await rt.session("s").run("Read it")
        clock.advance(300)
        await rt.spawn("researcher", "Moons?", parent="s")
        clock.advance(200)
        (below,) = (await rt.session(task.session_id).get()).pending
        await rt.submit_result(below.id, "seen")
        result = await rt.session("s").run()
        assert (result.state, result.output) == ("completed", "Got it.")


@pytest.mark.parametrize("verb", ["the task", "its session", "its parent"])
async def test_a_caller_that_waits_learns_that_the_task_was_deleted_elsewhere(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.36: an erased session grows no more, so nothing reports to the caller that it changed."""
    url, one = f"sqlite:///{tmp_path}/h.db", lead({"text": "Started."}, child=slow_researcher())
    async with Runtime(url, agents=[one]) as rt, Runtime(url) as other:
        task = await rt.spawn("researcher", "Tides?", parent=await begun(rt, one))
        await rt.session(task.session_id).run()
        background, ends, is_waiting = rt._service.background, list[str](), anyio.Event()
        get, reads = background.get, list[str]()

        async def counted(tenant: str | None, task_id: str) -> ChildTask:
            reads.append(task_id)
            if len(reads) == 2:  # the first one found the task; it has not ended
                is_waiting.set()
            return await get(tenant, task_id)

        async def wait() -> None:
            try:
                ends.append((await task.output(block=True, timeout=60)).task.status)
            except NotFound as error:
                ends.append(error.code)

        monkeypatch.setattr(background, "get", counted)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await is_waiting.wait()
                if verb == "the task":
                    await (await other.background_task(task.id)).delete()
                else:
                    await other.session("s" if verb == "its parent" else task.session_id).delete()
        # The run is cancelled first, then the session erased, and the task last.
        assert ends[0] in ("cancelled", "SESSION_NOT_FOUND", "TASK_NOT_FOUND")
