"""Tasks of a runtime: built once, at their first use, and opened if they have a root."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perdure import Runtime
from perdure.app import service_of
from perdure.store.memory import MemoryStore
from perdure.tasks import LockManager, TaskLifecycle
from perdure.tasks.service import Tasks

pytestmark = pytest.mark.anyio


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Tasks]:
    """Every task system that is built."""
    built: list[Tasks] = []
    original = Tasks.__init__

    def build(tasks: Tasks, *args: Any) -> None:
        built.append(tasks)
        original(tasks, *args)

    monkeypatch.setattr(Tasks, "__init__", build)
    return built


def url_in(folder: Path) -> str:
    return f"sqlite:///{folder}/p.db"


async def test_a_runtime_without_a_task_builds_none(tmp_path: Path, builds: list[Tasks]) -> None:
    async with Runtime(url_in(tmp_path)) as rt:
        await rt.doctor()
        assert [task async for task in rt.sessions()] == []
    assert builds == []


async def test_a_root_that_exists_is_opened_with_the_runtime(
    tmp_path: Path, builds: list[Tasks]
) -> None:
    async with Runtime(url_in(tmp_path)) as rt:
        await TaskLifecycle(rt).create_task({"name": "n", "id": "t"})
    trash = tmp_path / "p.db.tasks/.trash/left"
    trash.mkdir(parents=True)
    async with Runtime(url_in(tmp_path)):
        assert len(builds) == 2
        assert not trash.exists()


async def test_two_first_uses_at_once_share_the_tasks(tmp_path: Path, builds: list[Tasks]) -> None:
    async with Runtime(url_in(tmp_path)) as rt:
        first, second = await asyncio.gather(
            LockManager(rt).acquire_lock_with_retry("r", "a", "collaborative"),
            LockManager(rt).acquire_lock_with_retry("r", "b", "collaborative"),
        )
        assert {first.owner, second.owner} == {"a", "b"}
        assert len(builds) == 1
        status = await LockManager(rt).get_lock_status("r")
        assert status is not None
        assert set(status.holders) == {"a", "b"}


async def test_two_threads_that_use_them_first_share_the_tasks(
    memory: MemoryStore, builds: list[Tasks], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = 8
    meeting = threading.Barrier(2)
    original = Tasks.__init__

    def build(tasks: Tasks, *args: Any) -> None:
        with suppress(threading.BrokenBarrierError):
            meeting.wait(0.2)  # where a second thread that builds would come too
        original(tasks, *args)

    monkeypatch.setattr(Tasks, "__init__", build)
    async with Runtime(memory) as rt:
        together = threading.Barrier(threads)

        def use() -> Tasks:
            together.wait()
            return service_of(rt).tasks

        with ThreadPoolExecutor(threads) as pool:
            uses: list[Callable[[], Tasks]] = [use] * threads
            used = [future.result() for future in [pool.submit(item) for item in uses]]
        assert len(set(map(id, used))) == 1
        assert len(builds) == 1


class WatchedStore(MemoryStore):
    """Store that says when a holder's row was renewed."""

    renewed: asyncio.Event

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        end = await super().renew(holder, ttl_ms, join=join)
        if not join and ttl_ms:
            self.renewed.set()
        return end


async def test_locks_live_on_in_a_runtime_that_was_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PERDURE_LEASE", "300ms")
    store = WatchedStore()
    rt = Runtime(store)
    for owner in ("a", "b"):
        store.renewed = asyncio.Event()
        async with rt, asyncio.timeout(10):
            await LockManager(rt).acquire_lock_with_retry("r", owner)
            await store.renewed.wait()


def test_a_program_that_imports_the_runtime_loads_no_task_system() -> None:
    code = "import sys, perdure; perdure.Runtime; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "perdure.app.runtime" in loaded
    assert not loaded & {"perdure.tasks.service", "perdure.tasks.api", "perdure.tasks.locks"}
