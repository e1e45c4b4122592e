"""The writer of the SQLite store: what shares a transaction, and what a failure does to it."""

import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from perdure.errors import StoreError
from perdure.store.base import FindOptions, Put, Record, Release, Unavailable, Unknown, Write
from perdure.store.shared.file_lock import WriteLock
from perdure.store.shared.queries import EntryQuery
from perdure.store.sqlite import writer
from perdure.store.sqlite.commands import _CLAIM_OLDEST, _HOLDERS, _NOTHING_DUE
from perdure.store.sqlite.open import BUSY_S, WAL_LIMIT_BYTES
from perdure.store.sqlite.reads import ANY, SMALL, find
from perdure.store.sqlite.store import SqliteStore


class Wire:
    """What was sent to SQLite, and a fault to answer with instead."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.fault: Callable[[str, Any], Exception | None] = lambda sql, values: None
        self.loses_answers = False  # the fault comes after the deed

    def connect(self, path: str) -> sqlite3.Connection:
        wire = self

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, values: Any = (), /) -> sqlite3.Cursor:
                wire.sent.append(sql)
                error = wire.fault(sql, values)
                if error is not None:
                    if wire.loses_answers:
                        super().execute(sql, values)
                    raise error
                return super().execute(sql, values)

            def executemany(self, sql: str, rows: Any, /) -> sqlite3.Cursor:
                wire.sent.append(sql)
                for error in (wire.fault(sql, values) for values in rows):
                    if error is not None:
                        raise error
                return super().executemany(sql, rows)

        return sqlite3.connect(
            path,
            timeout=BUSY_S,
            isolation_level=None,
            check_same_thread=False,
            factory=Connection,
        )

    def transactions(self) -> int:
        return self.sent.count("BEGIN IMMEDIATE")


def disk_error() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error


def size(path: Path) -> int:
    return path.stat().st_size


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
async def spied(database: Path, wire: Wire) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(database, connect=wire.connect)
    await store.open()
    await store.commit([Write(name, create="session") for name in "abc"])
    wire.sent.clear()
    yield store
    await store.close()


class Together:
    """Makes everything that is asked for meanwhile wait for one lock, and so share a batch."""

    def __init__(self, database: Path) -> None:
        self._lock = WriteLock(f"{database}.lock")
        self.outcomes: dict[str, object] = {}

    async def run(self, **asks: Any) -> dict[str, object]:
        self._lock.open()
        self._lock.acquire()
        async with anyio.create_task_group() as group:
            for name, ask in asks.items():
                group.start_soon(self._note, name, ask)
            await checkpoint()
            await checkpoint()
            self._lock.release()
        self._lock.close()
        return self.outcomes

    async def _note(self, name: str, ask: Any) -> None:
        try:
            self.outcomes[name] = await ask
        except (StoreError, ValueError) as error:
            self.outcomes[name] = error


async def test_a_claim_asked_for_after_a_commit_rides_in_its_transaction(
    spied: SqliteStore, database: Path, wire: Wire
) -> None:
    await spied.renew("worker", 60_000, join=True)
    wire.sent.clear()
    outcomes = await Together(database).run(
        commit=spied.commit([Write("a", [Record("t", b"")], wake=0)]),
        claim=spied.claim("worker", "session", 5),
    )
    assert outcomes["commit"] == {"a": 1}
    claimed = outcomes["claim"]
    assert isinstance(claimed, list)
    assert [lease.stream for lease in claimed] == ["a"]
    assert wire.transactions() == 1


async def test_what_waits_together_is_one_transaction(
    spied: SqliteStore, database: Path, wire: Wire
) -> None:
    asks = {str(n): spied.commit([Write("a", [Record("t", b"")])]) for n in range(100)}
    outcomes = await Together(database).run(**asks)
    assert sorted(head["a"] for head in outcomes.values()) == list(range(1, 101))  # type: ignore[index]
    assert wire.transactions() == 1


async def test_a_heartbeat_does_not_wait_for_the_commits_of_a_batch(
    spied: SqliteStore, database: Path, wire: Wire
) -> None:
    await spied.renew("worker", 60_000, join=True)
    wire.sent.clear()
    outcomes = await Together(database).run(
        commit=spied.commit([Write("a", [Record("t", b"")])]),
        other=spied.commit([Write("b", [Record("t", b"")])]),
        beat=spied.renew("worker", 70_000),
    )
    assert list(outcomes) == ["beat", "commit", "other"]
    assert wire.transactions() == 2


async def test_a_heartbeat_is_written_before_long_commits_that_wait(
    spied: SqliteStore, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E19"""
    monkeypatch.setattr(writer, "_MANY_RECORDS", 3)
    await spied.renew("worker", 60_000, join=True)
    long = [Record("t", b"")] * 3
    outcomes = await Together(database).run(
        small=spied.commit([Write("a", long[:1])]),
        first=spied.commit([Write("b", long)]),
        second=spied.commit([Write("c", long)]),
        beat=spied.renew("worker", 70_000),
    )
    order = [name for name in outcomes if name != "small"]
    assert order == ["beat", "first", "second"]


async def test_long_commits_are_transactions_of_their_own(
    spied: SqliteStore, database: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E19"""
    monkeypatch.setattr(writer, "_MANY_RECORDS", 3)
    asks = {name: spied.commit([Write(name, [Record("t", b"")] * 3)]) for name in "abc"}
    outcomes = await Together(database).run(**asks)
    assert outcomes == {name: {name: 3} for name in "abc"}
    assert wire.transactions() == 3


async def test_a_commit_sqlite_cannot_take_fails_alone(
    spied: SqliteStore, database: Path, wire: Wire
) -> None:
    def poisoned(_: str, values: Any) -> Exception | None:
        return sqlite3.IntegrityError("poison") if b"poison" in values else None

    wire.fault = poisoned
    outcomes = await Together(database).run(
        a=spied.commit([Write("a", [Record("t", b"")])]),
        b=spied.commit([Write("b", [Record("t", b"fine"), Record("t", b"poison")])]),
        c=spied.commit([Write("c", [Record("t", b"")])]),
    )
    assert (outcomes["a"], outcomes["c"]) == ({"a": 1}, {"c": 1})
    assert isinstance(outcomes["b"], StoreError)
    assert "poison" in str(outcomes["b"])
    assert (await spied.read("b")).head == 0


async def test_commits_that_are_retried_after_a_failure_have_the_lock(
    spied: SqliteStore, database: Path, wire: Wire
) -> None:
    """G1: the batch fails by one commit, and the disk when the first is retried alone."""
    other = WriteLock(f"{database}.lock")
    other.open()
    errors: list[sqlite3.Error] = [disk_error(), sqlite3.IntegrityError("poison")]
    unlocked: list[str] = []

    def fault(sql: str, _: Any) -> Exception | None:
        if sql == "COMMIT" and other.try_acquire():
            other.release()
            unlocked.append(sql)
        return errors.pop() if errors and "INSERT INTO record" in sql else None

    wire.fault = fault
    outcomes = await Together(database).run(
        a=spied.commit([Write("a", [Record("t", b"")])]),
        b=spied.commit([Write("b", [Record("t", b"")])]),
    )
    assert isinstance(outcomes["a"], Unavailable)
    assert (outcomes["b"], unlocked) == ({"b": 1}, [])
    other.close()


async def test_a_disk_error_before_commit_means_nothing_was_written(
    spied: SqliteStore, database: Path, wire: Wire
) -> None:
    wire.fault = lambda sql, _: disk_error() if "INSERT INTO record" in sql else None
    outcomes = await Together(database).run(
        a=spied.commit([Write("a", [Record("t", b"")])]),
        b=spied.commit([Write("b", wake=0)]),
    )
    assert [type(outcome) for outcome in outcomes.values()] == [Unavailable, Unavailable]
    wire.fault = lambda _sql, _values: None
    assert (await spied.read("b")).due is None
    assert await spied.commit([Write("a", [Record("t", b"")])]) == {"a": 1}


@pytest.mark.parametrize("survives", [True, False])
async def test_a_failing_commit_is_unknown_to_all_and_the_writer_goes_on(
    spied: SqliteStore, database: Path, wire: Wire, survives: bool
) -> None:
    wire.loses_answers = survives
    wire.fault = lambda sql, _: disk_error() if sql == "COMMIT" else None
    outcomes = await Together(database).run(
        a=spied.commit([Write("a", [Record("t", b"")])]),
        none=spied.commit([Write("none", [Record("t", b"")])]),
    )
    assert [type(outcome) for outcome in outcomes.values()] == [Unknown, Unknown]
    wire.fault = lambda _sql, _values: None
    assert (await spied.read("a")).head == int(survives)
    assert await spied.commit([Write("a", [Record("t", b"")])]) == {"a": 1 + int(survives)}


@pytest.mark.parametrize("survives", [True, False])
async def test_a_claim_of_a_commit_without_a_reply_is_undone_by_the_next_write(
    spied: SqliteStore, wire: Wire, survives: bool
) -> None:
    """G9: its caller does not know that it should drive, and the heartbeat goes on."""
    await spied.renew("worker", 60_000, join=True)
    for _ in range(7):  # however often: nobody died on it
        wire.loses_answers = survives
        wire.fault = lambda sql, _: disk_error() if sql == "COMMIT" else None
        with pytest.raises(Unknown):
            await spied.commit([Write("a", [Record("t", b"")], wake=0, claim="worker")])
        wire.fault = lambda _sql, _values: None
        assert (await spied.read("a")).holder == ("worker" if survives else None)
        await spied.renew("worker", 60_000)
        assert (await spied.read("a")).holder is None
    assert (await spied.read("a")).head == 7 * survives
    heads = await spied.commit([Write("a", wake=0, claim="worker")])
    assert heads.leases["a"].tries == 1


async def test_an_idle_worker_finds_what_a_commit_without_a_reply_claimed(
    spied: SqliteStore, wire: Wire
) -> None:
    """The claim after it frees the stream first, and then leases it."""
    await spied.renew("worker", 60_000, join=True)
    wire.loses_answers = True
    wire.fault = lambda sql, _: disk_error() if sql == "COMMIT" else None
    with pytest.raises(Unknown):
        await spied.commit([Write("a", [Record("t", b"")], wake=0, claim="worker")])
    wire.fault = lambda _sql, _values: None
    (lease,) = await spied.claim("worker", "session", 1)
    assert (lease.stream, lease.epoch, lease.tries) == ("a", 3, 1)


async def test_a_lost_connection_is_opened_again(spied: SqliteStore, wire: Wire) -> None:
    wire.fault = lambda sql, _: disk_error() if sql == "BEGIN IMMEDIATE" else None
    with pytest.raises(Unavailable, match="the disk under"):
        await spied.commit([Write("a", [Record("t", b"")])])
    wire.fault = lambda _sql, _values: None
    assert await spied.commit([Write("a", [Record("t", b"")])]) == {"a": 1}
    wire.fault = lambda sql, _: disk_error() if "FROM stream LEFT JOIN" in sql else None
    with pytest.raises(Unavailable):
        await spied.read("a")
    wire.fault = lambda _sql, _values: None
    assert (await spied.read("a")).head == 1


async def test_idle_polling_never_writes_nor_waits_for_a_writer(
    spied: SqliteStore, database: Path, wire: Wire
) -> None:
    await spied.renew("worker", 60_000, join=True)
    wire.sent.clear()
    lock = WriteLock(f"{database}.lock")
    lock.open()
    lock.acquire()
    with anyio.fail_after(5):
        for _ in range(10):
            assert await spied.claim("worker", "session", 5) == []
    lock.release()
    lock.close()
    assert wire.transactions() == 0


async def test_a_driver_s_appends_load_nothing_after_the_first(
    spied: SqliteStore, wire: Wire
) -> None:
    await spied.commit([Write("a", wake=0)])
    await spied.renew("worker", 60_000, join=True)
    (lease,) = await spied.claim("worker", "session", 1)
    await spied.commit([Write("a", [Record("t", b"")], fence=lease, head=0)])
    wire.sent.clear()
    two = [Record("t", b"1"), Record("t", b"2")]
    assert await spied.commit([Write("a", two, fence=lease, head=1)]) == {"a": 3}
    assert not any("FROM stream WHERE id" in sql for sql in wire.sent)
    await spied.commit([Write("a", [Record("t", b"fact")])])
    assert await spied.commit([Write("a", two, fence=lease)]) == {"a": 6}
    assert await spied.commit([Write("a", two, fence=lease, head=6)]) == {"a": 8}
    parked = Write("a", fence=lease, head=8, release=Release())
    assert await spied.commit([parked]) == {"a": 8}
    assert [r.seq for r in (await spied.read("a")).records] == list(range(1, 9))


async def test_what_was_rolled_back_was_not_learned(spied: SqliteStore, wire: Wire) -> None:
    await spied.commit([Write("a", wake=0)])
    await spied.renew("worker", 60_000, join=True)
    (lease,) = await spied.claim("worker", "session", 1)
    wire.fault = lambda sql, _: sqlite3.IntegrityError("no") if sql == "COMMIT" else None
    with pytest.raises(Unknown):
        await spied.commit([Write("a", fence=lease, head=0)])
    wire.fault = lambda _, values: sqlite3.IntegrityError("no") if "bad" in values else None
    with pytest.raises(StoreError):
        await spied.commit([Write("a", fence=lease, head=0), Write("bad", create="session")])
    wire.fault = lambda _sql, _values: None
    await spied.commit([Write("a", [Record("t", b"")], fence=lease, head=0)])
    await spied.commit([Write("a", fence=lease, head=1, release=Release(0))])
    (lease,) = await spied.claim("worker", "session", 1)
    assert lease.tries == 1


async def test_closing_finishes_what_was_asked_for(database: Path) -> None:
    store = SqliteStore(database)
    await store.open()
    await store.commit([Write("s", create="session")])
    heads: list[int] = []

    async def write() -> None:
        heads.append((await store.commit([Write("s", [Record("t", b"")])]))["s"])

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(write)
        await checkpoint()
        await store.close()
    assert sorted(heads) == list(range(1, 21))


async def test_the_write_ahead_log_stays_bounded(store: SqliteStore, database: Path) -> None:
    await store.commit([Write("s", create="session")])
    wal = database.with_name("perdure.db-wal")
    largest = 0
    for _ in range(60):
        await store.commit([Write("s", [Record("blob", os.urandom(1_000_000))])])
        largest = max(largest, size(wal))
    assert largest < WAL_LIMIT_BYTES + 3_000_000
    assert size(database) > 30_000_000


async def test_after_a_quiet_second_the_log_is_in_the_database(
    store: SqliteStore, database: Path
) -> None:
    await store.commit([Write("s", [Record("blob", os.urandom(500_000))], create="session")])
    until = time.monotonic() + 10
    while size(database) < 500_000:
        assert time.monotonic() < until
        await store.changed(0.05)


async def test_what_is_found_by_due_time_is_found_by_its_index(
    store: SqliteStore, database: Path
) -> None:
    """However many sessions are parked: no scan, no sorting."""
    await store.commit(
        [Write("s", create="session")], [Put("pending", "k", 0, "s", "open", 5, b"")]
    )
    connection = sqlite3.connect(database)
    plans: list[str] = []

    class Explained:
        def execute(self, sql: str, values: Any) -> sqlite3.Cursor:
            rows = connection.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()
            plans.extend(row[3] for row in rows)
            return connection.execute(sql, values)

    explained: Any = Explained()
    options: tuple[FindOptions, ...] = ({}, {"state": "open"}, {"due_before": 9})
    for option in (*options, FindOptions(state="open", due_before=9)):
        assert find(explained, ANY, EntryQuery.of("pending", option)).entries
        find(explained, ANY, EntryQuery.of("pending", {**option, "after": "1:k"}))
    find(explained, SMALL, EntryQuery.of("pending", {"stream": "s", "state": "open"}))
    explained.execute(_CLAIM_OLDEST, ("session", 9, 10))
    explained.execute(_HOLDERS, ())
    explained.execute(_NOTHING_DUE, ("session", 9))
    connection.close()
    scans = [plan for plan in plans if plan.startswith("SCAN") and "CONSTANT" not in plan]
    assert [plan for plan in scans if plan != "SCAN holder"] == []
    assert len([plan for plan in plans if "TEMP B-TREE" in plan]) <= 1  # one stream's own few
