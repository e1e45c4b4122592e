"""Leases: one holder at a time, fenced by name and epoch; dead holders are reaped."""

import anyio

from perdure.store.base import (
    Fenced,
    HeadMoved,
    Lease,
    Lost,
    Release,
    Store,
    SuspectLimit,
    Write,
)
from perdure.testing.contract.harness import Cases, Harness
from perdure.testing.contract.steps import TTL_MS, claim, drive, expect_error, join, make, record

cases = Cases()


@cases.case("leases")
async def a_claim_leases_due_streams_oldest_first(harness: Harness) -> None:
    """Not streams that are due later, never due, of another kind, or held."""
    store = await harness.open()
    now = harness.clock.now()
    for stream, due in {
        "third": now,
        "first": now - 9,
        "second": now - 5,
        "later": now + 1,
    }.items():
        await make(store, stream, wake=due)
    await make(store, "parked", wake=None)
    await store.commit([Write("letter", create="delivery", wake=0)])
    await join(store, "worker")
    assert [lease.stream for lease in await store.claim("worker", "session", 2)] == [
        "first",
        "second",
    ]
    (third,) = await store.claim("worker", "session", 9)
    assert third == Lease("third", 1, "worker", 1, 1, now)
    assert await store.claim("worker", "session", 9) == []
    harness.clock.advance(1)
    assert [lease.stream for lease in await store.claim("worker", "session", 9)] == ["later"]
    assert [lease.stream for lease in await store.claim("worker", "delivery", 9)] == ["letter"]


@cases.case("leases")
async def a_claim_of_one_stream_leases_that_one_or_nothing(harness: Harness) -> None:
    """If it is due, free and of the claimed kind."""
    store = await harness.open()
    await make(store, "a", "b")
    await join(store, "worker")
    assert [lease.stream for lease in await store.claim("worker", "session", 5, only="b")] == ["b"]
    assert await store.claim("worker", "session", 5, only="b") == []
    assert await store.claim("worker", "delivery", 5, only="a") == []
    assert await store.claim("worker", "session", 5, only="none") == []
    assert await store.claim("worker", "session", 0) == []


@cases.case("leases")
async def an_imported_stream_continues_to_count_its_claims(harness: Harness) -> None:
    """Its records name epochs of drivers elsewhere, which no driver here may get again."""
    store = await harness.open()
    await store.commit([Write("s", [record()], create="session", head=0, wake=0, epoch=7)])
    await join(store, "worker")
    assert (await claim(store, "worker", "s")).epoch == 8
    await store.commit([Write("s", [record()], create="session", epoch=99)])
    await store.renew("worker", 0)
    await join(store, "other")
    assert (await claim(store, "other", "s")).epoch == 10


@cases.case("leases")
async def each_stream_is_leased_to_one_of_many_claimers(harness: Harness) -> None:
    """However their claims interleave."""
    store = await harness.open()
    streams = [f"s{n}" for n in range(20)]
    await make(store, *streams)
    claimed: list[str] = []

    async def work(name: str) -> None:
        await join(store, name)
        while leases := await store.claim(name, "session", 3):
            claimed.extend(lease.stream for lease in leases)

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(work, f"worker-{number}")
    assert sorted(claimed) == sorted(streams)


@cases.case("leases")
async def a_holder_that_is_not_alive_cannot_claim(harness: Harness) -> None:
    """It never joined, left, or has expired; its claims could never be reaped."""
    store = await harness.open()
    await make(store, "s")
    await expect_error(Lost, store.claim("worker", "session", 1))
    await expect_error(Lost, store.renew("worker", TTL_MS))
    await join(store, "worker")
    await expect_error(Lost, store.renew("worker", TTL_MS, join=True))
    harness.clock.advance(TTL_MS)
    await expect_error(Lost, store.claim("worker", "session", 1))
    await expect_error(Lost, store.renew("worker", TTL_MS))
    await join(store, "other")
    assert (await claim(store, "other", "s")).epoch == 1


@cases.case("leases")
async def a_heartbeat_extends_all_leases_of_its_holder(harness: Harness) -> None:
    """It returns the new end."""
    store = await harness.open()
    lease = await drive(store)
    await join(store, "other", 100 * TTL_MS)
    for _ in range(3):
        harness.clock.advance(TTL_MS - 1)
        assert await store.renew("worker", TTL_MS) == harness.clock.now() + TTL_MS
        assert await store.claim("other", "session", 1) == []
    assert await store.commit([Write("s", [record()], fence=lease)]) == {"s": 2}


@cases.case("leases")
async def a_holder_that_leaves_frees_its_streams_at_once(harness: Harness) -> None:
    """They are due, and fenced against it."""
    store = await harness.open()
    lease = await drive(store)
    assert await store.renew("worker", 0) == harness.clock.now()
    await expect_error(Lost, store.renew("worker", TTL_MS))
    await expect_error(Fenced, store.commit([Write("s", [record()], fence=lease)]))
    await join(store, "other")
    assert (await claim(store, "other", "s")).epoch > lease.epoch


@cases.case("leases")
async def a_holder_that_lost_its_lease_can_write_nothing(harness: Harness) -> None:
    """Neither before the next claim of the stream nor after."""
    store = await harness.open()
    lost = await drive(store)
    harness.clock.advance(TTL_MS)
    await join(store, "other")
    await store.claim("other", "delivery", 1)  # any claim reaps
    await expect_error(Fenced, store.commit([Write("s", [record()], fence=lost, head=1)]))
    claimed = await claim(store, "other", "s")
    assert claimed.epoch == lost.epoch + 2, "reaping and claiming each count"
    fenced = await expect_error(Fenced, store.commit([Write("s", [record()], fence=lost, head=1)]))
    assert fenced.stream == "s"
    await store.commit([Write("s", [record()], fence=claimed, head=1)])


@cases.case("leases")
async def the_fence_compares_the_name_too(harness: Harness) -> None:
    """A restored backup can bring back an old epoch."""
    store = await harness.open()
    lease = await drive(store)
    twin = Lease("s", lease.epoch, "twin", lease.head, lease.tries, lease.now)
    await expect_error(Fenced, store.commit([Write("s", [record()], fence=twin)]))


@cases.case("leases")
async def every_write_of_a_driver_is_checked_against_fence_and_head(harness: Harness) -> None:
    """However many commits under the same lease were accepted before."""
    store = await harness.open()
    lease = await drive(store)
    for head in (1, 2, 3):
        await store.commit([Write("s", [record()], fence=lease, head=head)])
    for head in (1, 3, 5):
        wrong = store.commit([Write("s", [record()], fence=lease, head=head)])
        assert (await expect_error(HeadMoved, wrong)).head == 4
    await store.commit([Write("s", fence=lease, head=4, release=Release(0))])
    await expect_error(Fenced, store.commit([Write("s", [record()], fence=lease, head=4)]))
    again = await claim(store, "worker", "s")
    await expect_error(Fenced, store.commit([Write("s", [record()], fence=lease, head=4)]))
    assert await store.commit([Write("s", [record()], fence=again, head=4)]) == {"s": 5}


async def _die_once(harness: Harness, store: Store, name: str) -> None:
    await join(store, name)
    await claim(store, name, "s")
    harness.clock.advance(TTL_MS)
    await store.reap(store.now())


@cases.case("leases")
async def a_reap_frees_the_streams_of_an_expired_holder(harness: Harness) -> None:
    """They are due and fenced against it at once; the caller of the reap needs no row."""
    store = await harness.open()
    lost = await drive(store)
    harness.clock.advance(TTL_MS)
    await store.reap(store.now())
    stream = await store.read("s", limit=0)
    assert (stream.holder, stream.due) == (None, harness.clock.now())
    assert (await store.census(())).alive == ()
    await expect_error(Fenced, store.commit([Write("s", [record()], fence=lost, head=1)]))
    await expect_error(Lost, store.renew("worker", TTL_MS))
    await join(store, "other")
    assert (await claim(store, "other", "s")).epoch == lost.epoch + 2


@cases.case("leases")
async def a_reap_leaves_live_holders_their_streams(harness: Harness) -> None:
    """Also one whose row ends just after the instant of the reap."""
    store = await harness.open()
    await make(store, "dead")
    await join(store, "dying", TTL_MS - 1)
    await claim(store, "dying", "dead")
    lease = await drive(store)
    harness.clock.advance(TTL_MS - 1)
    await store.reap(store.now())
    assert (await store.read("dead", limit=0)).holder is None
    assert (await store.read("s", limit=0)).holder == "worker"
    assert await store.commit([Write("s", [record()], fence=lease, head=1)]) == {"s": 2}
    await store.renew("worker", TTL_MS)


@cases.case("leases")
async def a_reap_claims_nothing_and_writes_no_record(harness: Harness) -> None:
    """Neither the streams that it frees nor those that were due before."""
    store = await harness.open()
    await drive(store)
    await make(store, "due", "parked", wake=None)
    await store.commit([Write("due", wake=0)])
    before = (await store.tail("")).cursor, (await store.read("due", limit=0))
    harness.clock.advance(TTL_MS)
    await store.reap(store.now())
    assert ((await store.tail("")).cursor, (await store.read("due", limit=0))) == before
    assert (await store.read("parked", limit=0)).due is None
    census = await store.census(())
    assert (census.held, census.due) == (0, 2)


@cases.case("leases")
async def a_repeated_reap_changes_nothing(harness: Harness) -> None:
    """Nor does one on an empty store, or one at an instant before the end of every row."""
    store = await harness.open()
    await store.reap(store.now())
    lease = await drive(store)
    await store.reap(0)
    assert (await store.read("s", limit=0)).holder == "worker"
    harness.clock.advance(TTL_MS)
    await store.reap(store.now())
    states = list(await store.streams())
    for _ in range(3):
        harness.clock.advance(1)
        await store.reap(store.now())
    assert list(await store.streams()) == states
    await join(store, "other")
    assert (await claim(store, "other", "s")).epoch == lease.epoch + 2


@cases.case("leases")
async def a_stream_whose_drivers_keep_dying_is_put_off(harness: Harness) -> None:
    """Due at once three times, then after 2^tries seconds, at most five minutes."""
    store = await harness.open()
    await make(store, "s")
    waits: list[int] = []
    for death in range(1, 11):
        await _die_once(harness, store, f"worker-{death}")
        position = await store.read("s", limit=0)
        due = position.due
        assert due is not None
        assert position.tries == death
        waits.append(due - harness.clock.now())
        harness.clock.advance(waits[-1])
    assert waits == [0, 0, 0, *(1000 * 2**tries for tries in range(4, 9)), 300_000, 300_000]


@cases.case("leases")
async def tries_count_the_claims_since_a_driver_wrote(harness: Harness) -> None:
    """A commit under the fence resets the count."""
    store = await harness.open()
    await make(store, "s")
    for death in (1, 2):
        await _die_once(harness, store, f"worker-{death}")
    await join(store, "writer")
    lease = await claim(store, "writer", "s")
    assert lease.tries == 3
    await store.commit([Write("s", [record()], fence=lease, head=1)])
    await store.commit([Write("s", fence=lease, head=2, release=Release(0))])
    assert (await claim(store, "writer", "s")).tries == 1


@cases.case("leases")
async def a_claim_takes_only_as_many_suspects_as_it_may(harness: Harness) -> None:
    """Those with the fewest tries; the others are not touched, and what is behind them is taken."""
    store = await harness.open()
    await make(store, "thrice", "a", "b", "c")
    await _die_with(store, "thrice")
    for _ in range(2):
        await _die_with(store, "thrice", "a", "b", "c")
    for name in ("new", "newer"):
        harness.clock.advance(1)
        await make(store, name, wake=store.now())
    await join(store, "worker")

    async def claim_some(
        most: int, last: int, *, limit: int = 9, or_last: bool = False
    ) -> list[str]:
        suspects = SuspectLimit(most, last, or_last)
        leases = await store.claim("worker", "session", limit, suspects=suspects)
        return sorted(lease.stream for lease in leases)

    before = [await store.read(name, limit=0) for name in ("a", "b", "c", "thrice")]
    assert await claim_some(0, 9, limit=1) == ["new"]
    assert await claim_some(2, 2) == ["newer"]
    assert [await store.read(name, limit=0) for name in ("a", "b", "c", "thrice")] == before
    first = await claim_some(2, 9)
    assert len(first) == 2
    assert "thrice" not in first
    assert sorted([*first, *await claim_some(2, 3, or_last=True)]) == ["a", "b", "c"]
    assert await claim_some(2, 3) == []
    assert await claim_some(2, 3, or_last=True) == ["thrice"]


@cases.case("leases")
async def a_claim_of_one_stream_may_leave_suspects_alone(harness: Harness) -> None:
    """Or only those that have been tried too often."""
    store = await harness.open()
    await make(store, "s", "new")
    for _ in range(3):
        await _die_with(store, "s")
    await join(store, "worker")

    async def is_taken(stream: str, suspects: SuspectLimit) -> bool:
        return bool(await store.claim("worker", "session", 1, only=stream, suspects=suspects))

    assert await is_taken("new", SuspectLimit(0, 9))
    assert not await is_taken("s", SuspectLimit(0, 9))
    assert not await is_taken("s", SuspectLimit(1, 3))
    assert (await store.read("s", limit=0)).tries == 3
    assert await is_taken("s", SuspectLimit(1, 3, or_last=True))


async def _die_with(store: Store, *streams: str) -> None:
    """Claim streams, and let the holder leave without a write."""
    await join(store, "dying")
    for stream in streams:
        await claim(store, "dying", stream)
    await store.renew("dying", 0)


@cases.case("leases")
async def a_claim_can_be_returned_without_being_counted(harness: Harness) -> None:
    """A session that was claimed and not driven is not suspected of what other sessions do."""
    store = await harness.open()
    await make(store, "s")
    await _die_once(harness, store, "worker-1")
    await join(store, "writer")
    for _ in range(2):
        lease = await claim(store, "writer", "s")
        assert lease.tries == 2
        release = Release(0, counted=False)
        await store.commit([Write("s", fence=lease, head=lease.head, release=release)])
    assert (await claim(store, "writer", "s")).tries == 2


@cases.case("leases")
async def a_released_stream_is_due_when_the_release_says(harness: Harness) -> None:
    """Without a due time it is parked until a wake-up."""
    store = await harness.open()
    lease = await drive(store)
    later = harness.clock.now() + 500
    await store.commit([Write("s", fence=lease, head=1, release=Release(later))])
    assert await store.claim("worker", "session", 1) == []
    harness.clock.advance(500)
    lease = await claim(store, "worker", "s")
    await store.commit([Write("s", fence=lease, head=1, release=Release())])
    slice_ = await store.read("s", limit=0)
    assert (slice_.holder, slice_.due) == (None, None)


@cases.case("leases")
async def a_wake_makes_a_parked_stream_due_at_the_earliest_time(harness: Harness) -> None:
    """A later wake-up does not postpone an earlier one."""
    store = await harness.open()
    await make(store, "s", wake=None)
    for wake, due in ((50, 50), (70, 50), (20, 20)):
        await store.commit([Write("s", wake=wake)])
        assert (await store.read("s", limit=0)).due == due


@cases.case("leases")
async def a_slice_names_the_holder_of_the_stream(harness: Harness) -> None:
    """So that a caller can see which process drives it."""
    store = await harness.open()
    await drive(store)
    assert (await store.read("s", limit=0)).holder == "worker"
