"""Cost of locks, rows, layers and checkpoints of tasks, as ratios to bare operations in one run.

Two columns: in one process without durability where the seed's figures were measured so, and
durable, with every commit synced. The bare operation and ours alternate, so that other load on the
machine affects both.
"""

import asyncio
import os
import shutil
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.report import Section, Table, number

from perdure import Runtime
from perdure.tasks import LockManager, MultiLayerPersistence, TaskLifecycle, TaskRegistry

Work = Callable[[], Awaitable[Any]]
ROUNDS = 5
SCHEMA = """
PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS task(id TEXT PRIMARY KEY, name TEXT, status TEXT, owner TEXT,
  created INT, updated INT, metadata TEXT);
CREATE INDEX IF NOT EXISTS by_status ON task(status, created DESC);
CREATE INDEX IF NOT EXISTS by_owner ON task(owner, status, created DESC);
CREATE INDEX IF NOT EXISTS by_time ON task(created DESC);
"""
ABOUT = """Locks, rows, layers and checkpoints of tasks, each beside the least that does the same:
a dict, a bare `sqlite3` table with the same indexes, a synced write, `cp -a`, `git add`. The column
*seed* has the figures of the documented system, measured without fsync. Locks in process are one
caller that acquires and releases a free lock again and again; the rows name the arguments. Each of
the two calls is an operation."""
NOTE = """A checkpoint reads every file the first time; the seed's 50 ms can only hold from the
second one on."""
INSERT = "INSERT INTO task VALUES (?, ?, ?, ?, ?, ?, ?)"


class DictPair:
    """Two async methods that set and delete the key of a dict: the least that a lock can cost."""

    def __init__(self) -> None:
        self._table: dict[str, str] = {}

    async def set(self, key: str, value: str) -> None:
        """Set a key."""
        self._table[key] = value

    async def delete(self, key: str) -> None:
        """Delete a key."""
        del self._table[key]


async def seconds(work: Work, times: int) -> float:
    """Return the seconds that one call takes, on average."""
    start = time.perf_counter()
    for _ in range(times):
        await work()
    return (time.perf_counter() - start) / times


async def alternate(works: Sequence[Work], times: int) -> list[float]:
    """Return the medians of several works that take turns."""
    results: list[list[float]] = [[] for _ in works]
    for _ in range(ROUNDS):
        for result, work in zip(results, works, strict=True):
            result.append(await seconds(work, times))
    return [statistics.median(result) for result in results]


# --- locks ----------------------------------------------------------------------------------------


def lock_shapes(manager: LockManager) -> dict[str, Work]:
    """Return the shapes in which programs use an uncontended lock, each as one pair."""

    async def defaults() -> None:
        await manager.acquire_lock_with_retry("task:1", "a")
        await manager.release_lock("task:1", "a")

    async def returned() -> None:
        await manager.release_lock(await manager.acquire_lock_with_retry("task:2", "a"))

    async def exclusive() -> None:
        await manager.acquire_lock_with_retry("task:3", "a", "exclusive", 3, 30_000)
        await manager.release_lock("task:3", "a")

    async def collaborative() -> None:
        await manager.acquire_lock_with_retry("task:4", "a", "collaborative", 10, 60_000)
        await manager.release_lock("task:4", "a")

    async def nothing() -> None: ...

    async def around() -> None:
        await manager.with_lock("task:5", "a", nothing)

    return {
        "defaults, released by name": defaults,
        "defaults, returned lock released": returned,
        "exclusive, 3, 30000": exclusive,
        "collaborative, 10, 60000": collaborative,
        "with_lock": around,
    }


async def lock_rows(folder: Path, quick: bool) -> list[list[str]]:
    """Measure a pair of acquire and release, in process and durable."""
    shapes, pair = lock_shapes(LockManager()), DictPair()

    async def bare() -> None:
        await pair.set("task:1", "a")
        await pair.delete("task:1")

    *ours, least = await alternate([*shapes.values(), bare], 2_000 if quick else 50_000)
    async with Runtime(f"sqlite:///{folder}/locks.db") as rt:
        durable, connection = lock_shapes(LockManager(rt)), bare_database(folder / "bare-locks.db")
        works = [durable["defaults, released by name"], bare_commit(connection)]
        stored, committed = await alternate(works, 20 if quick else 100)
        connection.close()
    rows = [
        [
            f"lock, in process: {shape}",
            f"{number(2 / own / 1000)}K ops/s",
            f"{number(2 / least / 1000)}K ops/s (dict)",
            f"{number(least / own)} of its rate",
            "742K ops/s",
        ]
        for shape, own in zip(shapes, ours, strict=True)
    ]
    durable_row = [
        "lock, durable: acquire + release",
        ms(stored),
        f"{ms(committed)} (one commit)",
        ratio(stored, committed),
        "-",
    ]
    return [*rows, durable_row]


def bare_database(path: Path) -> sqlite3.Connection:
    """Open a database with the rows that the seed's registry would have."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(SCHEMA)
    return connection


def bare_commit(connection: sqlite3.Connection) -> Work:
    """Return one durable commit of one row."""
    numbers = iter(range(10**9))

    async def commit() -> None:
        connection.execute(INSERT, row(f"b{next(numbers)}-{time.time_ns()}"))

    return commit


def row(name: str, number_: int = 0) -> tuple[Any, ...]:
    """Return a row of the bare table."""
    at = time.time_ns() // 1_000_000
    return name, f"Task {name}", "pending", f"agent-{number_ % 10}", at, at, '{"priority":"high"}'


# --- registry -------------------------------------------------------------------------------------


async def registry_rows(folder: Path, size: int, quick: bool) -> list[list[str]]:
    """Measure insert, read, range and batch at a number of rows."""
    async with Runtime(f"sqlite:///{folder}/rows-{size}.db") as rt:
        registry, connection = TaskRegistry(rt), bare_database(folder / f"bare-{size}.db")
        for start in range(0, size, 1000):
            await registry.bulk_insert([task(f"f{start + n}", n) for n in range(min(1000, size))])
            connection.execute("BEGIN")
            connection.executemany(INSERT, [row(f"f{start + n}", n) for n in range(1000)])
            connection.execute("COMMIT")
        table = []
        for name, ours, bare in registry_works(registry, connection, size):
            own, least = await alternate([ours, bare], 10 if quick else 50)
            seed = {"insert": "< 1 ms", "read": "< 1 ms", "batch of 100": "< 20 ms"}
            label = f"registry, {size:,} rows: {name}"
            table.append([label, ms(own), ms(least), ratio(own, least), seed.get(name, "< 5 ms")])
        connection.close()
    return table


def task(name: str, number_: int = 0) -> dict[str, Any]:
    """Return a task to insert."""
    owner = f"agent-{number_ % 10}"
    return {"id": name, "name": f"Task {name}", "owner": owner, "metadata": {"priority": "high"}}


def registry_works(
    registry: TaskRegistry, connection: sqlite3.Connection, size: int
) -> list[tuple[str, Work, Work]]:
    """Return the operations of a registry, ours and bare."""
    names = (f"i{number_}" for number_ in range(10**9))
    select = "SELECT * FROM task WHERE "
    newest = f"{select} status = 'pending' ORDER BY created DESC LIMIT 100"
    behind = "SELECT * FROM task ORDER BY created DESC LIMIT 100 OFFSET ?"

    def fresh() -> list[dict[str, Any]]:
        return [task(next(names), n) for n in range(100)]

    def bare_batch() -> None:
        connection.execute("BEGIN")
        connection.executemany(INSERT, [row(next(names), n) for n in range(100)])
        connection.execute("COMMIT")

    return [
        (
            "insert",
            lambda: registry.create(task(next(names))),
            as_work(lambda: connection.execute(INSERT, row(next(names)))),
        ),
        (
            "read",
            lambda: registry.get_by_id("f7"),
            as_work(lambda: connection.execute(f"{select} id = 'f7'").fetchone()),
        ),
        (
            "range of 100",
            lambda: registry.list({"status": "pending", "limit": 100}),
            as_work(lambda: connection.execute(newest).fetchall()),
        ),
        (
            "range of 100 behind 90% of the rows",
            lambda: registry.list({"limit": 100, "offset": size * 9 // 10}),
            as_work(lambda: connection.execute(behind, (size * 9 // 10,)).fetchall()),
        ),
        ("batch of 100", lambda: registry.bulk_insert(fresh()), as_work(bare_batch)),
    ]


def as_work(function: Callable[[], object]) -> Work:
    """Return a function as something to await."""

    async def work() -> None:
        function()

    return work


# --- layers ---------------------------------------------------------------------------------------


async def layer_rows(folder: Path, quick: bool) -> list[list[str]]:
    """Measure state and log writes beside writes of the same bytes that are synced."""
    times = 10 if quick else 50
    async with Runtime(f"sqlite:///{folder}/layers.db") as rt:
        await TaskLifecycle(rt).create_task({"name": "n", "id": "t"})
        layers = MultiLayerPersistence(rt)
        state = {"status": "running", "data": {f"k{n}": n for n in range(50)}}
        entry = {"level": "info", "message": "something happened", "data": {"n": 1}}
        line = b'{"timestamp":"2026-01-31T12:00:00.000Z","level":"info","message":"m"}\n'
        works: list[tuple[str, str, Work, Work]] = [
            (
                "state save",
                "< 10 ms",
                lambda: layers.save_state("t", state),
                synced(folder / "state", b"x" * 1500, "wb"),
            ),
            (
                "log append",
                "< 1 ms",
                lambda: layers.append_log("t", entry),
                synced(folder / "log", line, "ab"),
            ),
            (
                "log batch of 100",
                "< 10 ms",
                lambda: layers.batch_append_logs("t", [entry] * 100),
                synced(folder / "batch", line * 100, "ab"),
            ),
        ]
        table = []
        for name, seed, ours, bare in works:
            own, least = await alternate([ours, bare], times)
            table.append([f"{name}, durable", ms(own), ms(least), ratio(own, least), seed])
    return table


def synced(path: Path, data: bytes, mode: str) -> Work:
    """Return a write of a file that is synced."""

    async def write() -> None:
        with path.open(mode) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    return write


# --- checkpoints ----------------------------------------------------------------------------------


async def checkpoint_rows(folder: Path, quick: bool) -> list[list[str]]:
    """Measure a first and a second checkpoint beside `cp -a` and `git add`."""
    files = 100 if quick else 1_000
    async with Runtime(f"sqlite:///{folder}/checkpoints.db") as rt:
        layers = MultiLayerPersistence(rt)
        first, second, copied, added = [], [], [], []
        for turn in range(3):
            await TaskLifecycle(rt).create_task({"name": "n", "id": f"t{turn}"})
            workspace = folder / f"checkpoints.db.tasks/t{turn}/workspace"
            fill(workspace, files)
            copied.append(timed(["cp", "-a", str(workspace), str(folder / f"copy-{turn}")], folder))
            first.append(await seconds(partial(layers.create_checkpoint, f"t{turn}"), 1))
            git = ["git", f"--git-dir={folder}/git-{turn}", f"--work-tree={workspace}"]
            timed([*git, "init", "-q"], folder)
            add = [*git, "-c", "core.compression=0", "add", "-A"]
            timed(add, workspace)
            for number_ in range(10):
                (workspace / f"d{number_ % 10}" / f"f{number_}").write_bytes(os.urandom(50_000))
            added.append(timed(add, workspace))
            second.append(await seconds(partial(layers.create_checkpoint, f"t{turn}"), 1))
            shutil.rmtree(folder / f"copy-{turn}")
    own, other = statistics.median(first), statistics.median(second)
    least, git_add = statistics.median(copied), statistics.median(added)
    size = f"{files:,} files, {files * 50_000 // 10**6} MB"
    return [
        [f"checkpoint, first: {size}", ms(own), f"{ms(least)} (cp -a)", ratio(own, least), "-"],
        [
            "checkpoint, second, 10 files changed",
            ms(other),
            f"{ms(git_add)} (git add)",
            ratio(other, git_add),
            "about 50 ms",
        ],
    ]


def fill(workspace: Path, files: int) -> None:
    """Create files, half of them incompressible."""
    for number_ in range(files):
        path = workspace / f"d{number_ % 10}" / f"f{number_}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(50_000) if number_ % 2 else b"text " * 10_000)


def timed(command: Sequence[str], cwd: Path) -> float:
    """Return the seconds that a command takes."""
    start = time.perf_counter()
    subprocess.run(command, check=True, cwd=cwd)
    return time.perf_counter() - start


def ms(value: float) -> str:
    """Return seconds as milliseconds."""
    return f"{number(value * 1000)} ms"


def ratio(own: float, least: float) -> str:
    """Return how many times as long ours takes."""
    return f"{number(own / least)} times"


async def all_rows(folder: Path, quick: bool) -> list[list[str]]:
    """Return the rows of the table."""
    sizes = (1_000,) if quick else (1_000, 100_000)
    rows = await lock_rows(folder, quick)
    for size in sizes:
        rows += await registry_rows(folder, size, quick)
    rows += await layer_rows(folder, quick)
    return rows + await checkpoint_rows(folder, quick)


def measure(*, quick: bool = False) -> Section:
    """Return the section of this benchmark."""
    with tempfile.TemporaryDirectory(prefix="perdure-tasks-") as folder:
        rows = asyncio.run(all_rows(Path(folder), quick))
    head = ("operation", "perdure", "bare", "ratio", "seed")
    return Section("Tasks", [ABOUT, Table(head, rows), NOTE])


if __name__ == "__main__":
    print(measure(quick=True).text())
