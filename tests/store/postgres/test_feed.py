"""Where the feed of a PostgreSQL store ends, while others are writing."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import asyncpg
import pytest
from tests.servers.fixtures import StartPostgres
from tests.support.http_shop import TOKENS
from tests.support.sse import reading

from perdure import Agent, Runtime, asgi
from perdure.store.base import Unavailable, Write
from perdure.store.postgres import feed as postgres_feed
from perdure.store.postgres.connection import PooledConnection
from perdure.store.postgres.feed import PostgresFeed
from perdure.store.postgres.sql import statement
from perdure.store.postgres.store import PostgresStore
from perdure.testing import ScriptedModel
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


@pytest.fixture
async def second(postgres_url: str) -> AsyncIterator[Other]:
    """Another connection that is in no hurry."""
    connection = await asyncpg.connect(postgres_url, server_settings={"search_path": "perdure"})
    yield connection
    await connection.close()


async def begin_with_id(connection: Other) -> int:
    await connection.execute("BEGIN")
    return int(await connection.fetchval("SELECT pg_current_xact_id()::text"))


async def test_a_higher_transaction_with_a_lower_position_is_waited_for(
    store: PostgresStore, other: Other, second: Other
) -> None:
    """E15: all transactions of the snapshot have ended, and one above its xmax has not."""
    await make(store, "slow", "s")
    start = (await store.tail("$")).cursor
    low, high = await begin_with_id(second), await begin_with_id(other)
    assert low < high
    await other.execute(APPEND)
    await second.execute(APPEND.replace("'slow'", "'s'").replace("late", "early"))
    await second.execute("COMMIT")
    for _ in range(2):
        feed = await store.tail(start)
        assert (feed.records, feed.cursor, feed.is_held) == ((), start, True)
    await other.execute("COMMIT")
    feed = await store.tail(start)
    assert ([one.data for one in feed.records], feed.is_held) == ([b"late", b"early"], False)


async def test_the_end_is_not_told_while_a_higher_transaction_has_a_lower_position(
    store: PostgresStore, other: Other, second: Other
) -> None:
    """E15"""
    await make(store, "slow", "s")
    await begin_with_id(second)
    await begin_with_id(other)
    await other.execute(APPEND)
    await second.execute(APPEND.replace("'slow'", "'s'"))
    await second.execute("COMMIT")
    ending = asyncio.create_task(store.tail("$"))
    await asyncio.wait([ending], timeout=0.1)
    assert not ending.done()
    await other.execute("ROLLBACK")
    assert (await store.tail((await ending).cursor)).records == ()


async def test_a_transaction_is_waited_for_that_has_a_position_and_no_id_yet(
    store: PostgresStore, other: Other
) -> None:
    """E15: a batch of new sessions takes its positions before the server gives it an id."""
    await make(store, "slow", "s")
    start = (await store.tail("$")).cursor
    await other.execute("BEGIN; LOCK TABLE record IN ROW EXCLUSIVE MODE")
    position = await other.fetchval("SELECT nextval('record_pos_seq')")
    assert await other.fetchval("SELECT pg_current_xact_id_if_assigned()") is None
    await store.commit([Write("s", [record("b")])])
    assert (await store.tail(start)).is_held
    await other.execute(
        "INSERT INTO record (sid, seq, pos, at, type, data) OVERRIDING SYSTEM VALUE "
        "SELECT sid, head + 1, $1, 1, 'said', 'late' FROM stream WHERE id = 'slow'",
        position,
    )
    await other.execute("COMMIT")
    assert [one.data for one in (await store.tail(start)).records] == [b"late", b"b"]


async def test_records_on_both_sides_of_a_permanent_gap_come_in_one_answer(
    store: PostgresStore, other: Other
) -> None:
    """E15: a reader that waits for the next change must not wait for what is there already."""
    await make(store, "slow", "s")
    start = (await store.tail("$")).cursor
    await store.commit([Write("s", [record("a")])])
    await other.execute("BEGIN")
    await other.execute(APPEND)
    await other.execute("ROLLBACK")
    await store.commit([Write("s", [record("b")])])
    feed = await store.tail(start)
    assert ([one.data for one in feed.records], feed.is_held) == ([b"a", b"b"], False)
    await other.execute("BEGIN")
    await other.execute(APPEND)
    await store.commit([Write("s", [record("c")])])
    feed = await store.tail(start)
    assert ([one.data for one in feed.records], feed.is_held) == ([b"a", b"b"], True)
    assert dict((await store.growth(start)).heads) == {"s": 3}


async def test_a_crashed_server_leaves_gaps_that_hold_nothing_up(
    start_postgres: StartPostgres,
) -> None:
    """E15: open transactions are gone, and some positions are lost."""
    server = start_postgres()
    store = PostgresStore(server.new_database())
    await store.open()
    await make(store, "slow", "s")
    start = (await store.tail("$")).cursor
    line = await store._connector.connect()
    await line.begin()
    await line.raw.execute(APPEND)
    await store.commit([Write("s", [record("b")])])
    assert (await store.tail(start)).is_held
    server.kill()
    server.start()
    line.raw.terminate()
    await store.commit([Write("s", [record("c")])])
    records = list[bytes]()
    while b"c" not in records:
        feed = await store.tail(start)
        assert feed.records, "it is held up"
        records, start = records + [one.data for one in feed.records], feed.cursor
    assert records == [b"b", b"c"]
    await store.close()


async def test_a_reader_that_comes_back_gets_all_events_while_a_transaction_is_open(
    postgres_url: str, store: PostgresStore, other: Other
) -> None:
    """E15: after a restart, with lost positions behind its last one."""
    agent = Agent("silent", model=ScriptedModel([]))
    async with Runtime(postgres_url, agents=[agent]) as rt:
        await rt.session("a", agent=agent).send("1")
        last = (await store.tail("")).cursor
        await store._ready().readers.query(
            lambda line: line.fetch("SELECT nextval('record_pos_seq') FROM generate_series(1, 3)")
        )
        for n in range(2):
            await rt.session("a").send(f"before {n}")
    async with Runtime(postgres_url, agents=[agent]) as rt:
        await other.execute("BEGIN; LOCK TABLE record IN ROW EXCLUSIVE MODE")
        async with reading(asgi(rt, auth=TOKENS), "/events", last_event_id=last) as reader:
            await reader.block()
            for n in range(2):
                await rt.session("b", agent=agent).send(f"after {n}")
            with anyio.move_on_after(0.3):
                await reader.next()
                pytest.fail("an event was sent before the transaction ended")
            await other.execute("COMMIT")
            texts = [(await reader.next()).data["data"]["content"] for _ in range(4)]
    assert texts == ["before 0", "before 1", "after 0", "after 1"]


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
