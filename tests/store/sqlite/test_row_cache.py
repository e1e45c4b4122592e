"""What the writer of the SQLite store keeps in memory is never other than what is in the file."""

import random
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from anyio.lowlevel import checkpoint

from perdure.errors import StoreError
from perdure.store.base import (
    DELETE,
    Fenced,
    ForeignWrite,
    HeadMoved,
    Heads,
    Lease,
    Put,
    Record,
    Release,
    Store,
    VersionMoved,
    Write,
)
from perdure.store.memory import MemoryStore
from perdure.store.shared.file_lock import WriteLock
from perdure.store.sqlite import row_cache as sqlite_ledger
from perdure.store.sqlite.open import python_connect
from perdure.store.sqlite.store import SqliteStore
from perdure.testing.contract import HandClock


class Ask(NamedTuple):
    """One operation, and whether the writer takes it before the others of its batch."""

    of: Callable[[Store], Any]
    is_first: bool = False


LINE = [Record("t", b"")]


async def outcome(ask: Any) -> object:
    """What it answers, or what it is refused with."""
    try:
        answer = await ask
        # Those that are due at the same time come in no order.
        return sorted(answer, key=str) if isinstance(answer, list) else answer
    except StoreError as error:
        return type(error), getattr(error, "head", None), getattr(error, "entry", None)


async def in_one_batch(store: SqliteStore, database: Path, asks: list[Ask]) -> list[object]:
    """What all of these are answered when they share a transaction."""
    outcomes: list[object] = [None] * len(asks)

    async def note(place: int, ask: Ask) -> None:
        outcomes[place] = await outcome(ask.of(store))

    lock = WriteLock(f"{database}.lock")
    lock.open()
    lock.acquire()
    async with anyio.create_task_group() as group:
        for place, ask in enumerate(asks):
            group.start_soon(note, place, ask)
        await checkpoint()
        await checkpoint()
        lock.release()
    lock.close()
    return outcomes


class Chance:
    """Commits, claims and heartbeats that often fit the rows, and often do not."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - it decides nothing secret
        self.leases: list[Lease] = []
        self.heads = dict.fromkeys("abc", 0)

    def asks(self) -> list[Ask]:
        return [self._ask() for _ in range(self._chance.randint(1, 12))]

    def _ask(self) -> Ask:
        pick = self._chance.random()
        if pick < 0.12:
            return Ask(lambda store: store.claim("w", "session", 9))
        if pick < 0.16:
            ttl, join = self._chance.choice([(0, False), (9, False), (9, True), (9, True)])
            is_heartbeat = ttl > 0 and not join
            return Ask(lambda store: store.renew("w", ttl, join=join), is_heartbeat)
        names = self._chance.sample("abc", self._chance.choice([1, 1, 1, 2]))
        writes = [self._write(name) for name in names]
        keys = self._chance.sample("xyz", self._chance.choice([0, 0, 1, 2]))
        taking = [write.stream for write in writes if not write.erase]
        puts = [self._put(key, self._chance.choice(taking)) for key in keys if taking]
        return Ask(lambda store: store.commit(writes, puts))

    def _write(self, name: str) -> Write:
        chance = self._chance
        if chance.random() < 0.04:
            return Write(name, erase=True)
        lines = LINE * chance.choice([0, 1, 1, 3])
        leases = [lease for lease in self.leases if lease.stream == name]
        if leases and chance.random() < 0.6:
            head = chance.choice([None, 0, self.heads[name], self.heads[name] + 1])
            release = Release(0) if head is not None and chance.random() < 0.3 else None
            create = chance.choice([None, None, "session"])
            return Write(name, lines, leases[-1], head, create, release=release)
        wake, claim = chance.choice([None, 0]), chance.choice([None, "w"])
        return Write(name, lines, create=chance.choice([None, "session"]), wake=wake, claim=claim)

    def _put(self, key: str, stream: str) -> Put:
        chance = self._chance
        data = DELETE if chance.random() < 0.2 else bytes([chance.randrange(256)])
        state, due = chance.choice(["open", "shut"]), chance.choice([None, 3])
        return Put("k", key, chance.choice([0, 0, 1, 2]), stream, state, due, data)


async def everything(store: Store) -> list[object]:
    """All that can be read."""
    slices = [await outcome(store.read(name)) for name in "abc"]
    return [slices, await store.find("k"), (await store.tail("")).records]


@pytest.mark.parametrize("seed", range(40))
async def test_batches_of_two_stores_on_one_file_answer_as_memory_does_one_by_one(
    database: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With every other seed, rows are loaded in statements for many, however few there are.
    monkeypatch.setattr(sqlite_ledger, "_FEW", 0 if seed % 2 else 8)
    clock, chance = HandClock(), Chance(seed)
    reference = MemoryStore(clock)
    await reference.open()
    stores = [SqliteStore(database, clock=clock) for _ in range(2)]
    for store in stores:
        await store.open()
    for turn in range(12):
        clock.advance(1)
        asks = sorted(chance.asks(), key=lambda ask: not ask.is_first)
        answers = await in_one_batch(stores[turn // 3 % 2], database, asks)
        expected = [await outcome(ask.of(reference)) for ask in asks]
        assert answers == expected
        for answer, other in zip(answers, expected, strict=True):
            if isinstance(answer, list):
                chance.leases += answer
            if isinstance(answer, Heads) and isinstance(other, Heads):
                assert answer.leases == other.leases
                chance.leases += answer.leases.values()
                chance.heads.update(answer)
        for store in stores:
            assert await everything(store) == await everything(reference)
    for store in stores:
        await store.close()


async def test_a_key_deleted_and_put_again_in_one_batch_belongs_to_its_new_stream(
    store: SqliteStore, database: Path
) -> None:
    await store.commit(
        [Write("s", create="session"), Write("t", create="session")],
        [Put("k", "x", 0, "s", "open", None, b"")],
    )
    gone, again = Put("k", "x", 1, "s", "", None, DELETE), Put("k", "x", 0, "t", "open", None, b"")
    asks: list[Ask] = [
        Ask(lambda store: store.commit([Write("s")], [gone])),
        Ask(lambda store: store.commit([Write("t")], [again])),
    ]
    assert await in_one_batch(store, database, asks) == [{"s": 0}, {"t": 0}]
    entry = await store.get("k", "x")
    assert entry is not None
    assert (entry.stream, entry.version) == ("t", 1)


@pytest.fixture
async def other(database: Path, store: SqliteStore) -> AsyncIterator[SqliteStore]:
    other = SqliteStore(database)
    await other.open()
    yield other
    await other.close()


async def drive(store: SqliteStore) -> Lease:
    """A lease on `s`, under which two commits were made, so that the writer knows it well."""
    await store.commit([Write("s", create="session", wake=0)])
    await store.renew("w", 60_000, join=True)
    (lease,) = await store.claim("w", "session", 1)
    for head in range(2):
        await store.commit([Write("s", LINE, fence=lease, head=head)])
    return lease


async def test_the_first_record_of_a_driver_ends_the_count_of_tries(store: SqliteStore) -> None:
    await store.commit([Write("s", create="session", wake=0)])
    for name in ("one", "two"):
        await store.renew(name, 60_000, join=True)
        (lease,) = await store.claim(name, "session", 1)
        assert lease.tries == 1
        await store.commit([Write("s", LINE, fence=lease, head=lease.head)])
        await store.renew(name, 0)


async def test_a_driver_cannot_make_its_stream_anew(store: SqliteStore) -> None:
    await store.commit([Write("s", create="session", wake=0)])
    await store.renew("w", 60_000, join=True)
    (lease,) = await store.claim("w", "session", 1)
    await store.commit([Write("s", fence=lease, head=0)])
    with pytest.raises(HeadMoved):
        await store.commit([Write("s", LINE, fence=lease, head=0, create="session")])


async def test_a_record_that_another_process_wrote_moves_the_head(
    store: SqliteStore, other: SqliteStore
) -> None:
    lease = await drive(store)
    await other.commit([Write("s", LINE)])
    with pytest.raises(HeadMoved) as moved:
        await store.commit([Write("s", LINE, fence=lease, head=2)])
    assert moved.value.head == 3


async def test_a_driver_whose_stream_another_process_gave_away_is_fenced(
    store: SqliteStore, other: SqliteStore
) -> None:
    lease = await drive(store)
    await other.renew("w", 0)
    with pytest.raises(Fenced):
        await store.commit([Write("s", LINE, fence=lease, head=2)])


async def test_an_entry_that_another_process_put_is_answered_with_its_data(
    store: SqliteStore, other: SqliteStore
) -> None:
    await store.commit(
        [Write("s", create="session")], [Put("k", "x", 0, "s", "open", None, b"old")]
    )
    await other.commit([Write("s")], [Put("k", "x", 1, "s", "shut", None, b"new")])
    with pytest.raises(VersionMoved) as moved:
        await store.commit([Write("s")], [Put("k", "x", 1, "s", "shut", None, b"late")])
    assert moved.value.entry is not None
    assert (moved.value.entry.version, moved.value.entry.data) == (2, b"new")


async def test_foreign_writes_are_counted_and_own_ones_are_not(
    store: SqliteStore, other: SqliteStore, database: Path
) -> None:
    heads = await store.commit([Write("s", LINE, create="session")])
    count = heads.foreign_writes
    await store.renew("worker", 60_000, join=True)
    assert (await store.commit([Write("s", LINE, foreign_writes=count)])).foreign_writes == count
    await other.commit([Write("t", LINE, create="session")])
    with pytest.raises(ForeignWrite):
        await store.commit([Write("s", LINE, foreign_writes=count)])
    second = (await store.commit([Write("s", LINE)])).foreign_writes
    assert second != count
    with sqlite3.connect(database) as connection:  # any program may have changed anything
        connection.execute("UPDATE record SET data = x'00' WHERE seq = 1")
    connection.close()
    with pytest.raises(ForeignWrite):
        await store.commit([Write("s", LINE, foreign_writes=second)])


async def test_what_others_wrote_while_the_writer_was_not_connected_counts_as_foreign(
    store: SqliteStore, other: SqliteStore
) -> None:
    count = (await store.commit([Write("s", LINE, create="session")])).foreign_writes
    assert store._connections is not None
    store._connections._writer.disconnect()  # as after a failed commit
    await other.commit([Write("t", LINE, create="session")])
    with pytest.raises(ForeignWrite):
        await store.commit([Write("s", LINE, foreign_writes=count)])
    count = (await store.commit([Write("s", LINE)])).foreign_writes
    await store.close()
    await store.open()
    with pytest.raises(ForeignWrite):
        await store.commit([Write("s", LINE, foreign_writes=count)])


async def test_what_is_kept_in_memory_has_a_bound(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_ledger, "_MOST_ROWS", 10)
    monkeypatch.setattr(sqlite_ledger, "_MOST_BYTES", 1000)
    await store.commit([Write("s", create="session")])
    for n in range(30):
        data = bytes(n * 10)
        await store.commit([Write("s", LINE)], [Put("k", f"{n}", 0, "s", "open", None, data)])
        assert store._connections is not None
        rows = store._connections._writer._commands
        assert rows is not None
        assert len(rows._row_cache.entries) + len(rows._row_cache.streams) <= 12
    assert len((await store.find("k")).entries) == 30


async def test_the_rows_of_a_batch_are_loaded_in_a_few_statements(database: Path) -> None:
    statements: list[str] = []

    def connect(path: str) -> sqlite3.Connection:
        connection = python_connect(path)
        connection.set_trace_callback(statements.append)
        return connection

    first = SqliteStore(database)
    await first.open()
    for n in range(40):
        put = Put("k", f"{n}", 0, f"s{n}", "open", None, b"")
        await first.commit([Write(f"s{n}", create="session")], [put])
    await first.close()
    store = SqliteStore(database, connect=connect)
    await store.open()
    statements.clear()

    def ask(n: int) -> Ask:
        put = Put("k", f"{n}", 1, f"s{n}", "open", None, b"x")
        return Ask(lambda store: store.commit([Write(put.stream, LINE)], [put]))

    asks = [ask(n) for n in range(40)]
    answers = await in_one_batch(store, database, asks)
    assert answers == [{f"s{n}": 1} for n in range(40)]
    loads = [sql for sql in statements if "SELECT" in sql and (" IN (" in sql or "key = " in sql)]
    assert len(loads) == 2  # streams, entries
    await store.close()
