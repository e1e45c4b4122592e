"""Restores whose caller is cancelled, or whose process dies beside a live one."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perdure import Runtime
from perdure.app import service_of
from perdure.options import TaskOptions
from perdure.store.base import Heads
from perdure.store.memory import MemoryStore
from perdure.tasks import MultiLayerPersistence, TaskLifecycle
from perdure.tasks.entries import get_task
from perdure.tasks.files.folder_lock import folder_lock
from perdure.tasks.values import TaskRef
from perdure.testing import ManualClock


class SlowStore(MemoryStore):
    """A store whose reply to the commit of a restore waits for an event."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.committed = asyncio.Event()
        self.reply = asyncio.Event()

    async def commit(self, writes: Sequence[Any], *more: Any) -> Heads:
        heads = await super().commit(writes, *more)
        if any(record.type == "task_restored" for write in writes for record in write.records):
            self.committed.set()
            await self.reply.wait()
        return heads


async def test_a_restore_that_is_decided_is_done_also_if_its_caller_is_cancelled(
    tmp_path: Path,
) -> None:
    store = SlowStore()
    async with Runtime(store, tasks={"root": tmp_path / "tasks"}) as rt, asyncio.timeout(30):
        work, layers = TaskLifecycle(rt), MultiLayerPersistence(rt)
        await work.create_task({"name": "Work", "id": "a"})
        await work.write_file("a", "notes", b"first")
        checkpoint = await layers.create_checkpoint("a")
        await work.write_file("a", "notes", b"second")
        caller = asyncio.create_task(layers.restore_checkpoint("a", checkpoint))
        await store.committed.wait()
        for _ in range(3):
            caller.cancel()
            await asyncio.sleep(0)
        assert not caller.done()
        store.reply.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert await work.read_file("a", "notes") == b"first"
    assert not [name for _, names, _ in os.walk(tmp_path) for name in names if "restore-" in name]


async def test_a_start_leaves_the_tree_that_a_live_process_builds(tmp_path: Path) -> None:
    root = tmp_path / "tasks"
    url = f"sqlite:///{tmp_path}/h.db"
    options: TaskOptions = {"root": root}
    async with Runtime(url, tasks=options) as rt:
        await TaskLifecycle(rt).create_task({"name": "Work", "id": "a"})
        await MultiLayerPersistence(rt).create_checkpoint("a")
    left = root / "a/restore-cp_1"
    left.mkdir()
    mark = root / ".dirty/a!99999999-dead"  # a number that no process can have
    mark.write_text("t//a")
    with folder_lock(root / "a/checkpoints"):  # as a restore in another process does
        async with Runtime(url, tasks=options):
            assert left.is_dir()
            assert mark.exists()
    async with Runtime(url, tasks=options):
        assert not left.exists()
        assert not mark.exists()
    assert (root / "a/workspace").is_dir()


async def test_a_runtime_opens_although_what_a_restore_left_cannot_be_finished(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/h.db"
    options: TaskOptions = {"root": tmp_path / "tasks"}
    async with Runtime(url, tasks=options) as rt:
        await TaskLifecycle(rt).create_task({"name": "Work", "id": "a"})
        tasks = service_of(rt).tasks
        stream = (await get_task(tasks.store, TaskRef("", "a"))).stream
        left = tasks.place.folder(stream) / "restore-cp_1"
    left.mkdir()
    mark = tmp_path / "tasks/.dirty/a!99999999-dead"  # as a process that dies leaves it
    mark.write_text(stream)
    async with Runtime(url, tasks=options) as rt:
        await TaskLifecycle(rt).write_file("a", "notes", b"usable")
    assert "a restore of" in caplog.text
