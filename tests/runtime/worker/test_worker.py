"""A worker among many sessions, with a store that has its moods, and while it closes."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from tests.support.endless_tool import endless_tool

from perdure import Agent, Runtime, tool
from perdure.app import service_of
from perdure.core.log.events import AgentStart
from perdure.errors import ConfigError
from perdure.runtime.engine import drives
from perdure.runtime.engine.feed import FeedReader
from perdure.runtime.records.cache import SessionCache
from perdure.runtime.records.entries import SessionRef
from perdure.runtime.worker import worker
from perdure.store.base import (
    Check,
    Entry,
    Feed,
    Fenced,
    Heads,
    Page,
    Put,
    Record,
    Unavailable,
    Write,
)
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel

MakeRuntime = Callable[..., Runtime]


def agent(*turns: dict[str, Any], name: str = "helper", **options: Any) -> Agent[str]:
    return Agent(name, model=ScriptedModel(turns), **options)


async def test_an_agent_with_much_to_do_does_not_keep_the_others_waiting(
    in_memory: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "MAX_DRIVES", 1)
    order: list[str] = []

    def told(name: str) -> Agent[str]:
        @tool
        def act() -> str:
            order.append(name)
            return "ok"

        return agent({"calls": [{"tool": "act"}]}, {"text": "Done."}, name=name, tools=[act])

    busy, other = told("a"), told("b")
    async with in_memory(busy, other) as rt:
        for n in range(10):
            await rt.session(f"a{n}", agent=busy).send("Go")
        await rt.session("b", agent=other).send("Go")
        with anyio.fail_after(20):
            await rt.work(once=True)
    assert order.index("b") < 3


async def test_a_worker_drives_only_the_agents_it_is_for(in_memory: MakeRuntime) -> None:
    mine, other = agent({"text": "Mine."}, name="mine"), agent({"text": "Yours."}, name="other")
    async with in_memory(mine, other) as rt:
        for name in ("mine", "other"):
            await rt.session(name, agent=name).send("Go")
        await rt.work(once=True, agents=["mine"])
        assert (await rt.session("mine").get()).output == "Mine."
        assert (await rt.session("other").get()).state == "pending"
        await rt.work(once=True, only="deliveries")
        assert (await rt.session("other").get()).state == "pending"
        await rt.work(once=True, only="sessions")
        assert (await rt.session("other").get()).output == "Yours."


async def test_a_worker_drives_no_more_sessions_at_a_time_than_it_may(
    in_memory: MakeRuntime,
) -> None:
    running, most = 0, 0

    @tool
    async def act() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await checkpoint()
        running -= 1
        return "ok"

    one = agent({"calls": [{"tool": "act"}]}, {"text": "Done."}, tools=[act])
    async with in_memory(one) as rt:
        for n in range(6):
            await rt.session(f"s{n}", agent=one).send("Go")
        await rt.work(once=True, concurrency=2)
        assert [(await rt.session(f"s{n}").get()).output for n in range(6)] == ["Done."] * 6
    assert most <= 2


@pytest.mark.parametrize(
    "part, why",
    [
        ({"agents": ["nobody"]}, "nobody: there is no such agent"),
        ({"queues": []}, "queues"),
        ({"only": "letters"}, "only"),
        ({"concurrency": 0}, "concurrency"),
    ],
)
async def test_a_part_of_the_work_that_there_is_not_is_refused(
    in_memory: MakeRuntime, part: dict[str, Any], why: str
) -> None:
    async with in_memory(agent()) as rt:
        with pytest.raises(ConfigError, match=why):
            await rt.work(once=True, **part)


async def test_a_worker_that_waits_gathers_nothing(in_memory: MakeRuntime) -> None:
    """It used to keep something of every wait until a drive ended."""
    async with in_memory(agent()) as rt:
        driving = rt._service.drives
        waited = {id(driving.drive_ended()) for _ in range(3)}
        assert len(waited) == 1


@pytest.mark.parametrize("missed", ["session", "started"])
async def test_a_worker_that_starts_while_the_store_is_away_works_once_it_is_back(
    missed: str,
) -> None:
    """It used to take everything that runs beside it along."""

    class Away(MemoryStore):
        failures = 1

        async def find(self, kind: str, **conditions: Any) -> Page:
            if kind == missed and self.failures:
                self.failures -= 1
                raise Unavailable("away")
            return await super().find(kind, **conditions)

    one = agent({"text": "Hello."})
    async with Runtime(Away(), agents=[one], worker=True) as rt:
        with anyio.fail_after(10):
            assert (await rt.session("s", agent=one).run("Hi")).output == "Hello."
            await rt.session("t", agent=one).send("Hi")
            async for event in rt.stream(session="t", after=0):
                if event.type == "agent_complete":
                    break


async def test_a_round_that_goes_wrong_is_not_the_last(
    in_memory: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, wrong = agent({"text": "Hello."}), [ValueError("a bug")]
    rounds = worker.Worker._round

    async def first_wrong(self: worker.Worker) -> int:
        if wrong:
            raise wrong.pop()
        return await rounds(self)

    monkeypatch.setattr(worker.Worker, "_round", first_wrong)
    async with in_memory(one, worker=True) as rt:
        await rt.session("s", agent=one).send("Hi")
        with anyio.fail_after(10):
            async for event in rt.stream(session="s", after=0):
                if event.type == "agent_complete":
                    break


async def test_nothing_is_missed_while_the_feed_cannot_be_read() -> None:
    class Away(MemoryStore):
        reads = 0

        async def tail(self, cursor: str, limit: int = 500) -> Feed:
            self.reads += 1
            if self.reads == 2:
                raise Unavailable("away")
            return await super().tail(cursor, limit)

    store, heard = Away(), anyio.Event()
    await store.open()
    watch = FeedReader(store, SessionCache())
    with watch.subscribe("a", lambda _: heard.set()), anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:

            async def watched() -> None:
                with suppress(Unavailable):
                    await watch.run()
                await watch.run()

            tasks.start_soon(watched)
            await anyio.wait_all_tasks_blocked()
            await store.commit([Write("a", [Record("x", b"{}")], create="k")])
            await heard.wait()
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("kind", ["session", "pending"])
async def test_an_entry_that_cannot_be_read_hides_no_other(
    in_memory: MakeRuntime, memory: MemoryStore, kind: str
) -> None:
    @tool(requires_approval=True)
    def act() -> str:
        return "ok"

    one = agent({"calls": [{"tool": "act"}]}, {"text": "Done."}, tools=[act])
    async with in_memory(one) as rt:
        (bad,) = (await rt.session("bad", agent=one).run("Go")).pending
        (good,) = (await rt.session("good", agent=one).run("Go")).pending
        key = bad.id if kind == "pending" else "/bad"
        entry = await memory.get(kind, key)
        assert isinstance(entry, Entry)
        state = "stuck" if kind == "session" else "open"
        broken = Put(kind, key, entry.version, entry.stream, state, None, b"{")
        await memory.commit([Write(entry.stream)], [broken])
        assert good.id in [call.id async for call in rt.pending()]
        assert "good" in [result.session_id async for result in rt.sessions()]
        assert good.id in [record.id for record in (await rt.recover()).waiting]
        await rt.approve(good.id, by="ana")
        with anyio.fail_after(10):
            await rt.work(once=True)
        assert (await rt.session("good").get()).output == "Done."


async def test_who_still_runs_a_session_when_its_runtime_closes_begins_nothing_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drives, "GRACE_S", 0.01)
    before, begun = asyncio.all_tasks(), anyio.Event()

    @tool
    async def endless() -> str:
        begun.set()
        await anyio.sleep_forever()
        return "never"

    one = agent({"calls": [{"tool": "endless"}]}, tools=[endless])
    with anyio.fail_after(10):
        async with Runtime(MemoryStore(), agents=[one]) as rt:
            running = asyncio.ensure_future(rt.session("s", agent=one).run("Go"))
            await begun.wait()
        await asyncio.wait([running])
    assert running.exception() is not None
    assert asyncio.all_tasks() == before


async def test_a_runtime_that_was_closed_can_be_opened_again(clock: ManualClock) -> None:
    one = agent({"text": "One."}, {"text": "Two."})
    rt = Runtime(MemoryStore(clock), agents=[one])
    for said in ("One.", "Two."):
        async with rt:
            assert (await rt.session("s", agent=one).run("Hi")).output == said


async def test_what_is_claimed_while_a_runtime_closes_asks_no_model(clock: ManualClock) -> None:
    class Slow(MemoryStore):
        reading, may_read = anyio.Event(), anyio.Event()

        async def get(self, kind: str, key: str) -> Entry | None:
            if kind == "session" and self.is_slow:
                self.reading.set()
                await self.may_read.wait()
            return await super().get(kind, key)

        is_slow = False

    store, one = Slow(clock), agent({"text": "Hello."})
    async with anyio.create_task_group() as tasks:
        async with Runtime(store, agents=[one]) as outside:  # what is sent here is known here
            await outside.session("s", agent=one).send("Hi")
        rt = await Runtime(store, agents=[one]).__aenter__()
        store.is_slow = True
        with anyio.fail_after(10):
            working = asyncio.ensure_future(rt.work())
            await store.reading.wait()
            tasks.start_soon(rt.__aexit__, None, None, None)
            await checkpoint()
            await checkpoint()
            store.may_read.set()
    working.cancel()
    assert isinstance(one.model, ScriptedModel)
    assert one.model.requests == []


async def test_a_driver_that_sees_another_at_work_calls_off_what_it_does(
    in_memory: MakeRuntime, clock: ManualClock
) -> None:
    """E9"""
    endless, begun, stopped = endless_tool()
    turns = ({"calls": [{"tool": "endless"}]}, {"text": "Done."})
    one, two = agent(*turns, tools=[endless]), agent(*turns, tools=[endless])
    async with in_memory(one) as rt:
        with anyio.fail_after(10):
            running = asyncio.ensure_future(rt.session("s", agent=one).run("Go"))
            await begun.wait()
            clock.advance("1m")
            other = await in_memory(two).__aenter__()
            assert (await other.session("s", agent=two).run()).output == "Done."
            await stopped.wait()
            assert (await running).output == "Done."


async def test_an_outcome_that_comes_after_the_lease_is_told_to_the_operator(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """E9: not appended, since its call already says that it was interrupted."""

    class Late(MemoryStore):
        async def commit(
            self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
        ) -> Heads:
            if any(one.type == "tool_result" for write in writes for one in write.records):
                raise Fenced("somebody else holds it")
            return await super().commit(writes, puts, checks)

    @tool
    def slow() -> str:
        return "the secret result"

    one = agent({"calls": [{"tool": "slow"}]}, {"text": "Done."}, tools=[slow])
    async with Runtime(Late(), agents=[one]) as rt:
        await rt.session("s", agent=one).run("Go", timeout=0.1)
    (late,) = [one.getMessage() for one in caplog.records if "call_1_1" in one.getMessage()]
    assert "slow" in late
    assert "not recorded" in late
    assert "secret" not in caplog.text


async def test_a_session_that_is_deleted_while_a_start_fails_it_is_passed_over(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = agent({"text": "never"})
    async with Runtime(MemoryStore(clock), agents=[one]) as rt:
        session, service = rt.session("s", agent=one), service_of(rt)
        await session.send("Hi")
        entry = await service.get(SessionRef("", "s"))
        service.running_before[entry.stream] = entry
        resources = rt._resources  # as a worker gets them
        get = resources.store.get

        async def get_then_delete(kind: str, key: str) -> Entry | None:
            found = await get(kind, key)
            monkeypatch.undo()
            await session.delete()
            return found

        start = AgentStart(run=entry.record.task_id or "", agent="helper", worker="dead")
        await service.append(entry, [start])
        assert (await service.log(entry)).state.status == "running"
        monkeypatch.setattr(resources.store, "get", get_then_delete)
        assert await worker.fail_abandoned_runs(service, resources) == []
        assert service.running_before == {}
