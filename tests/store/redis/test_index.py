"""The index in Redis answers faster or not at all; never something else than the store. S0.78"""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis
from tests.servers.redis import RedisServer

from perdure.app.layouts import PendingNames
from perdure.store.base import DELETE, Put, Record, Store, Write
from perdure.store.postgres.store import PostgresStore
from perdure.store.redis.index import Anchor, RedisIndex
from perdure.store.redis.store import IndexedStore
from perdure.store.sqlite.store import SqliteStore

SESSIONS, CALLS = 4, 5


def counted(store: Store) -> Counter[str]:
    """What the store is asked for from now on."""
    asked: Counter[str] = Counter()

    def counting(name: str, ask: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted_one(*args: Any, **more: Any) -> Any:
            asked[name] += 1
            return await ask(*args, **more)

        return counted_one

    for name in ("get", "find", "entries_of", "tail"):
        setattr(store, name, counting(name, getattr(store, name)))
    return asked


def stream(n: int) -> str:
    return f"s//s{n}"


def opened(n: int, k: int, state: str = "open", expect: int = 0) -> Put:
    """Call `k` of session `n`; every other one has a deadline."""
    due = 1000 * n + k if k % 2 and state == "open" else None
    return Put("pending", f"p{n}{k}", expect, stream(n), state, due, b"{}")


async def fill(store: Store) -> None:
    for n in range(SESSIONS):
        write = Write(stream(n), [Record("opened", b"", 1)] * 2, create="session:a")
        await store.commit([write], [opened(n, k) for k in range(CALLS)])
    settled = [opened(n, 0, "completed", 1) for n in range(SESSIONS)]
    await store.commit([Write(stream(n), [Record("t", b"", 2)]) for n in range(SESSIONS)], settled)


QUESTIONS: Sequence[dict[str, Any]] = (
    *({"stream": stream(n)} for n in range(SESSIONS + 1)),
    {"stream": stream(1), "state": "open"},
    *({"state": state} for state in ("open", "completed", "failed")),
    *({"due_before": due} for due in (0, 1001, 2500, 9999)),
    {"due_before": 9999, "state": "open"},
    {"state": "open", "limit": 3},
    {"state": "open", "limit": 3, "after": "0:p11"},
    {"due_before": 9999, "limit": 2, "after": "1001:p11"},
    {"state": "open", "limit": 0},
)


@dataclass
class Bench:
    """A filled store, with and without its index."""

    plain: Store
    store: IndexedStore
    redis: Redis
    asked: Counter[str]

    async def answers_alike(self) -> Counter[str]:
        """Every question has the answer of the store; what the index had to ask for it."""
        asked: Counter[str] = Counter()
        for question in QUESTIONS:
            self.asked.clear()
            found = await self.store.find("pending", **question)
            asked += self.asked
            assert found == await self.plain.find("pending", **question), question
        return asked


@pytest.fixture(params=["sqlite", "postgres"])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Store behind the index."""
    if request.param == "postgres":
        return PostgresStore(request.getfixturevalue("new_postgres_schema")())
    return SqliteStore(tmp_path / "perdure.db")


@asynccontextmanager
async def open_bench(plain: Store, redis_url: str) -> AsyncIterator[Bench]:
    """Open the store with its index, filled."""
    store = IndexedStore(plain, redis_url, PendingNames())
    await store.open()
    await fill(store)
    redis = Redis.from_url(redis_url, decode_responses=True)
    yield Bench(plain, store, redis, counted(plain))
    await redis.aclose()
    await store.close()


@pytest.fixture
async def bench(plain: Store, redis_url: str) -> AsyncIterator[Bench]:
    async with open_bench(plain, redis_url) as bench:
        yield bench


async def test_lookups_by_session_status_and_deadline_read_the_store_by_id_only(
    bench: Bench,
) -> None:
    """S0.78"""
    await bench.answers_alike()  # makes it
    asked = await bench.answers_alike()
    assert asked["find"] == asked["entries_of"] == 0
    assert asked["tail"] == len(QUESTIONS)  # is there news? there is none
    assert asked["get"] > len(QUESTIONS)


async def test_the_keys_are_those_that_others_read(bench: Bench) -> None:
    """S0.78"""
    await bench.answers_alike()
    assert await bench.redis.smembers("pending:by-session:s1") == {f"p1{k}" for k in range(CALLS)}
    assert await bench.redis.smembers("pending:by-status:completed") == {
        f"p{n}0" for n in range(SESSIONS)
    }
    deadlines = await bench.redis.zrange("pending:expiration", 0, -1, withscores=True)
    assert [tuple(one) for one in deadlines][:3] == [("p01", 1), ("p03", 3), ("p11", 1001)]


async def test_what_was_written_past_the_index_is_found(bench: Bench) -> None:
    """By a process that has none, or died before anybody could know."""
    await bench.answers_alike()
    await bench.plain.commit(
        [Write(stream(2), [Record("t", b"", 3)])],
        [opened(2, 9), opened(2, 1, "completed", 1)],
    )
    asked = await bench.answers_alike()
    assert (asked["find"], asked["entries_of"]) == (0, 1)
    assert await bench.redis.smismember("pending:by-session:s2", ["p29", "p21"]) == [1, 1]
    assert await bench.redis.smismember("pending:by-status:completed", ["p29", "p21"]) == [0, 1]


on_sqlite = pytest.mark.parametrize("bench", ["sqlite"], indirect=True)  # Redis is the same
Spoil = Callable[[Redis], Awaitable[Any]]
WRONG: dict[str, Spoil] = {
    "all is forgotten": lambda redis: redis.flushall(),
    "a set is lost": lambda redis: redis.delete("pending:by-session:s1"),
    "a call is missing in a set": lambda redis: redis.srem("pending:by-status:open", "p11"),
    "a call is in the wrong set": lambda redis: redis.smove(
        "pending:by-status:completed", "pending:by-status:open", "p10"
    ),
    "a call is in a set that it never had": lambda redis: redis.sadd("pending:by-session:s3", "x"),
    "a call was swapped for another": lambda redis: redis.eval(
        "redis.call('SREM', KEYS[1], 'p11') redis.call('SADD', KEYS[1], 'p22')",
        1,
        "pending:by-session:s1",
    ),
    "a deadline is missing": lambda redis: redis.zrem("pending:expiration", "p11"),
    "a key is of another kind": lambda redis: redis.set("pending:expiration", "x"),
    "the index itself is": lambda redis: redis.set("pending:index", "x"),
    "its place is rubbish": lambda redis: redis.hset("pending:index", "place", "rubbish"),
    "its place is no place of the feed": lambda redis: redis.hset(
        "pending:index", "place", '{"cursor":"rubbish"}'
    ),
    "what is known of a call is lost": lambda redis: redis.hdel("pending:known", "p11"),
    "what is known of a call is rubbish": lambda redis: redis.hset("pending:known", "p11", "{"),
    "it knows another version": lambda redis: redis.hset(
        "pending:known",
        "p11",
        '{"id":"p11","version":7,"stream":"s//s1","session":"s1",'
        '"status":"open","state":"completed"}',
    ),
    "it belongs to another store": lambda redis: redis.hset(
        "pending:index", "place", '{"cursor":"11","record":["s//other",1,5]}'
    ),
    "somebody died while making it": lambda redis: redis.eval(
        "redis.call('DEL', 'pending:index') redis.call('SET', 'pending:rebuilding', 'x')", 0
    ),
}


@on_sqlite
@pytest.mark.parametrize("spoil", WRONG.values(), ids=WRONG.keys())
async def test_a_wrong_index_never_changes_an_answer(bench: Bench, spoil: Spoil) -> None:
    """S0.78"""
    await bench.answers_alike()
    await spoil(bench.redis)
    bench.store._paused_until = 0
    await bench.answers_alike()


@on_sqlite
@pytest.mark.parametrize("name", [name for name in WRONG if "died" not in name])
async def test_and_is_mended(bench: Bench, name: str) -> None:
    await bench.answers_alike()
    await WRONG[name](bench.redis)
    await bench.answers_alike()
    await bench.answers_alike()
    assert (await bench.answers_alike())["find"] == 0


async def test_redis_away_means_slower_only(
    plain: Store, own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """S0.78"""
    async with open_bench(plain, own_redis.url) as bench:
        await bench.answers_alike()
        own_redis.kill()
        with caplog.at_level(logging.WARNING, "perdure"):
            asked = await bench.answers_alike()
        assert asked["find"] == len(QUESTIONS)
        assert [record.message for record in caplog.records] == [
            "Redis failed (ConnectionError): lookups use the store, slower"
        ]
        await bench.store.commit([Write(stream(1))], [opened(1, 8)])  # of which no record tells
        own_redis.start()
        bench.store._paused_until = 0
        await bench.answers_alike()


async def test_entries_that_are_removed_without_a_word_are_not_found(bench: Bench) -> None:
    await bench.answers_alike()
    settled = Put("pending", "p10", 2, stream(1), "completed", None, DELETE)
    await bench.store.commit([Write(stream(1))], [settled])
    await bench.plain.commit(
        [Write(stream(2))], [Put("pending", "p20", 2, stream(2), "x", None, DELETE)]
    )
    await bench.plain.commit([Write(stream(3), erase=True)])
    await bench.answers_alike()


async def test_a_store_that_was_put_back_in_time_has_its_index_made_anew(
    bench: Bench, tmp_path: Path, redis_url: str
) -> None:
    """Another store with the same Redis, as after a restore: its feed has the same places."""
    await bench.answers_alike()
    await bench.plain.commit([Write(stream(2), [Record("t", b"", 3)] * 2)], [opened(2, 9)])
    await bench.answers_alike()
    other = SqliteStore(tmp_path / "restored.db")
    store = IndexedStore(other, redis_url, PendingNames())
    await store.open()
    await fill(store)
    await other.commit([Write(stream(1), [Record("t", b"", 4)] * 2)], [opened(1, 9)])
    await Bench(other, store, bench.redis, counted(other)).answers_alike()
    await store.close()


async def test_too_many_are_left_to_the_store(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.store.redis.index.MOST", 3)
    await bench.answers_alike()
    assert (await bench.answers_alike())["find"] > 0


async def write_many(store: Store, n: int) -> None:
    for k in range(10, 40):
        record = Record("t", b"", k)
        await store.commit([Write(stream(n), [record])], [opened(n, k)])
        put = opened(n, k, "completed", 1)
        await store.commit([Write(stream(n), [record])], [put])


async def look_often(store: Store) -> None:
    for _ in range(10):
        for question in QUESTIONS:
            await store.find("pending", **question)


async def test_two_who_follow_at_once_and_many_who_write_agree_with_the_store(
    bench: Bench, redis_url: str
) -> None:
    others = [IndexedStore(bench.plain, redis_url, PendingNames()) for _ in range(3)]
    async with AsyncExitStack() as stack:
        for other in others:
            await other.open()
            stack.push_async_callback(other.close)
        async with anyio.create_task_group() as group:
            for n in range(SESSIONS):
                group.start_soon(write_many, bench.plain, n)
            for other in others:
                group.start_soon(look_often, other)
        for other in others:
            await Bench(bench.plain, other, bench.redis, bench.asked).answers_alike()


async def test_a_rebuild_that_takes_too_long_is_not_taken_for_one(bench: Bench) -> None:
    index = RedisIndex(bench.redis)
    assert await index.begin_rebuild("mine")
    assert not await index.begin_rebuild("theirs")
    await bench.redis.set("pending:rebuilding", "theirs")
    await index.finish_rebuild("mine", Anchor(""))
    assert await index.lookup(["pending:by-session:s1"]) is None
