"""Cost of operations of the SQLite store, as a ratio to a bare `sqlite3` loop in the same run.

The reference commits the same rows to the same tables with the same settings, and does nothing
else: no event loop, no thread, no fence. The store and the reference alternate, so that other load
on the machine affects both; the CPU values hardly depend on it.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from perdure.store.base import Lease, Put, Record, Write
from perdure.store.sqlite.open import apply_settings, migrate, python_connect
from perdure.store.sqlite.store import SqliteStore

ROUNDS = 7
DATA = b"x" * 420
INSERT = "INSERT INTO record (sid, seq, type, at, data) VALUES (?, ?, ?, ?, ?)"
PUT = """
    INSERT INTO entry (kind, key, sid, version, state, due, data) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (kind, key) DO UPDATE
    SET version = excluded.version, state = excluded.state, due = excluded.due, data = excluded.data
"""


class Cost(NamedTuple):
    """Cost of one operation, in microseconds."""

    wall: float
    cpu: float


class Stopwatch:
    """Stopwatch for the operations in a `with` block."""

    def __init__(self) -> None:
        self.cost = Cost(0, 0)

    @contextmanager
    def measure(self, operations: int) -> Iterator[None]:
        """Measure a block of `operations` operations and store the cost of one."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.cost = Cost(
            (time.perf_counter() - wall) / operations * 1e6,
            (time.process_time() - cpu) / operations * 1e6,
        )


def bare_commits(path: Path, batch: int, batches: int) -> Cost:
    """Commit rows in batches, without a store."""
    connection = apply_settings(python_connect(str(path)))
    migrate(connection, path)
    watch = Stopwatch()
    with watch.measure(batch * batches):
        for n in range(1, batches + 1):
            connection.execute("BEGIN IMMEDIATE")
            for sid in range(batch):
                connection.execute(INSERT, (sid, n, "event", 1, DATA))
            connection.execute("COMMIT")
    connection.close()
    return watch.cost


def bare_turns(path: Path, batch: int, batches: int) -> Cost:
    """Commit the rows of `commit_turns`, without a store and without conditions."""
    connection = apply_settings(python_connect(str(path)))
    migrate(connection, path)
    watch = Stopwatch()
    with watch.measure(batch * batches):
        for n in range(batches):
            connection.execute("BEGIN IMMEDIATE")
            for sid in range(batch):
                connection.execute(INSERT, (sid, n, "event", 1, DATA))
                name, key = f"session-{sid}", f"session-{sid}-{n // 3}"
                for kind in (("session", "key"), ("pending", "session"), ("pending",))[n % 3]:
                    entry_key = name if kind == "session" else key
                    connection.execute(PUT, (kind, entry_key, sid, n, "open", None, DATA))
            connection.execute("COMMIT")
    connection.close()
    return watch.cost


def bare_reads(path: Path, reads: int) -> Cost:
    """Get one entry repeatedly, without a store."""
    connection = apply_settings(python_connect(str(path)))
    migrate(connection, path)
    connection.execute(
        "INSERT INTO entry VALUES ('k', 'a', 1, 1, 'open', 1, ?, NULL, NULL, NULL)", (DATA,)
    )
    watch = Stopwatch()
    with watch.measure(reads):
        for _ in range(reads):
            connection.execute("SELECT * FROM entry WHERE kind = 'k' AND key = 'a'").fetchall()
    connection.close()
    return watch.cost


Session = Callable[[SqliteStore, Lease, int], Awaitable[object]]


async def run_sessions(path: Path, count: int, times: int, session: Session) -> Cost:
    """Run `count` sessions concurrently, each with `times` operations."""
    store = SqliteStore(path)
    await store.open()
    await store.renew("bench", 3_600_000, join=True)
    names = [f"session-{n}" for n in range(count)]
    await store.commit([Write(name, create="session", wake=0) for name in names])
    leases = await store.claim("bench", "session", count)
    await store.commit([Write(lease.stream, fence=lease) for lease in leases])
    watch = Stopwatch()
    with watch.measure(count * times):
        async with asyncio.TaskGroup() as group:
            for lease in leases:
                group.create_task(_finish(session(store, lease, times)))
    await store.close()
    return watch.cost


async def _finish(work: Awaitable[object]) -> None:
    await work


async def append_records(store: SqliteStore, lease: Lease, times: int) -> None:
    """Append records as a driver does, with a fence and a head."""
    for head in range(times):
        write = Write(lease.stream, [Record("event", DATA)], fence=lease, head=head)
        await store.commit([write])


async def commit_turns(store: SqliteStore, lease: Lease, times: int) -> None:
    """Commit a message, a turn that opens a call, and its result, each with puts, like a session.

    Three commits count as three operations: `times` is a multiple of three.
    """
    name = lease.stream
    for n in range(0, times, 3):
        records, key = [Record("event", DATA)], f"{name}-{n}"
        await store.commit(
            [Write(name, records, wake=1)],
            [_put("session", name, name, n // 3 * 2), _put("key", key, name, 0)],
        )
        await store.commit(
            [Write(name, records, fence=lease, head=n + 1)],
            [_put("pending", key, name, 0), _put("session", name, name, n // 3 * 2 + 1)],
        )
        await store.commit([Write(name, records, wake=1)], [_put("pending", key, name, 1)])


def _put(kind: str, key: str, stream: str, expect: int) -> Put:
    return Put(kind, key, expect, stream, "open", None, DATA)


async def get_entries(store: SqliteStore, lease: Lease, times: int) -> None:
    """Get one entry repeatedly."""
    name = lease.stream
    await store.commit([Write(name)], [_put("k", name, name, 0)])
    for _ in range(times):
        await store.get("k", name)


async def read_ends(store: SqliteStore, lease: Lease, times: int) -> None:
    """Read the last two records of the stream repeatedly."""
    await store.commit([Write(lease.stream, [Record("event", DATA)] * 10)])
    for _ in range(times):
        await store.read(lease.stream, after=8)


async def find_entries(store: SqliteStore, lease: Lease, times: int) -> None:
    """Find the open calls of a session repeatedly."""
    name = lease.stream
    await store.commit([Write(name)], [_put("k", name, name, 0)])
    for _ in range(times):
        await store.find("k", stream=name, state="open")


async def tail_feed(store: SqliteStore, lease: Lease, times: int) -> None:
    """Read the feed repeatedly while it has no new records."""
    await store.commit([Write(lease.stream, [Record("event", DATA)] * 10)])
    cursor = (await store.tail("$")).cursor
    for _ in range(times):
        await store.tail(cursor)


def store_cost(session: Session, count: int, times: int) -> Callable[[Path], Cost]:
    """Return a function that measures one operation of the store."""
    return lambda path: asyncio.run(run_sessions(path, count, times, session))


OPERATIONS: tuple[tuple[str, Callable[[Path], Cost], Callable[[Path], Cost]], ...] = (
    (
        "append, 256 sessions",
        store_cost(append_records, 256, 40),
        lambda path: bare_commits(path, 256, 40),
    ),
    (
        "append, 1 session",
        store_cost(append_records, 1, 300),
        lambda path: bare_commits(path, 1, 300),
    ),
    (
        "with puts, 64 sessions",
        store_cost(commit_turns, 64, 60),
        lambda path: bare_turns(path, 64, 60),
    ),
    ("get, 1 session", store_cost(get_entries, 1, 2000), lambda path: bare_reads(path, 2000)),
    ("get, 64 sessions", store_cost(get_entries, 64, 50), lambda path: bare_reads(path, 2000)),
    ("read the last 2", store_cost(read_ends, 1, 2000), lambda path: bare_reads(path, 2000)),
    ("find by stream", store_cost(find_entries, 1, 2000), lambda path: bare_reads(path, 2000)),
    ("tail without records", store_cost(tail_feed, 1, 2000), lambda path: bare_reads(path, 2000)),
)


def main() -> None:
    """Print one line per operation: the medians, and the speed as a ratio to the bare loop."""
    print(f"{'SQLite store':<24}{'µs each':>10}{'CPU µs':>10}{'bare µs':>10}{'CPU µs':>10}  ratio")
    for name, measure_store, measure_bare in OPERATIONS:
        rounds = [(_in_new_file(measure_store), _in_new_file(measure_bare)) for _ in range(ROUNDS)]
        store, bare = _median([m for m, _ in rounds]), _median([t for _, t in rounds])
        print(
            f"{name:<24}{store.wall:>10.1f}{store.cpu:>10.1f}{bare.wall:>10.1f}{bare.cpu:>10.1f}"
            f"  {bare.wall / store.wall:.2f}"
        )


def _median(costs: list[Cost]) -> Cost:
    return Cost(
        statistics.median(cost.wall for cost in costs),
        statistics.median(cost.cpu for cost in costs),
    )


def _in_new_file(measure: Callable[[Path], Cost]) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder) / "bench.db")


if __name__ == "__main__":
    main()
