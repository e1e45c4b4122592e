"""Leases that were renewed while the clock was ahead end in time."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.store.sqlite.filled import edit

from perdure.store.base import Write
from perdure.store.sqlite.store import SqliteStore
from perdure.testing.contract import HandClock

LEASE_MS = 10_000
AHEAD_MS = 7_200_000

Open = Callable[[HandClock], Awaitable[SqliteStore]]


@pytest.fixture
async def open_store(database: Path) -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        async def open_store(clock: HandClock) -> SqliteStore:
            store = SqliteStore(database, clock=clock)
            await store.open()
            stack.push_async_callback(store.close)
            return store

        yield open_store


async def hold(store: SqliteStore) -> None:
    """Claim the stream "s" under the name "frozen"."""
    await store.commit([Write("s", create="k", wake=1)])
    await store.renew("frozen", LEASE_MS, join=True)
    assert await store.claim("frozen", "k", 1)


async def claims_within(store: SqliteStore, clock: HandClock, seconds: int) -> bool:
    """Return whether the stream could be claimed while the clock advanced second by second."""
    await store.renew("other", LEASE_MS, join=True)
    for _ in range(seconds):
        await store.renew("other", LEASE_MS)
        if await store.claim("other", "k", 1):
            return True
        clock.advance(1_000)
    return bool(await store.claim("other", "k", 1))


@pytest.mark.parametrize("opened", ["before the step", "after the step"])
async def test_a_lease_renewed_while_the_clock_was_ahead_lasts_no_longer_than_its_length(
    open_store: Open, opened: str
) -> None:
    clock = HandClock()
    await hold(await open_store(clock))
    other = await open_store(clock) if opened == "before the step" else None
    clock.advance(-AHEAD_MS)
    other = other or await open_store(clock)
    assert not await claims_within(other, clock, 9)
    clock.advance(1_000)
    assert await other.claim("other", "k", 1)


async def test_the_time_before_the_clock_is_corrected_counts(open_store: Open) -> None:
    clock = HandClock()
    await hold(await open_store(clock))
    other = await open_store(clock)
    assert not await claims_within(other, clock, 6)
    clock.advance(-AHEAD_MS)
    for _ in range(4):
        assert not await other.claim("other", "k", 1)
        clock.advance(1_000)
    assert await other.claim("other", "k", 1)


async def test_a_reap_ends_a_lease_that_was_renewed_while_the_clock_was_ahead(
    open_store: Open,
) -> None:
    clock = HandClock()
    store = await open_store(clock)
    await hold(store)
    clock.advance(-AHEAD_MS)
    for _ in range(10):
        await store.reap(store.now())
        assert (await store.read("s")).holder == "frozen"
        clock.advance(1_000)
    await store.reap(store.now())
    assert (await store.read("s")).holder is None


async def test_a_holder_that_renews_keeps_its_leases_however_wrong_its_clock_is(
    open_store: Open,
) -> None:
    clock, ahead = HandClock(), HandClock()
    ahead.advance(AHEAD_MS)
    holder, other = await open_store(ahead), await open_store(clock)
    await hold(holder)
    await holder.renew("frozen", 3 * LEASE_MS)  # the length may change
    assert not await claims_within(other, clock, 25)
    for second in range(60):
        if second % 10 == 0:
            await holder.renew("frozen", LEASE_MS)
        assert not await other.claim("other", "k", 1)
        clock.advance(900)
        ahead.advance(900)
        await other.renew("other", LEASE_MS)


async def test_a_clock_that_steps_back_and_forth_ends_no_lease(open_store: Open) -> None:
    clock = HandClock()
    store, other = await open_store(clock), await open_store(clock)
    await hold(store)
    await other.renew("other", LEASE_MS, join=True)
    for step in (0, -AHEAD_MS, AHEAD_MS):
        clock.advance(step)
        assert not await other.claim("other", "k", 1)


async def test_without_the_length_of_a_lease_the_longest_counts(
    open_store: Open, database: Path
) -> None:
    clock = HandClock()
    await hold(await open_store(clock))
    for file in database.with_name("perdure.db.alive").iterdir():
        file.write_bytes(b"")  # as an earlier version leaves it
    clock.advance(-AHEAD_MS)
    assert not await claims_within(await open_store(clock), clock, 30)


async def test_a_damaged_row_of_a_holder_stops_no_other(open_store: Open, database: Path) -> None:
    """A page of another table in its place has rows without a name."""
    store = await open_store(HandClock())
    await store.commit([Write("s", create="k", wake=1)])
    edit(database, "INSERT INTO holder VALUES (NULL, 1)", "INSERT INTO holder VALUES ('a', 'x')")
    await store.renew("other", LEASE_MS, join=True)
    assert await store.claim("other", "k", 1)
