"""Commands whose start, end or settlement meets a cancellation, a close or a failing store."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.executions import open_folder, task_options

from perdure import Conflict, Refused, Runtime
from perdure.app import service_of
from perdure.errors import StoreError
from perdure.store.base import Heads, Record, Write
from perdure.store.memory import MemoryStore
from perdure.tasks import TaskLifecycle
from perdure.tasks.entries import get_task
from perdure.tasks.executions.output import spool_folder
from perdure.tasks.executions.requests import CommandRequest
from perdure.tasks.executions.slots import SlotClaim, Slots
from perdure.tasks.files.place import EXECUTIONS
from perdure.tasks.model.executions import ExecutionFact, ExecutionRecord
from perdure.tasks.model.record import STREAM_KIND
from perdure.tasks.values import TaskRef
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


async def test_a_settlement_that_finds_its_command_ended_gives_the_task_back(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G3: a caller without a lease has recorded the end itself, just before."""
    monkeypatch.setenv("PERDURE_LEASE", "1h")
    store = HookedStore(ManualClock())
    async with Runtime(store, tasks=task_options(open_folder)) as rt, asyncio.timeout(30):
        work = await running_task(rt)
        service = service_of(rt)
        tasks, task = service.tasks, await get_task(store, TASK)
        execution = await tasks.executions.history.get(task.stream, await leave_command(rt))
        slots = Slots(store, tasks.writer, service.drives)
        version = (await slots.get(task.stream)).version
        store.paused_type = "exec_finished"
        settling = asyncio.create_task(tasks.executions.settle_left(task.stream))
        await store.reached.wait()
        store.paused_type = ""
        end = ExecutionFact(replace(execution, reason="not_started", duration_ms=0))
        assert await slots.free(task.record, task.stream, SlotClaim(None, version, 0), end)
        store.resume.set()
        assert not await settling
        assert (await work.execute("a", "echo free", wait=1)).stdout == "free\n"


async def test_a_command_in_a_task_that_another_process_holds_waits_and_is_refused(
    open_folder: Path,
) -> None:
    """G3: it used to start and end again and again, without a pause and for ever."""
    store = MemoryStore(ManualClock())
    async with Runtime(store, tasks=task_options(open_folder)) as rt, asyncio.timeout(30):
        work = await running_task(rt)
        task = await get_task(store, TASK)
        await hold(store, task.stream)
        with pytest.raises(Conflict) as refused:
            await work.execute("a", "true", wait=0.5)
        assert refused.value.code == "TASK_BUSY"
        assert (await store.read(task.stream)).head < 30


async def hold(store: MemoryStore, stream: str) -> None:
    """Let another process claim a task, as a worker that looks for dead commands does."""
    await store.renew("other", 3_600_000, join=True)
    await store.commit([Write(stream, wake=store.now())])
    assert await store.claim("other", STREAM_KIND, 1, only=stream)


async def test_what_wakes_a_task_while_it_is_released_is_not_lost(open_folder: Path) -> None:
    """G3: its process may die right after the record, and somebody has to settle its command."""
    store = MemoryStore(ManualClock())
    async with Runtime(store, tasks=task_options(open_folder)) as rt, asyncio.timeout(30):
        await running_task(rt)
        drives, stream = service_of(rt).drives, (await get_task(store, TASK)).stream
        await store.commit([Write(stream, wake=store.now())])
        (lease,) = await drives.claim(STREAM_KIND, 1, stream)
        await drives.release(lease, None)
        assert await drives.claim(STREAM_KIND, 1, stream) == []
        await store.commit([Write(stream, wake=store.now())])
        (lease,) = await drives.claim(STREAM_KIND, 1, stream)
        await store.commit([Write(stream, [Record("log", b"{}")], wake=store.now())])
        await drives.release(lease, None)
        (lease,) = await drives.claim(STREAM_KIND, 1, stream)
        await drives.release(lease, None)
        assert await drives.claim(STREAM_KIND, 1, stream) == []


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
