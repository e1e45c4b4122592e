"""Reading the SQLite store: what is small is answered at once, the rest by a thread, both alike."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint

from perdure.store.base import Gone, NoStream, Put, Record, Write
from perdure.store.sqlite import reads
from perdure.store.sqlite.reads import SMALL
from perdure.store.sqlite.store import SqliteStore

MANY = SMALL.rows + 1
LARGE = bytes(SMALL.bytes + 1)


@pytest.fixture
async def full(store: SqliteStore) -> SqliteStore:
    """A long stream and a short one, with many entries and with one; a blob in the third."""
    lines = [Record("t", b"%d" % n) for n in range(1, MANY + 1)]
    puts = [Put("k", f"{n:04}", 0, "long", "open", n, b"") for n in range(MANY)]
    await store.commit([Write("long", lines, create="session")], puts)
    small = Put("k", "small", 0, "short", "shut", None, b"small")
    await store.commit([Write("short", lines[:3], create="session")], [small])
    large = Put("k", "vast", 0, "large", "vast", None, LARGE)
    await store.commit([Write("large", [Record("t", LARGE)], create="session")], [large])
    await store.commit([Write("gone", create="session")])
    await store.commit([Write("gone", erase=True)])
    await store.get("k", "small")  # the first question makes the connection
    return store


@pytest.fixture
async def hops(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[str]]:
    """What was asked of a thread."""
    hops: list[str] = []
    run_sync = to_thread.run_sync

    async def spied(function: Any, *args: Any, **options: Any) -> Any:
        hops.append(function.__name__)
        return await run_sync(function, *args, **options)

    monkeypatch.setattr(to_thread, "run_sync", spied)
    yield hops
    monkeypatch.undo()


SMALL_ONES: dict[str, Callable[[SqliteStore], Any]] = {
    "a short stream": lambda store: store.read("short"),
    "as much as is small": lambda store: store.read("long", limit=SMALL.rows),
    "the end of a long stream": lambda store: store.read("long", after=1),
    "where a stream stands": lambda store: store.read("large", limit=0),
    "an entry": lambda store: store.get("k", "small"),
    "no entry": lambda store: store.get("k", "none"),
    "a page": lambda store: store.find("k"),
    "a large page": lambda store: store.find("k", limit=SMALL.rows),
    "what a stream has": lambda store: store.find("k", stream="short"),
    "what is due": lambda store: store.find("k", due_before=9, limit=1000),
    "the feed": lambda store: store.tail("", limit=SMALL.rows),
    "the feed's end": lambda store: store.tail("$"),
    "a census of few rows": lambda store: store.census(["k"]),
}
LONG_ONES: dict[str, Callable[[SqliteStore], Any]] = {
    "a long stream": lambda store: store.read("long"),
    "a large record": lambda store: store.read("large"),
    "a large entry": lambda store: store.get("k", "vast"),
    "a page too large": lambda store: store.find("k", limit=1000),
    "a stream with many": lambda store: store.find("k", stream="long", limit=1),
    "a page with a large one": lambda store: store.find("k", state="vast"),
    "a long feed": lambda store: store.tail(""),
}


@pytest.mark.parametrize("ask", SMALL_ONES.values(), ids=SMALL_ONES)
async def test_what_is_small_needs_no_thread(
    full: SqliteStore, hops: list[str], ask: Callable[[SqliteStore], Any]
) -> None:
    await ask(full)
    assert hops == []


@pytest.mark.parametrize("ask", LONG_ONES.values(), ids=LONG_ONES)
async def test_what_may_take_long_is_left_to_a_thread(
    full: SqliteStore, hops: list[str], ask: Callable[[SqliteStore], Any]
) -> None:
    await ask(full)
    assert hops == ["_run_query"]


async def test_a_census_of_many_rows_is_left_to_a_thread(
    full: SqliteStore, hops: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "COUNTED_ROWS", MANY)
    census = await full.census(["k"])
    assert (sum(census.entries.values()), hops) == (MANY + 2, ["_run_query"])


@pytest.mark.parametrize("ask", SMALL_ONES.values(), ids=SMALL_ONES)
async def test_a_thread_answers_the_same(
    full: SqliteStore, hops: list[str], ask: Callable[[SqliteStore], Any]
) -> None:
    at_once = await ask(full)
    assert full._connections is not None
    full._connections._readers.close()  # so that there is no connection at hand
    assert await ask(full) == at_once
    assert hops == ["_run_query"]


async def test_what_is_read_in_a_thread_is_whole(full: SqliteStore) -> None:
    records = (await full.read("long")).records
    assert [int(r.data) for r in records] == [r.seq for r in records] == list(range(1, MANY + 1))
    assert [r.data for r in (await full.read("large")).records] == [LARGE]
    vast = await full.get("k", "vast")
    assert vast is not None
    assert vast.data == LARGE
    assert [e.due for e in (await full.find("k", stream="long", limit=MANY)).entries] == list(
        range(MANY)
    )
    assert len((await full.tail("", limit=1000)).records) == MANY + 4


async def test_a_refusal_needs_no_thread(full: SqliteStore, hops: list[str]) -> None:
    with pytest.raises(NoStream):
        await full.read("none")
    with pytest.raises(Gone):
        await full.read("gone")
    assert hops == []


async def test_everybody_reads_what_was_acknowledged(store: SqliteStore, database: Path) -> None:
    other = SqliteStore(database)
    await other.open()
    await store.commit([Write("s", create="session")])
    for head in range(1, 30):
        await store.commit([Write("s", [Record("t", b"")])])
        assert (await store.read("s", limit=0)).head == head
        assert (await other.read("s", limit=0)).head == head
    await other.close()


async def test_who_only_reads_lets_the_others_run(full: SqliteStore) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await checkpoint()
            turns += 1

    async with anyio.create_task_group() as group:
        group.start_soon(count)
        for _ in range(100):
            await full.get("k", "small")
        group.cancel_scope.cancel()
    assert turns >= 10


async def test_a_store_can_be_closed_while_it_is_read(database: Path) -> None:
    store = SqliteStore(database)
    await store.open()
    lines = [Record("t", bytes(1000))] * 5000
    await store.commit([Write("s", lines, create="session")])
    slices: list[int] = []

    async def read() -> None:
        slices.append(len((await store.read("s")).records))

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(read)
        await checkpoint()
        await store.close()
    assert slices == [5000] * 10
    assert sorted(path.name for path in database.parent.iterdir()) == [
        "perdure.db",
        "perdure.db.lock",
    ]
