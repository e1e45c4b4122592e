"""Commands whose start, end or settlement meets a cancellation, a close or a failing store."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.executions import open_folder, task_options

from perdure import Refused, Runtime
from perdure.app import service_of
from perdure.core.tasks.executions import ExecutionRecord
from perdure.errors import StoreError
from perdure.runtime.tasks.entries import get_task
from perdure.runtime.tasks.executions.output import spool_folder
from perdure.runtime.tasks.executions.requests import CommandRequest
from perdure.runtime.tasks.executions.slots import Slots
from perdure.runtime.tasks.files.place import EXECUTIONS
from perdure.runtime.tasks.values import TaskRef
from perdure.store.base import Heads
from perdure.store.memory import MemoryStore
from perdure.tasks import TaskLifecycle
from perdure.testing import ManualClock

__all__ = ["open_folder"]

TASK = TaskRef("", "a")


class HookedStore(MemoryStore):
    """A store whose commits of one type of record wait for an event, or fail once."""

    paused_type = failing_type = ""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.reached = asyncio.Event()
        self.resume = asyncio.Event()

    async def commit(self, writes: Sequence[Any], *more: Any) -> Heads:
        types = {record.type for write in writes for record in write.records}
        if self.paused_type in types:
            self.reached.set()
            await self.resume.wait()
        if self.failing_type in types:
            self.failing_type = ""
            raise StoreError("the disk is full")
        return await super().commit(writes, *more)


async def running_task(rt: Runtime) -> TaskLifecycle:
    lifecycle = TaskLifecycle(rt)
    await lifecycle.create_task({"name": "Work", "id": "a"})
    await lifecycle.attach_agent("a", "agent")
    return lifecycle


async def task_folder(rt: Runtime) -> Path:
    tasks = service_of(rt).tasks
    return tasks.place.folder((await get_task(tasks.store, TASK)).stream)


async def leave_command(rt: Runtime) -> str:
    """Leave a command as a process that died right after its start leaves it; return its id."""
    service = service_of(rt)
    tasks = service.tasks
    slots = Slots(tasks.store, tasks.writer, service.drives)
    now = tasks.store.now()
    execution = ExecutionRecord(
        id="exec_left", command="sleep 60", timeout_ms=60_000, sandbox="none", started_at=now
    )
    task = await get_task(tasks.store, TASK)
    claim = await slots.take(task, await slots.get(task.stream), execution)
    assert claim.lease is not None
    await service.drives.release(claim.lease, now)
    return execution.id


async def test_a_cancelled_caller_is_cancelled_also_if_its_command_could_not_start(
    open_folder: Path,
) -> None:
    async with Runtime("memory:", tasks=task_options(open_folder)) as rt:
        work = await running_task(rt)
        (await task_folder(rt)).joinpath(EXECUTIONS).touch()  # a file where a folder must be
        for steps in range(30):  # of the event loop, before the caller is cancelled
            caller = asyncio.create_task(work.execute("a", "true"))
            for _ in range(steps):
                await asyncio.sleep(0)
            error = asyncio.CancelledError if caller.cancel() else Refused
            with pytest.raises(error):
                await caller


async def test_a_command_that_takes_its_slot_while_the_runtime_closes_is_interrupted(
    open_folder: Path,
) -> None:
    """G3"""
    store = HookedStore(ManualClock())
    store.paused_type = "exec_started"
    async with asyncio.timeout(30):
        rt = Runtime(store, tasks=task_options(open_folder))
        await rt.__aenter__()
        await running_task(rt)
        executions = service_of(rt).tasks.executions
        caller = asyncio.create_task(executions.start(TASK, CommandRequest("sleep 60", 60_000, 0)))
        await store.reached.wait()
        closing = asyncio.create_task(rt.__aexit__(None, None, None))
        await asyncio.sleep(0)
        store.resume.set()
        running = await caller
        await closing
    async with Runtime(store, tasks=task_options(open_folder)) as again:
        history = service_of(again).tasks.executions.history
        stream = (await get_task(store, TASK)).stream
        assert (await history.get(stream, running.record.id)).reason == "interrupted"


async def test_a_settlement_that_fails_does_not_keep_the_task_busy(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_LEASE", "1h")  # a lease that is kept lasts longer than the test
    clock = ManualClock()
    store = HookedStore(clock)
    async with Runtime(store, tasks=task_options(open_folder)) as rt, asyncio.timeout(30):
        work = await running_task(rt)
        left = await leave_command(rt)
        store.failing_type = "exec_finished"
        with pytest.raises(StoreError, match="the disk is full"):
            await work.execute("a", "true")
        clock.advance(10)
        assert (await work.execute("a", "echo free", wait=20)).stdout == "free\n"
        assert (await work.execution("a", left).result()).reason == "interrupted"


async def test_a_dead_command_whose_output_cannot_be_read_is_settled_without_it(
    open_folder: Path,
) -> None:
    async with Runtime("memory:", tasks=task_options(open_folder)) as rt, asyncio.timeout(30):
        work = await running_task(rt)
        left = await leave_command(rt)
        (spool_folder(await task_folder(rt), left) / "stdout").mkdir(parents=True)
        assert (await work.execute("a", "echo free")).stdout == "free\n"
        result = await work.execution("a", left).result()
        assert (result.reason, result.truncated) == ("interrupted", True)
        assert "its output cannot be read: Is a directory" in str(result.problem)
