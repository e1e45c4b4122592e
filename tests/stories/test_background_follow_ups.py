"""Follow-ups that an agent allows by `background`: to ended tasks, and one queued message."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import takewhile
from typing import Any

import anyio
import pytest
from tests.support.child_tasks import child_task
from tests.support.runtimes import MakeRuntime

from perdure import Agent, Conflict, Runtime, tool
from perdure.app import service_of
from perdure.background import BackgroundManager
from perdure.core.log.codec import NAMES
from perdure.core.session.children import BACKGROUND_AUTHOR
from perdure.errors import ConfigError, PerdureError
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.records.log import read_log
from perdure.runtime.transfer.create import SessionNames, create_session, session_from_log
from perdure.store.memory import MemoryStore
from perdure.testing import Crashed, ManualClock, ScriptedModel, crash_after

QUEUE = {"queue_message": True}
ENDED = {"resume_ended": True}
LOOKS: dict[str, Any] = {"calls": [{"tool": "look", "args": {}}]}


@tool(deferred=True)
def look() -> str:
    """Look."""
    return "ref"


def researcher(*turns: dict[str, Any], **options: Any) -> Agent[str]:
    script = turns or (LOOKS, {"text": "First."}, {"text": "Second."}, {"text": "Third."})
    return Agent("researcher", model=ScriptedModel(script), tools=[look], **options)


def lead(child: Agent[Any], *turns: dict[str, Any], **options: Any) -> Agent[str]:
    script = turns or ({"text": "Started."}, {"text": "Read."}, {"text": "Read."})
    return Agent("lead", model=ScriptedModel(script), sub_agents=[child], **options)


async def look_result(rt: Runtime) -> None:
    """Settle the call of the child that waits."""
    (call,) = [call async for call in rt.pending() if call.tool == "look"]
    await rt.submit_result(call.id, "seen")


async def delivered(rt: Runtime) -> list[str]:
    """Return the mail that notified the parent, in its order."""
    log = await rt.session("s").events()
    users = [e.data for e in log if e.type == "user" and e.data.get("by") == BACKGROUND_AUTHOR]
    return [mail for data in users for mail in data["mail"]]


async def waiting_task(rt: Runtime) -> Any:
    """Return a task of the session `s` whose child waits for a result."""
    await rt.session("s", agent="lead").run("Start", key="start")
    task = await rt.spawn("researcher", "Tides?", parent="s", key="tides")
    await rt.session("s").run()
    return task


async def messages(rt: Runtime, task: Any) -> list[str]:
    log = await rt.session(task.session_id).events()
    return [e.data["content"] for e in log if e.type == "user"]


async def test_a_message_to_a_running_task_is_queued_and_starts_a_run_when_that_has_ended(
    runtime: MakeRuntime,
) -> None:
    """S1.44"""
    async with runtime(lead(researcher(), background=QUEUE)) as rt:
        task = await waiting_task(rt)
        await task.resume("More?")
        record = await child_task(rt, task)
        assert (record.status, record.resume_count, record.is_queued) == ("running", 0, True)
        assert await messages(rt, task) == ["Tides?"]
        await look_result(rt)
        await rt.session("s").run()
        record = await child_task(rt, task)
        assert (record.status, record.resume_count, record.is_queued) == ("completed", 1, False)
        assert await messages(rt, task) == ["Tides?", "More?"]
        assert (await task.get()).output_json == "Second."
        assert await delivered(rt) == [f"{task.id}.1", f"{task.id}.2"]


async def test_a_second_queued_message_is_refused_because_the_queue_is_full(
    runtime: MakeRuntime,
) -> None:
    """S1.44, S1.14"""
    async with runtime(lead(researcher(), background=QUEUE)) as rt:
        task = await waiting_task(rt)
        outcomes: list[str] = []

        async def resume(number: int) -> None:
            try:
                await task.resume(f"More {number}?")
                outcomes.append("queued")
            except Conflict as error:
                outcomes.append("full" if "queue full" in error.message else error.message)

        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(resume, number)
        assert sorted(outcomes) == ["full"] * 3 + ["queued"]
        await look_result(rt)
        await rt.session("s").run()
        assert len(await messages(rt, task)) == 2
        assert (await child_task(rt, task)).resume_count == 1
        await task.resume("And more?", block=True)  # there is room again
        assert (await child_task(rt, task)).resume_count == 2


async def test_a_message_is_queued_while_a_follow_up_is_answered(runtime: MakeRuntime) -> None:
    """S1.44: also in `resumed`"""
    async with runtime(lead(researcher({"text": "First."}, LOOKS), background=QUEUE)) as rt:
        task = await waiting_task(rt)
        await task.resume("Look.")
        await rt.session("s").run()
        assert (await child_task(rt, task)).status == "resumed"
        await task.resume("More?")
        with pytest.raises(Conflict, match="queue full"):
            await task.resume("And more?")


@pytest.mark.parametrize("allowed", [{}, ENDED, {"queue_message": False}])
async def test_nothing_is_queued_unless_it_is_allowed(
    runtime: MakeRuntime, allowed: dict[str, bool]
) -> None:
    """S1.44, S1.9"""
    async with runtime(lead(researcher(), background=allowed)) as rt:
        task = await waiting_task(rt)
        with pytest.raises(Conflict) as caught:
            await task.resume("More?")
        assert caught.value.code == "NOT_COMPLETED"
        assert (await child_task(rt, task)).is_queued is False


async def test_a_caller_that_waits_for_its_queued_message_gets_its_own_answer(
    runtime: MakeRuntime,
) -> None:
    """S1.44, S1.17, S1.18"""
    async with runtime(lead(researcher(), background=QUEUE)) as rt:
        task = await waiting_task(rt)
        answers: list[Any] = []

        async def ask() -> None:
            answers.append((await task.resume("More?", block=True)).output)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                while not (await child_task(rt, task)).is_queued:
                    await anyio.lowlevel.checkpoint()
                await look_result(rt)
        assert answers == ["Second."]
        await rt.session("s").run()
        assert await delivered(rt) == [f"{task.id}.1"]


async def test_the_model_of_a_parent_waits_for_the_answer_to_its_queued_message(
    runtime: MakeRuntime,
) -> None:
    """S1.44, S1.17"""
    one = lead(researcher(), background=QUEUE)
    async with runtime(one) as rt:
        task = await waiting_task(rt)
        ask = {"task_id": task.id, "message": "More?", "block": True}
        turns: list[dict[str, Any]] = [
            {"text": "Started."},
            {"calls": [{"tool": "background_resume", "args": ask}]},
            {"text": "Read."},
            {"text": "Read."},
        ]
        assert isinstance(one.model, ScriptedModel)
        one.model.turns = ScriptedModel(turns).turns
        assert (await rt.session("s").run("Ask")).state == "waiting"
        await look_result(rt)
        assert (await rt.session("s").run()).state == "completed"
        log = await rt.session("s").events()
        (answer,) = [json.loads(e.data["result"]) for e in log if e.type == "tool_result"]
        assert (answer["output"], answer["resumeCount"]) == ("Second.", 1)
        assert await delivered(rt) == [f"{task.id}.1"]


@pytest.mark.parametrize("verb", ["cancel", "clear"])
async def test_a_queued_message_is_dropped_with_its_task(runtime: MakeRuntime, verb: str) -> None:
    """S1.44, S1.30"""
    async with runtime(lead(researcher(), background=QUEUE)) as rt:
        task = await waiting_task(rt)
        await task.resume("More?")
        if verb == "cancel":
            await task.cancel(by="ana")
            record = await child_task(rt, task)
            assert (record.status, record.is_queued) == ("cancelled", False)
        else:
            await BackgroundManager(rt, "s").background_clear()
        await rt.session("s").run()
        await rt.session(task.session_id).run()
        assert await messages(rt, task) == ["Tides?"]
        assert (await rt.session(task.session_id).get()).state == "cancelled"


async def test_a_queued_message_starts_a_run_after_one_that_failed(runtime: MakeRuntime) -> None:
    """S1.44"""
    child = researcher(LOOKS, {"error": "no key"}, retries=0)
    async with runtime(lead(child, background=QUEUE)) as rt:
        task = await waiting_task(rt)
        await task.resume("More?")
        await look_result(rt)
        await rt.session("s").run()
        record = await child_task(rt, task)
        assert (record.status, record.resume_count) == ("error", 1)
        assert await messages(rt, task) == ["Tides?", "More?"]
        assert await delivered(rt) == [f"{task.id}.1", f"{task.id}.2"]


@pytest.mark.parametrize("status", ["error", "cancelled"])
async def test_a_task_that_has_ended_is_resumed_where_it_is_allowed(
    runtime: MakeRuntime, status: str
) -> None:
    """S1.44, S1.9, S1.15"""
    child = researcher({"error": "no key"} if status == "error" else LOOKS, retries=0)
    async with runtime(lead(child, background=ENDED)) as rt:
        task = await waiting_task(rt)
        if status == "cancelled":
            await task.cancel(by="ana")
        assert (await child_task(rt, task)).status == status
        assert isinstance(child.model, ScriptedModel)
        child.model.turns = ScriptedModel([{"text": "Better."}] * 3).turns
        result = await task.resume("Again.", block=True)
        assert result.output == "Better."
        record = await child_task(rt, task)
        assert (record.status, record.resume_count) == ("completed", 1)


async def test_a_task_without_a_parent_follows_its_own_agent(runtime: MakeRuntime) -> None:
    """S1.44"""
    async with runtime(researcher(background=QUEUE)) as rt:
        task = await rt.spawn("researcher", "Tides?")
        await rt.session(task.session_id).run()
        await task.resume("More?")
        with pytest.raises(Conflict, match="queue full"):
            await task.resume("And more?")
        await look_result(rt)
        await rt.session(task.session_id).run()
        assert (await task.get()).output_json == "Second."


def test_the_model_is_told_what_its_agent_allows() -> None:
    """S1.44"""
    texts = []
    for background in ({}, ENDED, QUEUE):
        rt = Runtime(MemoryStore(), agents=[lead(researcher(), background=background)])
        resume = service_of(rt).agents.get("lead").tools["background_resume"]
        texts.append(resume.description)
    assert ["failed" in text for text in texts] == [False, True, False]
    assert ["queued" in text for text in texts] == [False, False, True]


@pytest.mark.parametrize(
    "background", [{"queue": True}, {"queue_message": 1}, {"resume_ended": "yes"}]
)
def test_an_unknown_setting_of_background_is_refused(background: dict[str, Any]) -> None:
    """S1.44"""
    with pytest.raises(ConfigError, match="background"):
        researcher(background=background)


async def test_a_queued_message_survives_a_crash_after_every_commit() -> None:
    """S1.44: it starts one run, and each outcome reaches the parent once"""
    for point in range(1, await commits_of_a_play() + 1):
        store = await crashed_play(point)
        with crash_after(commits=None):
            await play(store)


async def test_a_clear_between_the_end_of_a_run_and_the_next_drops_the_message() -> None:
    """S1.44, S1.29: nothing starts after a clear, also if a crash left the message behind"""
    async with between_runs() as (rt, task):
        with pytest.raises(Conflict, match="queue full"):
            await task.resume("And more?")
        await BackgroundManager(rt, "s").background_clear()
        await rt.session(task.session_id).run()
        assert await messages(rt, task) == ["Tides?"]


@pytest.mark.parametrize("by", ["ana", BACKGROUND_AUTHOR])
async def test_a_cancel_between_the_end_of_a_run_and_the_next_ends_the_next(by: str) -> None:
    """S1.44, S1.30: the message is in the history, and no model is asked about it"""
    async with between_runs() as (rt, task):
        await task.cancel(by=by)
        await rt.session(task.session_id).run()
        record = await child_task(rt, task)
        assert (record.status, record.resume_count, record.is_queued) == ("cancelled", 1, False)
        assert await messages(rt, task) == ["Tides?", "More?"]
        assert (await rt.session(task.session_id).get()).state == "cancelled"
        await rt.session("s").run()
        is_quiet = by == BACKGROUND_AUTHOR
        assert await delivered(rt) == [f"{task.id}.1"] + ([] if is_quiet else [f"{task.id}.2"])
        with pytest.raises(Conflict, match="Only running tasks can be cancelled"):
            await task.cancel(by=by)


async def test_the_cancel_of_a_parent_ends_a_follow_up_that_was_queued_before() -> None:
    """S1.44, S1.30"""
    async with between_runs() as (rt, task):
        await rt.session("s").send("Go on")
        await rt.session("s").cancel(by="ana")
        await rt.work(once=True)
        record = await child_task(rt, task)
        assert (record.status, record.is_queued) == ("cancelled", False)
        assert (await rt.session(task.session_id).get()).state == "cancelled"


async def test_a_task_with_a_queued_message_is_in_lists_and_has_no_answer_yet() -> None:
    """S1.44, S1.17: the last output is not the answer to the message"""
    async with between_runs() as (rt, task):
        listed = {
            status: [item.id async for item in rt.background_tasks(status=status)]
            for status in TASKS
        }
        assert listed == {"completed": [task.id], "resumed": [], None: [task.id]}
        service = rt._service.background
        assert "output" not in await service.outcome(await child_task(rt, task))


async def test_the_deletion_of_a_child_drops_the_message_that_was_queued_for_it() -> None:
    """S1.44, S1.39"""
    async with between_runs() as (rt, task):
        await rt.session(task.session_id).delete()
        record = await child_task(rt, task)
        assert (record.status, record.is_queued) == ("cancelled", False)


@pytest.mark.parametrize("has_parent", [True, False])
async def test_a_rebuilt_task_still_has_its_queued_message(
    runtime: MakeRuntime, has_parent: bool
) -> None:
    """S1.44, S1.33: the log of its parent, or its own, has it"""
    child = researcher(background=QUEUE)
    async with runtime(lead(child, background=QUEUE)) as rt:
        if has_parent:
            task = await waiting_task(rt)
        else:
            task = await rt.spawn("researcher", "Tides?")
            await rt.session(task.session_id).run()
        await task.resume("More?")
        before, owner = await child_task(rt, task), "s" if has_parent else task.session_id
        await rebuild(rt, owner)
        after = await child_task(rt, task)
        names = ("status", "run", "number", "resume_count", "is_queued", "answer_number")
        assert [getattr(after, n) for n in names] == [getattr(before, n) for n in names]
        with pytest.raises(Conflict, match="queue full"):
            await task.resume("And more?")
        await look_result(rt)
        await rt.session(owner).run()
        await rt.session(task.session_id).run()
        assert (await task.get()).output_json == "Second."
        await rebuild(rt, owner)
        record = await child_task(rt, task)
        assert (record.status, record.number, record.resume_count) == ("completed", 2, 1)


@pytest.mark.parametrize("verb", ["cancel", "clear"])
async def test_a_task_whose_end_its_parent_has_lost_can_be_ended(
    runtime: MakeRuntime, verb: str
) -> None:
    """S1.30, S1.34: a repair may remove the last events of the parent's log."""
    async with runtime(lead(researcher({"text": "First."}))) as rt:
        task = await waiting_task(rt)
        await rebuild(rt, "s", until="delegation_complete")
        assert (await child_task(rt, task)).status == "running"
        with anyio.fail_after(30):
            if verb == "cancel":
                await task.cancel(by="ana")
                assert (await child_task(rt, task)).status == "cancelled"
                assert (await rt.session(task.session_id).get()).output == "First."
            else:
                await BackgroundManager(rt, "s").background_clear()
                assert [item async for item in rt.background_tasks()] == []


@pytest.mark.parametrize("verb", ["cancel", "clear"])
async def test_a_task_whose_parent_is_repaired_while_it_is_ended_is_ended(
    runtime: MakeRuntime, verb: str
) -> None:
    """S1.29, S1.34: the repair replaces the stream that the caller has read."""
    async with runtime(lead(researcher({"text": "First."}))) as rt:
        task, inbox = await waiting_task(rt), rt._resources.child_inbox
        before = await inbox.find("", task.id)
        await rebuild(rt, "s", until="delegation_complete")
        with anyio.fail_after(10):
            if verb == "cancel":
                await inbox.end_child(before.task, before.entry.stream, "ana", None)
                assert (await child_task(rt, task)).status == "cancelled"
            else:
                assert await inbox.clear_task(before.task, "ana") is not None
                assert [item async for item in rt.background_tasks()] == []


@pytest.mark.parametrize("deleted", ["parent", "child"])
async def test_a_clear_goes_on_if_a_session_is_deleted_meanwhile(
    deleted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.29: the clear of a task with a queued message writes to its parent and to its child."""
    async with between_runs() as (rt, task):
        store, inbox, names = rt._resources.store, rt._resources.session_inbox, {"parent": "s"}
        commit, ref = store.commit, SessionRef("", names.get(deleted, task.session_id))

        async def erase_first(*args: Any, **options: Any) -> Any:
            monkeypatch.undo()
            await inbox.erase(ref)
            return await commit(*args, **options)

        monkeypatch.setattr(store, "commit", erase_first)
        cleared = await BackgroundManager(rt, "s").background_clear()
        assert cleared["cleared"] == (1 if deleted == "child" else 0)
        assert [item async for item in rt.background_tasks()] == []


async def test_a_message_that_was_queued_for_a_repaired_child_is_dropped_by_a_clear() -> None:
    """S1.44, S1.29: the task still names the stream that the repair has replaced"""
    async with between_runs() as (rt, task):
        await rebuild(rt, task.session_id)
        await BackgroundManager(rt, "s").background_clear()
        await rt.session(task.session_id).run()
        assert await messages(rt, task) == ["Tides?"]


async def test_a_caller_waits_for_its_own_run_whoever_resumes_the_task_next(
    runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.17: its follow-up may be answered, and another one sent, before it looks"""
    child = researcher(*[{"text": text} for text in ("First.", "Second.", "Third.")])
    async with runtime(lead(child)) as rt:
        task = await waiting_task(rt)
        inbox = rt._resources.session_inbox
        send, sent = inbox.send, list[str]()

        async def send_and_answer(*args: Any, **options: Any) -> Any:
            receipt = await send(*args, **options)
            sent.append("")
            if len(sent) == 1:
                await rt.session(task.session_id).run()
                await task.resume("And more?")
            return receipt

        monkeypatch.setattr(inbox, "send", send_and_answer)
        record = await rt._service.background.resume(await child_task(rt, task), "More?", wait_ms=0)
        assert (record.answer_number, record.resume_count) == (2, 1)


async def test_an_answer_is_not_lost_if_another_caller_resumes_the_task_before_it_is_taken(
    runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.17, S1.23: each caller gets the answer to its own message, and the parent the others"""
    turns = [{"text": text} for text in ("First.", "Second.", "Third.", "Fourth.", "Fifth.")]
    async with runtime(lead(researcher(*turns), *[{"text": "Read."}] * 9)) as rt:
        task, service = await waiting_task(rt), rt._service.background
        wait, waits = service.wait, list[str]()

        async def wait_and_resume(*args: Any, **options: Any) -> Any:
            record = await wait(*args, **options)
            waits.append("")
            if len(waits) in (1, 3):
                await task.resume("And more?")
                await rt.session(task.session_id).run()
            return record

        monkeypatch.setattr(service, "wait", wait_and_resume)
        answer = await BackgroundManager(rt, "s").background_resume(task.id, "More?", block=True)
        assert (answer["output"], answer["resumeCount"]) == ("Second.", 1)
        monkeypatch.undo()
        await rt.session("s").run()
        assert await delivered(rt) == [f"{task.id}.1", f"{task.id}.3"]
        waits += [""]
        monkeypatch.setattr(service, "wait", wait_and_resume)
        result = await task.resume("And then?", block=True)
        assert result.output == "Fourth."
        monkeypatch.undo()
        await rt.session("s").run()
        assert sorted(await delivered(rt)) == [f"{task.id}.{number}" for number in (1, 3, 5)]


TASKS = ("completed", "resumed", None)


async def rebuild(rt: Runtime, session: str, until: str = "") -> None:
    """Create a session again from its log before an event, as a repair of the session does."""
    entry = await rt._resources.session_inbox.session_entry(SessionRef("", session))
    log = (await read_log(rt._resources.store, entry)).events
    log = [*takewhile(lambda item: NAMES[type(item.event)] != until, log)]
    names = SessionNames("", session, entry.record.agent)
    copy = session_from_log(names, log, rt._resources.store.now())
    await create_session(rt._resources.store, replace(copy, replaces=entry.stream))
    rt._resources.cache.remove(entry.stream)


@asynccontextmanager
async def between_runs() -> AsyncIterator[tuple[Runtime, Any]]:
    """Yield a task whose run has ended, and whose queued message has not started the next one."""
    for point in range(1, await commits_of_a_play() + 1):
        store = await crashed_play(point)
        with crash_after(commits=None):
            async with Runtime(store, agents=[lead(researcher(), background=QUEUE)]) as rt:
                tasks = [task async for task in rt.background_tasks()]
                records = [await child_task(rt, task) for task in tasks]
                if records and not records[0].is_active and records[0].is_queued:
                    yield rt, tasks[0]
                    return
    pytest.fail("no crash left a queued message behind")


async def commits_of_a_play() -> int:
    with crash_after(commits=None) as whole:
        await play(MemoryStore(ManualClock()))
    assert len(whole.commits) > 8
    return len(whole.commits)


async def crashed_play(point: int) -> MemoryStore:
    """Return what a program leaves behind that is killed after so many commits."""
    store = MemoryStore(ManualClock())
    with crash_after(commits=point) as crash:
        try:
            await play(store)
        except (PerdureError, Crashed, BaseExceptionGroup):
            assert crash.is_over
    return store


async def play(store: MemoryStore) -> None:
    """Queue a message, as a program that may be started again, and check how it ends."""
    async with Runtime(store, agents=[lead(researcher(), background=QUEUE)]) as rt:
        task = await waiting_task(rt)
        await rt._service.background.resume(await child_task(rt, task), "More?", key="more")
        if [call async for call in rt.pending()]:
            await look_result(rt)
        await rt.session("s").run()
        assert await messages(rt, task) == ["Tides?", "More?"]
        record = await child_task(rt, task)
        assert (record.status, record.resume_count, record.is_queued) == ("completed", 1, False)
        assert sorted(await delivered(rt)) == [f"{task.id}.1", f"{task.id}.2"]
