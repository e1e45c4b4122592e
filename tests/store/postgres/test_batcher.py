"""Claims and lookups that are asked for at one time are one statement, and each its own answer."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from asyncpg.connection import Connection

from perdure.errors import StoreError
from perdure.store.base import ANY_TRIES, Lost, Put, Record, Unavailable, Write
from perdure.store.postgres.batcher import Batcher
from perdure.store.postgres.sql import statement
from perdure.store.postgres.store import PostgresStore
from perdure.testing import ManualClock
from perdure.testing.contract.steps import join, make, put

STREAMS = [f"s{number}" for number in range(40)]


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each statement is asked meanwhile."""
    seen: Counter[str] = Counter()
    fetch = Connection.fetch

    async def counting(self: Any, sql: str, *values: Any, **more: Any) -> Any:
        seen[sql] += 1
        return await fetch(self, sql, *values, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Connection, "fetch", counting)
        yield seen


async def test_claims_by_name_at_one_time_are_few_statements(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(store, *STREAMS)
    await join(store, "worker")
    with counted(monkeypatch) as seen:
        leases = await asyncio.gather(
            *(store.claim("worker", "session", 1, only=name) for name in [*STREAMS, *STREAMS])
        )
    assert [[lease.stream for lease in one] for one in leases[:40]] == [[n] for n in STREAMS]
    assert leases[40:] == [[]] * 40  # who asked second for the same one has nothing
    assert seen[statement("claim_these")] <= 2
    assert seen[statement("check_for_work")] == 0


async def test_all_who_claim_for_a_holder_that_is_not_alive_are_told(store: PostgresStore) -> None:
    await make(store, *STREAMS[:3])
    claims = (store.claim("nobody", "session", 1, only=name) for name in STREAMS[:3])
    answers = await asyncio.gather(*claims, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Lost] * 3
    assert len({id(answer) for answer in answers}) == 3


async def test_what_a_dead_holder_had_is_had_by_name_at_once(postgres_url: str) -> None:
    clock = ManualClock()
    store = PostgresStore(postgres_url, clock=clock)
    await store.open()
    await make(store, "s0")
    await join(store, "dead", ttl_ms=1_000)
    assert await store.claim("dead", "session", 1, only="s0")
    clock.advance("2s")
    await join(store, "worker")
    assert await store.claim("worker", "session", 1, only="s0")
    await store.close()


async def test_lookups_at_one_time_are_few_statements(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts = [Put("pending", f"p{n}", 0, "s0", "open", None, b"%d" % n) for n in range(20)]
    await store.commit([Write("s0", (Record("user", b"{}"),), create="session")], puts)
    with counted(monkeypatch) as seen:
        found = await asyncio.gather(*(store.get("pending", f"p{n}") for n in range(25)))
    assert [one and one.data for one in found] == [b"%d" % n for n in range(20)] + [None] * 5
    assert seen[statement("load_entries")] <= 2


async def test_what_is_asked_while_an_answer_is_under_way_waits_for_the_next() -> None:
    asked: list[list[int]] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def ask(numbers: Sequence[int]) -> list[int]:
        asked.append([*numbers])
        begun.set()
        await go_on.wait()
        if 4 in numbers:
            raise StoreError("no")
        return [-number for number in numbers]

    gather = Batcher(ask, lambda error: StoreError(str(error)), lambda _: False)
    first = asyncio.create_task(gather.submit(1))
    await begun.wait()
    others = [asyncio.create_task(gather.submit(number)) for number in (2, 3, 4)]
    await asyncio.sleep(0)
    others[1].cancel()
    go_on.set()
    ended = await asyncio.gather(first, *others, return_exceptions=True)
    assert asked == [[1], [2, 4]]
    assert ended[0] == -1
    assert [type(one) for one in ended[1:]] == [StoreError, asyncio.CancelledError, StoreError]


async def test_only_who_asked_wrongly_is_told_so() -> None:
    asked: list[list[int]] = []

    async def ask(numbers: Sequence[int]) -> list[int]:
        asked.append([*numbers])
        if 2 in numbers:
            raise StoreError("no")
        return [-number for number in numbers]

    gather = Batcher(ask, lambda error: StoreError(str(error)), lambda _: True)
    answers = (gather.submit(number) for number in (1, 2, 3))
    ended = await asyncio.gather(*answers, return_exceptions=True)
    assert asked == [[1, 2, 3], [1], [2], [3]]
    assert ended[::2] == [-1, -3]
    assert isinstance(ended[1], StoreError)


async def test_a_key_that_cannot_be_looked_up_costs_nobody_else_an_answer(
    store: PostgresStore,
) -> None:
    await make(store, "s")
    await store.commit([Write("s")], [put("k")])
    keys = ("k", "\ud800", "k")
    found = await asyncio.gather(
        *(store.get("pending", key) for key in keys), return_exceptions=True
    )
    assert [getattr(one, "key", type(one)) for one in found] == ["k", StoreError, "k"]


async def test_a_row_that_stays_locked_costs_nobody_else_a_claim(store: PostgresStore) -> None:
    """Those asked for at one time are one statement; here it gives up early."""
    await make(store, *STREAMS[:5])
    await join(store, "worker")
    async with store._ready().leases._pool.connection() as line:
        await line.fetch("SET lock_timeout = '200ms'")
    other = await store._connector.connect()
    await other.begin()
    await other.raw.execute("UPDATE stream SET tries = 9 WHERE id = 's2'")
    claims = (store.claim("worker", "session", 1, only=name) for name in STREAMS[:5])
    answers = await asyncio.gather(*claims, return_exceptions=True)
    await other.close()
    taken = [answer[0].stream for answer in answers if isinstance(answer, list)]
    assert taken == ["s0", "s1", "s3", "s4"]
    assert isinstance(answers[2], Unavailable)


async def test_what_was_claimed_is_answered_though_the_dead_could_not_be_buried(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would drive what the holder has."""
    await make(store, "s")
    await join(store, "worker")
    await join(store, "dead")
    leases = store._ready().leases
    async with leases._pool.connection() as line:
        await line.fetch("UPDATE holder SET until = 0 WHERE name = 'dead'")

    async def fails(_: Sequence[str] = ()) -> None:
        raise Unavailable("not now")

    monkeypatch.setattr(leases, "reap", fails)
    assert await store.claim("worker", "session", 1, only="s")
    with pytest.raises(Unavailable):
        await store.claim("worker", "session", 1, only="s")


async def test_nothing_is_kept_of_holders_that_claim_no_more(store: PostgresStore) -> None:
    """A process has a new name after each that it lost."""
    await make(store, *STREAMS[:3])
    for number in range(3):
        await join(store, f"w{number}")
        await store.claim(f"w{number}", "session", 1, only=STREAMS[number])
    assert list(store._ready().leases._batchers) == [("w2", "session", ANY_TRIES)]
