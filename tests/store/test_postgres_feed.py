"""Where the feed of a PostgreSQL store ends, while others are writing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import asyncpg
import pytest

from holdfast.store import postgres_feed
from holdfast.store.base import Unavailable, Write
from holdfast.store.postgres import PostgresStore
from holdfast.testing.contract.steps import make, record

Other = Any  # a connection of asyncpg, which has no types

APPEND = """
    INSERT INTO record (sid, seq, type, at, data)
    SELECT sid, head + 1, 'said', 1, 'late' FROM stream WHERE id = 'slow'
"""


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    one = PostgresStore(postgres_url)
    await one.open()
    yield one
    await one.close()


@pytest.fixture
async def other(postgres_url: str) -> AsyncIterator[Other]:
    """A connection that is in no hurry."""
    connection = await asyncpg.connect(postgres_url, server_settings={"search_path": "holdfast"})
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
        with pytest.raises(Unavailable, match="where the feed ends"):
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
    line = await store._dial.line()
    await line.begin()
    await line.connection.execute(APPEND)
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


async def test_a_long_transaction_of_somebody_else_does_not_hold_up_the_end(
    store: PostgresStore, other: Other
) -> None:
    await make(store, "s")
    await other.execute("BEGIN; CREATE TABLE theirs ()")
    with anyio.fail_after(2):
        end = await store.tail("$")
    await store.commit([Write("s", [record("b")])])
    assert [r.data for r in (await store.tail(end.cursor)).records] == [b"b"]
