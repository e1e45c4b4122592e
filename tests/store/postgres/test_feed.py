"""Where the feed of a PostgreSQL store ends, while others are writing."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import asyncpg
import pytest

from perdure.store.base import Unavailable, Write
from perdure.store.postgres import feed as postgres_feed
from perdure.store.postgres.connection import PooledConnection
from perdure.store.postgres.feed import PostgresFeed
from perdure.store.postgres.sql import statement
from perdure.store.postgres.store import PostgresStore
from perdure.testing.contract.steps import make, record

Other = Any  # a connection of asyncpg, which has no types

APPEND = """
    INSERT INTO record (sid, seq, type, at, data)
    SELECT sid, head + 1, 'said', 1, 'late' FROM stream WHERE id = 'slow'
"""


@pytest.fixture
async def other(postgres_url: str) -> AsyncIterator[Other]:
    """A connection that is in no hurry."""
    connection = await asyncpg.connect(postgres_url, server_settings={"search_path": "perdure"})
    yield connection
    await connection.close()


async def test_no_end_is_told_behind_which_a_record_can_still_come(
    store: PostgresStore, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place was taken before two thousand others, and it becomes visible after them."""
    await make(store, "slow", "s")
    await other.execute("BEGIN")
    await other.execute(APPEND)
    await store.commit([Write("s", [record(str(n)) for n in range(2000)])])
    with monkeypatch.context() as patched:
        patched.setattr(postgres_feed, "_END_S", 0.2)
        with pytest.raises(Unavailable, match="the end of the feed is unknown"):
            await store.tail("$")
    ending = asyncio.create_task(store.tail("$"))
    await asyncio.wait([ending], timeout=0.1)
    assert not ending.done()
    await other.execute("COMMIT")
    assert (await store.tail((await ending).cursor)).records == ()


async def test_a_long_transaction_of_somebody_else_does_not_hold_up_the_feed_at_a_hole(
    store: PostgresStore, other: Other
) -> None:
    """Somebody has rolled back while an hour of somebody else's work goes on in the cluster."""
    await make(store, "slow", "s")
    await other.execute("BEGIN; CREATE TABLE theirs ()")
    line = await store._connector.connect()
    await line.begin()
    await line.raw.execute(APPEND)
    await line.roll_back()
    await line.close()
    await store.commit([Write("s", [record("b")])])
    cursor, seen = "", list[bytes]()
    while b"b" not in seen:
        feed = await store.tail(cursor)
        assert feed.records, "it is held up"
        cursor = feed.cursor
        seen += [one.data for one in feed.records]


async def test_a_hole_is_waited_for_while_somebody_may_fill_it(
    store: PostgresStore, other: Other
) -> None:
    await make(store, "slow", "s")
    start = (await store.tail("$")).cursor
    await other.execute("BEGIN")
    await other.execute(APPEND)
    await store.commit([Write("s", [record("after")])])
    assert (await store.tail(start)).records == ()
    await other.execute("COMMIT")
    seen = [one.data for one in (await store.tail(start)).records]
    assert seen == [b"late", b"after"]


async def test_an_answer_that_came_late_does_not_close_a_hole_that_was_seen_after_it(
    store: PostgresStore, postgres_url: str, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two who read the feed ask who appends; the first is answered before somebody begins to."""
    asked, may_come = asyncio.Event(), asyncio.Event()
    real, answers = PostgresFeed._query, iter([may_come])

    async def late(follower: PostgresFeed, name: str) -> Sequence[Any]:
        answer = await real(follower, name)
        if name == "appending":
            asked.set()
            if (one := next(answers, None)) is not None:
                await one.wait()
        return answer

    monkeypatch.setattr(PostgresFeed, "_query", late)
    await make(store, "slow", "s")
    long = await asyncpg.connect(postgres_url)
    await long.execute("BEGIN; SELECT pg_current_xact_id()")
    await other.execute("BEGIN")
    await other.execute(APPEND)
    await other.execute("ROLLBACK")  # a hole that stays
    await store.commit([Write("s", [record("a")])])
    first = asyncio.create_task(store.tail("2"))
    await asked.wait()
    asked.clear()
    await other.execute("BEGIN")
    await other.execute(APPEND)
    await store.commit([Write("s", [record("b")])])
    second = asyncio.create_task(store.tail("2"))
    with anyio.move_on_after(0.3):
        await asked.wait()
        await asyncio.sleep(0.01)
    may_come.set()
    feeds = [await first, await second]
    await other.execute("COMMIT")
    await long.close()
    for feed in feeds:
        rest = (await store.tail(feed.cursor)).records
        assert [one.data for one in (*feed.records, *rest)] == [b"a", b"late", b"b"]


async def test_records_that_came_late_are_not_shown_by_what_was_learned_after_they_were_read(
    store: PostgresStore, postgres_url: str, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, asked, may_come = asyncio.Event(), asyncio.Event(), asyncio.Event()
    real, answers = PooledConnection.fetch, iter([may_come])

    async def late(line: PooledConnection, sql: str, *args: Any) -> Sequence[Any]:
        answer = await real(line, sql, *args)
        if sql == statement("appending"):
            asked.set()
        if sql == statement("feed") and (one := next(answers, None)) is not None:
            read.set()
            await one.wait()
        return answer

    await make(store, "slow", "s")
    long = await asyncpg.connect(postgres_url)
    await long.execute("BEGIN; SELECT pg_current_xact_id()")
    await other.execute("BEGIN")
    await other.execute(APPEND)
    await store._ready().readers.query(lambda line: line.fetch("SELECT nextval('record_pos_seq')"))
    await store.commit([Write("s", [record("b")])])
    monkeypatch.setattr(PooledConnection, "fetch", late)
    first = asyncio.create_task(store.tail("2"))
    await read.wait()
    second = asyncio.create_task(store.tail("2"))
    await asked.wait()
    await other.execute("COMMIT")
    feeds = [await second]
    await store.tail(feeds[0].cursor)
    may_come.set()
    feeds.append(await first)
    await long.close()
    for feed in feeds:
        rest = (await store.tail(feed.cursor)).records
        assert [one.data for one in (*feed.records, *rest)] == [b"late", b"b"]


async def test_a_long_transaction_of_somebody_else_does_not_hold_up_the_end(
    store: PostgresStore, other: Other
) -> None:
    await make(store, "s")
    await other.execute("BEGIN; CREATE TABLE theirs ()")
    with anyio.fail_after(2):
        end = await store.tail("$")
    await store.commit([Write("s", [record("b")])])
    assert [r.data for r in (await store.tail(end.cursor)).records] == [b"b"]
