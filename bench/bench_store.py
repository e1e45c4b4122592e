"""What the SQLite store costs, as a ratio to a bare `sqlite3` loop taken in the same run.

The reference commits the same rows into the same tables with the same settings, and does nothing
else: no event loop, no thread, no fence. Ours and the reference take turns, so that a busy moment
of the machine meets both; the CPU figures hardly depend on it.
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
from perdure.store.sqlite.open import migrate, python_connect, settled
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
    """What one operation took, in microseconds."""

    wall: float
    cpu: float


class Watch:
    """Takes the time of what happens inside `with`."""

    def __init__(self) -> None:
        self.cost = Cost(0, 0)

    @contextmanager
    def over(self, operations: int) -> Iterator[None]:
        """Note the cost of each of so many operations."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.cost = Cost(
            (time.perf_counter() - wall) / operations * 1e6,
            (time.process_time() - cpu) / operations * 1e6,
        )


def bare_commits(path: Path, batch: int, batches: int) -> Cost:
    """Commit rows in batches, with nothing around it."""
    connection = settled(python_connect(str(path)))
    migrate(connection, path)
    watch = Watch()
    with watch.over(batch * batches):
        for n in range(1, batches + 1):
            connection.execute("BEGIN IMMEDIATE")
            for sid in range(batch):
                connection.execute(INSERT, (sid, n, "event", 1, DATA))
            connection.execute("COMMIT")
    connection.close()
    return watch.cost


def bare_turns(path: Path, batch: int, batches: int) -> Cost:
    """The rows of `turns`, with nothing around it and nothing compared."""
    connection = settled(python_connect(str(path)))
    migrate(connection, path)
    watch = Watch()
    with watch.over(batch * batches):
        for n in range(batches):
            connection.execute("BEGIN IMMEDIATE")
            for sid in range(batch):
                connection.execute(INSERT, (sid, n, "event", 1, DATA))
                name, key = f"session-{sid}", f"session-{sid}-{n // 3}"
                for kind in (("session", "key"), ("pending", "session"), ("pending",))[n % 3]:
                    found = name if kind == "session" else key
                    connection.execute(PUT, (kind, found, sid, n, "open", None, DATA))
            connection.execute("COMMIT")
    connection.close()
    return watch.cost


def bare_reads(path: Path, reads: int) -> Cost:
    """Get one entry, again and again, with nothing around it."""
    connection = settled(python_connect(str(path)))
    migrate(connection, path)
    connection.execute("INSERT INTO entry VALUES ('k', 'a', 1, 1, 'open', 1, ?)", (DATA,))
    watch = Watch()
    with watch.over(reads):
        for _ in range(reads):
            connection.execute("SELECT * FROM entry WHERE kind = 'k' AND key = 'a'").fetchall()
    connection.close()
    return watch.cost


Session = Callable[[SqliteStore, Lease, int], Awaitable[object]]


async def sessions(path: Path, many: int, times: int, session: Session) -> Cost:
    """Let so many sessions at once do something so many times each."""
    store = SqliteStore(path)
    await store.open()
    await store.renew("bench", 3_600_000, join=True)
    names = [f"session-{n}" for n in range(many)]
    await store.commit([Write(name, create="session", wake=0) for name in names])
    leases = await store.claim("bench", "session", many)
    await store.commit([Write(lease.stream, fence=lease) for lease in leases])
    watch = Watch()
    with watch.over(many * times):
        async with asyncio.TaskGroup() as group:
            for lease in leases:
                group.create_task(_finish(session(store, lease, times)))
    await store.close()
    return watch.cost


async def _finish(work: Awaitable[object]) -> None:
    await work


async def appends(store: SqliteStore, lease: Lease, times: int) -> None:
    """A driver that only appends."""
    for head in range(times):
        write = Write(lease.stream, [Record("event", DATA)], fence=lease, head=head)
        await store.commit([write])


async def turns(store: SqliteStore, lease: Lease, times: int) -> None:
    """What a session does: a message, a turn that opens a call, its result; in commits with puts.

    Three commits count as three operations: `times` is a multiple of three.
    """
    name = lease.stream
    for n in range(0, times, 3):
        line, key = [Record("event", DATA)], f"{name}-{n}"
        await store.commit(
            [Write(name, line, wake=1)],
            [_put("session", name, name, n // 3 * 2), _put("key", key, name, 0)],
        )
        await store.commit(
            [Write(name, line, fence=lease, head=n + 1)],
            [_put("pending", key, name, 0), _put("session", name, name, n // 3 * 2 + 1)],
        )
        await store.commit([Write(name, line, wake=1)], [_put("pending", key, name, 1)])


def _put(kind: str, key: str, stream: str, expect: int) -> Put:
    return Put(kind, key, expect, stream, "open", None, DATA)


async def gets(store: SqliteStore, lease: Lease, times: int) -> None:
    """Read one entry again and again."""
    name = lease.stream
    await store.commit([Write(name)], [_put("k", name, name, 0)])
    for _ in range(times):
        await store.get("k", name)


async def ends(store: SqliteStore, lease: Lease, times: int) -> None:
    """Read what came last to the stream."""
    await store.commit([Write(lease.stream, [Record("event", DATA)] * 10)])
    for _ in range(times):
        await store.read(lease.stream, after=8)


async def finds(store: SqliteStore, lease: Lease, times: int) -> None:
    """Look for the open calls of a session."""
    name = lease.stream
    await store.commit([Write(name)], [_put("k", name, name, 0)])
    for _ in range(times):
        await store.find("k", stream=name, state="open")


async def tails(store: SqliteStore, lease: Lease, times: int) -> None:
    """Look for news where there is none."""
    await store.commit([Write(lease.stream, [Record("event", DATA)] * 10)])
    cursor = (await store.tail("$")).cursor
    for _ in range(times):
        await store.tail(cursor)


def ours(session: Session, many: int, times: int) -> Callable[[Path], Cost]:
    """One measurement of the store."""
    return lambda path: asyncio.run(sessions(path, many, times, session))


LINES: tuple[tuple[str, Callable[[Path], Cost], Callable[[Path], Cost]], ...] = (
    ("append, 256 sessions", ours(appends, 256, 40), lambda path: bare_commits(path, 256, 40)),
    ("append, 1 session", ours(appends, 1, 300), lambda path: bare_commits(path, 1, 300)),
    ("with puts, 64 sessions", ours(turns, 64, 60), lambda path: bare_turns(path, 64, 60)),
    ("get, 1 session", ours(gets, 1, 2000), lambda path: bare_reads(path, 2000)),
    ("get, 64 sessions", ours(gets, 64, 50), lambda path: bare_reads(path, 2000)),
    ("read the last 2", ours(ends, 1, 2000), lambda path: bare_reads(path, 2000)),
    ("find by stream", ours(finds, 1, 2000), lambda path: bare_reads(path, 2000)),
    ("tail without news", ours(tails, 1, 2000), lambda path: bare_reads(path, 2000)),
)


def main() -> None:
    """Print a line per operation: the medians, and how much of the bare loop's speed is left."""
    print(f"{'SQLite store':<24}{'µs each':>10}{'CPU µs':>10}{'bare µs':>10}{'CPU µs':>10}  ratio")
    for name, our, bare in LINES:
        rounds = [(_in_new_file(our), _in_new_file(bare)) for _ in range(ROUNDS)]
        mine, theirs = _median([m for m, _ in rounds]), _median([t for _, t in rounds])
        print(
            f"{name:<24}{mine.wall:>10.1f}{mine.cpu:>10.1f}{theirs.wall:>10.1f}{theirs.cpu:>10.1f}"
            f"  {theirs.wall / mine.wall:.2f}"
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
