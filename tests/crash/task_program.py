"""Process that kills forks of itself at every point of an operation on a task, and looks after.

A point is a commit that was made durable, or a change of a file in the folder of tasks that is
about to happen. Usage: task_program URL FOLDER OPERATION STEP; prints one object of JSON.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from perdure import Runtime
from perdure.app import around_store
from perdure.store.base import Check, Put, Store, Write
from perdure.tasks import MultiLayerPersistence, TaskLifecycle, TaskRegistry
from perdure.tasks.checkpoints import trees
from perdure.tasks.model import log_file, state_file
from perdure.tasks.model.manifest import MAX_DEPTH

FILE_EVENTS: Final = frozenset(
    {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "open"}
)
OLD: Final = {"kept": "1", "changed": "old", "gone": "x"}
NEW: Final = {"kept": "1", "changed": "new", "added": "y"}


class Points:
    """Counter of the points of an operation; kills the process at one of them."""

    def __init__(self, root: Path, at: int) -> None:
        self.root = str(root)
        self.at = at
        self.count = 0
        self.is_armed = False

    def pass_point(self) -> None:
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_armed or event not in FILE_EVENTS:
            return
        if event == "open":
            path, _, flags = arguments
            is_write = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            if not is_write or not isinstance(path, str | bytes | Path):
                return
            if not str(path).startswith(("/dev", "/proc")):
                self.pass_point()
        else:
            self.pass_point()


class CountedStore:
    """Store whose commits are points."""

    def __init__(self, store: Store, points: Points) -> None:
        self._store = store
        self._points = points

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Any:
        heads = await self._store.commit(writes, puts, checks)
        if self._points.is_armed:
            self._points.pass_point()
        return heads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def fill(folder: Path, files: dict[str, str]) -> None:
    for path in folder.iterdir():
        path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text)


def deepen(folder: Path) -> None:
    """Make a workspace too deep for a checkpoint."""
    for _ in range(MAX_DEPTH):
        folder /= "d"
    folder.mkdir(parents=True)


class Operation:
    """An operation on a task, after its preparation."""

    def __init__(self, rt: Runtime, root: Path, task_id: str) -> None:
        self.rt = rt
        self.id = task_id
        self.workspace = root / task_id / "workspace"
        self.lifecycle = TaskLifecycle(rt)
        self.layers = MultiLayerPersistence(rt)

    async def prepare(self, name: str) -> Callable[[], Awaitable[Any]]:
        """Return the operation with this name, ready to run."""
        if name == "create":
            return lambda: self.lifecycle.create_task({"name": "n", "id": self.id})
        await self.lifecycle.create_task({"name": "n", "id": self.id})
        if name == "transitions":
            return self.move
        if name == "logs":
            entries = [{"message": f"m{n}"} for n in range(20)]
            return lambda: self.layers.batch_append_logs(self.id, entries)
        fill(self.workspace, OLD)
        await self.layers.save_state(self.id, {"status": "pending", "data": {"of": "old"}})
        if name == "checkpoint":
            return lambda: self.layers.create_checkpoint(self.id)
        checkpoint = await self.layers.create_checkpoint(self.id, "old")
        fill(self.workspace, NEW)
        await self.layers.save_state(self.id, {"status": "pending", "data": {"of": "new"}})
        if name.startswith("restore"):
            if name != "restore":
                deepen(self.workspace)
            if name == "restore_by_renames":  # on a file system that cannot exchange two names
                setattr(trees, "exchange", lambda *names: False)  # noqa: B010 - not exported
            return lambda: self.layers.restore_checkpoint(self.id, checkpoint)
        return lambda: self.lifecycle.delete_task(self.id)

    async def move(self) -> None:
        await self.lifecycle.start_task(self.id, "a")
        await self.lifecycle.complete_task(self.id, {"success": True})


async def operate(url: str, root: Path, name: str, task_id: str, at: int) -> int:
    """Do an operation; return the number of its points."""
    points = Points(root, at)
    around_store.set(lambda store: CountedStore(store, points))
    async with Runtime(url, tasks={"root": root}) as rt:
        run = await Operation(rt, root, task_id).prepare(name)
        sys.addaudithook(points.on_event)
        points.is_armed = True
        await run()
        points.is_armed = False
    return points.count


async def look(url: str, root: Path, task_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return what a process that starts afterwards finds of tasks."""
    async with Runtime(url, tasks={"root": root}) as rt:
        return [await look_at(rt, root, task_id) for task_id in task_ids]


async def look_at(rt: Runtime, root: Path, task_id: str) -> dict[str, Any]:
    row = await TaskRegistry(rt).get_by_id(task_id)
    folder, dirty, objects = root / task_id, root / ".dirty", "checkpoints/objects/new-*"
    view: dict[str, Any] = {
        "id": task_id,
        "parts": [str(path) for glob in ("checkpoints/.*", objects) for path in folder.glob(glob)],
        "status": None if row is None else row.status,
        "folder": names(folder) if folder.exists() else None,
        "marks": names(dirty) if dirty.exists() else [],
    }
    if row is None:
        return view
    layers = MultiLayerPersistence(rt)
    lines, state = await layers.load_logs(task_id), await layers.load_state(task_id)
    in_log = log_file.parse_log_file((folder / "logs.jsonl").read_bytes())
    in_file = state_file.parse_state((folder / "state.json").read_bytes())
    listed = await layers.list_checkpoints(task_id)
    problems = [item.problem or await layers.verify_checkpoint(task_id, item.id) for item in listed]
    return {
        **view,
        "logs": [line.message for line in lines],
        "agree": [in_log == lines, in_file == state],
        "state": None if state is None else [state.status, state.data.get("of")],
        "workspace": texts(folder / "workspace"),
        "replaced": [texts(path) for path in folder.glob("replaced-*") if path.is_dir()],
        "replaced_states": [of_state(path) for path in folder.glob("replaced-*-state.json")],
        "problems": [problem for problem in problems if problem],
    }


def texts(folder: Path) -> dict[str, str]:
    """Return the files of a folder by name; an inner folder counts as text without content."""
    return {path.name: "" if path.is_dir() else path.read_text() for path in folder.iterdir()}


def of_state(path: Path) -> Any:
    return state_file.parse_state(path.read_bytes()).data["of"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def in_fork(work: Callable[[], Any]) -> tuple[int, Any]:
    """Run a function in a fork; return how that ended, and its JSON."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            os.write(write, json.dumps(work()).encode())
        except BaseException as error:  # noqa: BLE001 - the edge of a process: reported by it
            os.write(write, json.dumps(repr(error)).encode())
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), json.loads(data) if data else None


def run_operation(url: str, root: Path, name: str, task_id: str, at: int) -> int:
    return asyncio.run(operate(url, root, name, task_id, at))


def main() -> None:
    url, folder, name, step = sys.argv[1:5]
    root, at, code = Path(folder), 1, -signal.SIGKILL
    ids: list[str] = []
    result: Any = None
    while code == -signal.SIGKILL:
        ids.append(f"{name}-{at}")
        code, result = in_fork(partial(run_operation, url, root, name, ids[-1], at))
        at += int(step)
    looked, views = in_fork(lambda: asyncio.run(look(url, root, ids)))
    report = {"code": code, "result": result, "looked": looked, "views": views}
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
