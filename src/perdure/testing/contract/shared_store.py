"""Optional capabilities: durable data, and several stores on the same data."""

import anyio
from anyio.lowlevel import checkpoint

from perdure.store.base import Fenced, Write
from perdure.testing.contract.harness import Cases, Harness
from perdure.testing.contract.steps import (
    TTL_MS,
    claim,
    drive,
    entry,
    expect_error,
    join,
    make,
    put,
    record,
    texts,
)

cases = Cases()


@cases.case("durable")
async def everything_is_there_after_opening_again(harness: Harness) -> None:
    """Records, entries, leases, heartbeats and the feed's cursor."""
    store = await harness.open()
    lease = await drive(store)
    await make(store, "parked", wake=harness.clock.now() + 5)
    await store.commit([Write("s", [record("more")], fence=lease, head=1)], [put("k", due=7)])
    before = (await store.read("s"), await entry(store, "k"), (await store.tail("")).cursor)
    await store.close()

    store = await harness.open()
    after = (await store.read("s"), await entry(store, "k"), (await store.tail("")).cursor)
    assert after == before
    assert await store.commit([Write("s", [record()], fence=lease, head=2)]) == {"s": 3}
    await store.renew("worker", TTL_MS)
    harness.clock.advance(5)
    assert [x.stream for x in await store.claim("worker", "session", 9)] == ["parked"]


@cases.case("durable")
async def an_erased_id_stays_used_after_opening_again(harness: Harness) -> None:
    """And the feed continues after the erased records."""
    store = await harness.open()
    await make(store, "s")
    cursor = (await store.tail("")).cursor
    await store.commit([Write("s", erase=True)])
    await store.close()
    store = await harness.open()
    await make(store, "t")
    assert [r.stream for r in (await store.tail(cursor)).records] == ["t"]


@cases.case("shared")
async def a_commit_is_visible_to_every_store_at_once(harness: Harness) -> None:
    """Acknowledged means visible everywhere."""
    first, other = await harness.open(), await harness.open()
    await make(first, "s")
    assert await texts(other, "s") == ["first"]
    assert await other.commit([Write("s", [record("b")], head=1)]) == {"s": 2}
    assert (await first.read("s")).head == 2


@cases.case("shared")
async def a_commit_wakes_a_task_that_waits_in_another_store(harness: Harness) -> None:
    """Long before the timeout."""
    first, other = await harness.open(), await harness.open()
    await make(first, "s")
    await other.read("s")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(other.changed, 60.0)
            await checkpoint()
            await first.commit([Write("s", [record()])])


@cases.case("shared")
async def a_take_over_by_another_store_fences_the_first(harness: Harness) -> None:
    """Also a driver that has committed under its lease many times."""
    first, other = await harness.open(), await harness.open()
    lease = await drive(first)
    for head in (1, 2, 3):
        await first.commit([Write("s", [record()], fence=lease, head=head)])
    harness.clock.advance(TTL_MS)
    await join(other, "other")
    successor = await claim(other, "other", "s")
    await expect_error(Fenced, first.commit([Write("s", [record()], fence=lease, head=4)]))
    assert await other.commit([Write("s", [record()], fence=successor, head=4)]) == {"s": 5}


@cases.case("shared")
async def a_reap_by_another_store_fences_the_first(harness: Harness) -> None:
    """Before any store has claimed the stream again."""
    first, other = await harness.open(), await harness.open()
    lease = await drive(first)
    await first.commit([Write("s", [record()], fence=lease, head=1)])
    harness.clock.advance(TTL_MS)
    await other.reap(other.now())
    await expect_error(Fenced, first.commit([Write("s", [record()], fence=lease, head=2)]))
    assert (await first.read("s", limit=0)).holder is None


@cases.case("shared")
async def many_stores_write_at_the_same_time(harness: Harness) -> None:
    """No write fails because the data is locked; seqs have no gap and no duplicate."""
    stores = [await harness.open() for _ in range(3)]
    await make(stores[0], "s")
    heads: list[int] = []

    async def write(number: int) -> None:
        store = stores[number % 3]
        heads.extend([(await store.commit([Write("s", [record()])]))["s"] for _ in range(10)])

    async with anyio.create_task_group() as group:
        for number in range(9):
            group.start_soon(write, number)
    assert sorted(heads) == list(range(2, 92))
