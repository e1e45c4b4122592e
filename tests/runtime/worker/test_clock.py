"""Clocks that were ahead and are corrected."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from perdure import Agent, Runtime
from perdure.app import service_of
from perdure.runtime.worker import clock as worker_clock
from perdure.runtime.worker.worker import Worker, WorkerScope
from perdure.testing import ManualClock, ScriptedModel

MakeRuntime = Callable[..., Runtime]
AHEAD = timedelta(hours=2)


class MovableClock(ManualClock):
    """Clock that can be set back."""

    def set_back(self, by: timedelta) -> None:
        self._now -= round(by.total_seconds() * 1000)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(datetime(2026, 1, 1, 2, tzinfo=UTC))


@pytest.mark.parametrize("moment", ["before the worker starts", "while it works"])
async def test_a_message_recorded_while_the_clock_was_ahead_is_due_once_it_is_corrected(
    in_memory: MakeRuntime, clock: MovableClock, moment: str
) -> None:
    agent = Agent("a", model=ScriptedModel([{"text": "Done."}, {"text": "Done."}]))
    async with in_memory(agent) as rt, anyio.create_task_group() as tasks:
        if moment == "while it works":
            await rt.session("first", agent=agent).send("Go")
            tasks.start_soon(rt.work)
            async for _ in rt.stream(session="first", after=0, types=("agent_complete",)):
                break
        await rt.session("s", agent=agent).send("Go")
        clock.set_back(AHEAD)
        if moment != "while it works":
            tasks.start_soon(rt.work)
        with anyio.fail_after(20):
            async for _ in rt.stream(session="s", after=0, types=("agent_complete",)):
                break
        tasks.cancel_scope.cancel()


async def test_a_back_off_that_began_while_the_clock_was_ahead_ends_once_it_is_corrected(
    in_memory: MakeRuntime, clock: MovableClock
) -> None:
    busy = {"text": "busy", "transient": True, "retry_after_ms": 60_000, "times": 1}
    agent = Agent("a", model=ScriptedModel([{"text": "Done.", "error": busy}]))
    async with in_memory(agent) as rt, anyio.create_task_group() as tasks:
        await rt.session("s", agent=agent).send("Go")
        await rt.work(once=True)
        assert (await rt.session("s").get()).state == "running"
        clock.set_back(AHEAD)
        tasks.start_soon(rt.work)
        with anyio.fail_after(20):
            async for _ in rt.stream(session="s", after=0, types=("agent_complete",)):
                break
        tasks.cancel_scope.cancel()


@pytest.fixture(params=["memory", "sqlite", "files", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    match request.param:
        case "memory":
            return "memory:"
        case "sqlite":
            return f"sqlite:///{tmp_path}/h.db"
        case "files":
            return f"files:{tmp_path}/store"
        case _:
            return request.getfixturevalue("postgres_url")


async def test_a_message_is_driven_if_no_worker_saw_that_the_clock_was_ahead(
    store: Any, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock was ahead and right again between two looks, or that of another process was."""
    monkeypatch.setattr(worker_clock, "LOOK_S", 0.0)
    monkeypatch.setattr(worker_clock, "LOOK_SHARE", 0)
    agent = Agent("a", model=ScriptedModel([{"text": "Done."}]))
    async with Runtime(store, clock=clock, agents=[agent]) as rt:
        worker = Worker(service_of(rt), rt._resources)
        await worker.run(once=True)
        clock.advance(AHEAD)
        await rt.session("s", agent=agent).send("Go")
        clock.set_back(AHEAD)
        await worker.run(once=True)
        snapshot = await rt.session("s").get()
        assert (snapshot.state, snapshot.output) == ("completed", "Done.")
        assert snapshot.updated_at == snapshot.created_at - AHEAD


async def test_a_session_without_a_driver_is_woken_once(
    clock: MovableClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No worker here knows its agent, and a worker looks again every few seconds."""
    monkeypatch.setattr(worker_clock, "LOOK_S", 0.0)
    monkeypatch.setattr(worker_clock, "LOOK_SHARE", 0)
    monkeypatch.setattr(worker_clock, "PAGE", 2)
    agent = Agent("a", model=ScriptedModel([{"text": "Done."}]))
    async with Runtime("memory:", clock=clock, agents=[agent]) as rt:
        worker = Worker(service_of(rt), rt._resources, WorkerScope(only="deliveries"))
        await rt.session("earlier", agent=agent).send("Go")
        await worker.run(once=True)
        clock.advance(AHEAD)
        for number in range(5):
            await rt.session(f"s{number}", agent=agent).send("Go")
        clock.set_back(AHEAD)
        with caplog.at_level(logging.WARNING, "perdure"):
            for _ in range(3):
                await worker.run(once=True)
        (line,) = [record.getMessage() for record in caplog.records]
        assert line == "5 sessions were recorded while the clock was ahead: due now"
        census = await rt._resources.store.census(())
        assert census.due == 6
