"""Tasks after SIGKILL at every durable write and before every change of a file."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.crash.task_program import NEW, OLD
from tests.support.paths import ROOT

from perdure import Conflict, Runtime
from perdure.tasks import LockManager, MultiLayerPersistence, TaskLifecycle, TaskRegistry
from perdure.tasks.model import log_file

pytestmark = pytest.mark.anyio

# Steps between the points: every point on SQLite, some of them elsewhere.
STEPS = {"sqlite": 1, "postgres": 5, "files": 5}


@pytest.fixture(params=["sqlite", "postgres", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, int]:
    urls = {"sqlite": f"sqlite:///{tmp_path}/h.db", "files": f"files:{tmp_path}/store"}
    url = urls.get(request.param) or request.getfixturevalue("postgres_url")
    return url, STEPS[request.param]


def run(program: str, *arguments: str, **options: Any) -> Any:
    command = [sys.executable, "-m", f"tests.crash.{program}", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


RESTORES = ["restore", "restore_unsaved", "restore_by_renames"]


@pytest.mark.parametrize(
    "operation", ["create", "transitions", "logs", "checkpoint", *RESTORES, "delete"]
)
def test_a_task_is_whole_wherever_its_process_was_killed(
    store: tuple[str, int], tmp_path: Path, operation: str
) -> None:
    """S3.27, S3.42, S3.50, SX.3"""
    url, step = store
    report = run("task_program", url, str(tmp_path / "tasks"), operation, str(step))
    assert (report["code"], report["looked"]) == (0, 0), report
    assert len(report["views"]) >= 2
    for view in report["views"]:
        check(view, operation)
    last = report["views"][-1]
    assert (last["status"] is None) is (operation == "delete")


def check(view: dict[str, Any], operation: str) -> None:
    assert view["marks"] == [], view
    assert view["parts"] == [], view
    if view["status"] is None:
        assert operation in ("create", "delete"), view
        assert view["folder"] is None, view
        return
    assert view["agree"] == [True, True], view
    assert view["state"][0] == view["status"], view
    assert view["problems"] == [], view
    assert {"logs.jsonl", "state.json", "workspace"} <= set(view["folder"]), view
    assert not [name for name in view["folder"] if name.startswith("restore")], view
    if operation in RESTORES:
        is_restored = "Checkpoint restored" in view["logs"]
        new = NEW if operation == "restore" else {**NEW, "d": ""}
        assert view["workspace"] == (OLD if is_restored else new), view
        assert view["state"][1] == ("old" if is_restored else "new"), view
        is_kept = is_restored and operation != "restore"
        assert view["replaced"] == ([new] if is_kept else []), view
        assert view["replaced_states"] == (["new"] if is_kept else []), view


def test_a_story_with_a_wait_an_approval_a_child_and_a_lock_ends_the_same_after_every_kill(
    tmp_path: Path,
) -> None:
    """SX.3: killed after each durable write, continued by another process."""
    unbroken, *others = run("mixed_program", "sqlite:///{folder}/h.db", str(tmp_path), "1")
    expected = unbroken["end"]
    assert (expected["state"], expected["children"]) == ("completed", ["completed"])
    assert (expected["refunds"], expected["locks"]) == (1, [])
    del expected["points"]  # the parent and its child are driven at once, and may share commits
    assert len(others) > 10
    for other in others:
        assert other["code"] == 0, other
        del other["end"]["points"]
        assert other["end"] == expected, other


# --- several processes ----------------------------------------------------------------------------


class Worker:
    """Process that works on a task."""

    def __init__(self, url: str, root: Path, verb: str, number: int, **env: str) -> None:
        command = [sys.executable, "-m", "tests.crash.task_worker", url, str(root), "t", verb]
        self.process = subprocess.Popen(
            [*command, str(number)],
            cwd=ROOT,
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/h.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


async def test_of_a_hundred_completes_and_cancels_in_eight_processes_one_wins(
    shared: str, tmp_path: Path
) -> None:
    """S3.23"""
    async with Runtime(shared, tasks={"root": tmp_path / "tasks"}) as rt:
        await TaskLifecycle(rt).create_task({"name": "n", "id": "t"})
        await TaskLifecycle(rt).start_task("t", "a")
        root = str(tmp_path / "tasks")
        run_crowd = partial(run, "task_worker", shared, root, "t", "crowd:finish", "8")
        wins = [int(result) for result in await anyio.to_thread.run_sync(run_crowd)]
        assert len(wins) == 8
        assert sum(wins) == 1
        assert await TaskLifecycle(rt).get_task_status("t") in ("completed", "cancelled")
        assert len(await MultiLayerPersistence(rt).load_logs("t")) == 3


async def test_processes_that_append_to_one_task_lose_double_and_tear_nothing(
    shared: str, tmp_path: Path
) -> None:
    """S3.39, S3.43, S3.44"""
    root = tmp_path / "tasks"
    async with Runtime(shared, tasks={"root": root}) as rt:
        await TaskLifecycle(rt).create_task({"name": "n", "id": "t"})
        run_crowd = partial(run, "task_worker", shared, str(root), "t", "crowd:append", "2")
        assert await anyio.to_thread.run_sync(run_crowd) == ["done", "done"]
        lines = await MultiLayerPersistence(rt).load_logs("t")
        messages = [line.message for line in lines][1:]
        assert len(messages) == len(set(messages)) == 2 * 10 * 4
        assert log_file.parse_log_file((root / "t/logs.jsonl").read_bytes()) == lines


async def test_a_killed_process_frees_its_locks_long_before_its_lease_ends(
    shared: str, tmp_path: Path
) -> None:
    """S3.66: within a second on a machine that is not busy."""
    async with Runtime(shared, tasks={"root": tmp_path / "tasks"}) as rt:
        await TaskLifecycle(rt).create_task({"name": "n", "id": "t"})
        locks = LockManager(rt)
        holder = Worker(shared, tmp_path / "tasks", "hold", 1, PERDURE_LEASE="10m")
        try:
            assert await anyio.to_thread.run_sync(holder.read) == "held"
            with pytest.raises(Conflict):
                await locks.acquire_lock_with_retry("task:t", "b")
        finally:
            holder.end()
        with anyio.fail_after(30):
            lock = await until_free(locks)
        assert lock.version == 2


async def until_free(locks: LockManager) -> Any:
    while True:
        try:
            return await locks.acquire_lock_with_retry("task:t", "b")
        except Conflict:
            await anyio.sleep(0.02)


async def test_a_stopped_process_loses_its_lock_and_its_late_write_is_refused(
    shared: str, tmp_path: Path
) -> None:
    """S3.55, S3.66"""
    async with Runtime(shared, tasks={"root": tmp_path / "tasks"}) as rt:
        await TaskLifecycle(rt).create_task({"name": "n", "id": "t"})
        locks, layers = LockManager(rt), MultiLayerPersistence(rt)
        holder = Worker(shared, tmp_path / "tasks", "hold", 1, PERDURE_LEASE="500ms")
        try:
            assert await anyio.to_thread.run_sync(holder.read) == "held"
            os.kill(holder.process.pid, signal.SIGSTOP)
            with anyio.fail_after(30):
                lock = await until_free(locks)
            await layers.append_log("t", {"message": "by the successor"}, guard=lock)
            os.kill(holder.process.pid, signal.SIGCONT)
            holder.go()
            assert await anyio.to_thread.run_sync(holder.read) == "VERSION_CONFLICT"
        finally:
            holder.end()
        messages = [line.message for line in await layers.load_logs("t")]
        assert messages == ["Task created", "by the successor"]


async def test_a_live_process_keeps_its_lock_beyond_its_lease(shared: str, tmp_path: Path) -> None:
    """S3.66"""
    async with Runtime(shared, tasks={"root": tmp_path / "tasks"}) as rt:
        await TaskLifecycle(rt).create_task({"name": "n", "id": "t"})
        holder = Worker(shared, tmp_path / "tasks", "hold", 1, PERDURE_LEASE="300ms")
        try:
            assert await anyio.to_thread.run_sync(holder.read) == "held"
            with pytest.raises(TimeoutError), anyio.fail_after(1):
                await until_free(LockManager(rt))
            holder.go()
            assert await anyio.to_thread.run_sync(holder.read) == "written"
        finally:
            holder.end()


async def test_another_process_continues_the_task_of_one_that_was_killed(
    shared: str, tmp_path: Path
) -> None:
    """S3.66, C23: what happened is in the folder, and a person goes back to before."""
    root = tmp_path / "tasks"
    async with Runtime(shared, tasks={"root": root}) as rt:
        lifecycle, layers = TaskLifecycle(rt), MultiLayerPersistence(rt)
        await lifecycle.create_task({"name": "n", "id": "t"})
        (root / "t/workspace/a").write_text("good")
        checkpoint = await layers.create_checkpoint("t", "before it went wrong")
        await lifecycle.attach_agent("t", "first")
        holder = Worker(shared, root, "hold", 1)
        assert await anyio.to_thread.run_sync(holder.read) == "held"
        (root / "t/workspace/a").write_text("half done")
        holder.end()
        await until_free(LockManager(rt))
        await lifecycle.attach_agent("t", "second")
        await layers.append_decision("t", {"agentId": "second", "decision": "go back"})
        await layers.restore_checkpoint("t", checkpoint)
        await lifecycle.complete_task("t", {"success": True})
        assert (root / "t/workspace/a").read_text() == "good"
        task = await TaskRegistry(rt).get_by_id("t")
        assert task is not None
        assert (task.status, task.agents) == ("completed", ("first", "second"))
    assert "go back" in (root / "t/decisions.md").read_text()
    assert "Checkpoint restored" in (root / "t/logs.jsonl").read_text()
