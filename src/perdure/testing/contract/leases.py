"""Leases: one driver at a time, fenced by name and epoch; the dead are reaped."""

import anyio

from perdure.store.base import Fenced, HeadMoved, Lease, Lost, Release, Store, Write
from perdure.testing.contract.harness import Cases, Harness
from perdure.testing.contract.steps import TTL_MS, drive, join, make, record, refused, take

cases = Cases()


@cases.of("leases")
async def a_claim_takes_what_is_due_oldest_first(harness: Harness) -> None:
    """Not what is due later, never due, of another kind, or held."""
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


@cases.of("leases")
async def a_claim_for_one_stream_takes_that_one_or_nothing(harness: Harness) -> None:
    """If it is due, free and of the kind."""
    store = await harness.open()
    await make(store, "a", "b")
    await join(store, "worker")
    assert [lease.stream for lease in await store.claim("worker", "session", 5, only="b")] == ["b"]
    assert await store.claim("worker", "session", 5, only="b") == []
    assert await store.claim("worker", "delivery", 5, only="a") == []
    assert await store.claim("worker", "session", 5, only="none") == []
    assert await store.claim("worker", "session", 0) == []


@cases.of("leases")
async def a_stream_that_comes_from_elsewhere_counts_its_claims_on(harness: Harness) -> None:
    """Its records name epochs of drivers there: none here may have one of them."""
    store = await harness.open()
    await store.commit([Write("s", [record()], create="session", head=0, wake=0, epoch=7)])
    await join(store, "worker")
    assert (await take(store, "worker", "s")).epoch == 8
    await store.commit([Write("s", [record()], create="session", epoch=99)])
    await store.renew("worker", 0)
    await join(store, "other")
    assert (await take(store, "other", "s")).epoch == 10


@cases.of("leases")
async def of_many_claimers_each_stream_has_one(harness: Harness) -> None:
    """However they interleave."""
    store = await harness.open()
    streams = [f"s{n}" for n in range(20)]
    await make(store, *streams)
    taken: list[str] = []

    async def work(name: str) -> None:
        await join(store, name)
        while leases := await store.claim(name, "session", 3):
            taken.extend(lease.stream for lease in leases)

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(work, f"worker-{number}")
    assert sorted(taken) == sorted(streams)


@cases.of("leases")
async def who_is_not_alive_can_claim_nothing(harness: Harness) -> None:
    """Else its claims could never be reaped: never joined, left, or its time is over."""
    store = await harness.open()
    await make(store, "s")
    await refused(Lost, store.claim("worker", "session", 1))
    await refused(Lost, store.renew("worker", TTL_MS))
    await join(store, "worker")
    await refused(Lost, store.renew("worker", TTL_MS, join=True))
    harness.clock.advance(TTL_MS)
    await refused(Lost, store.claim("worker", "session", 1))
    await refused(Lost, store.renew("worker", TTL_MS))
    await join(store, "other")
    assert (await take(store, "other", "s")).epoch == 1


@cases.of("leases")
async def a_heartbeat_moves_the_end_of_all_leases(harness: Harness) -> None:
    """The answer says until when."""
    store = await harness.open()
    lease = await drive(store)
    await join(store, "other", 100 * TTL_MS)
    for _ in range(3):
        harness.clock.advance(TTL_MS - 1)
        assert await store.renew("worker", TTL_MS) == harness.clock.now() + TTL_MS
        assert await store.claim("other", "session", 1) == []
    assert await store.commit([Write("s", [record()], fence=lease)]) == {"s": 2}


@cases.of("leases")
async def who_leaves_gives_everything_back_at_once(harness: Harness) -> None:
    """Its streams are due, and it is fenced."""
    store = await harness.open()
    lease = await drive(store)
    assert await store.renew("worker", 0) == harness.clock.now()
    await refused(Lost, store.renew("worker", TTL_MS))
    await refused(Fenced, store.commit([Write("s", [record()], fence=lease)]))
    await join(store, "other")
    assert (await take(store, "other", "s")).epoch > lease.epoch


@cases.of("leases")
async def a_worker_that_lost_its_lease_can_write_nothing(harness: Harness) -> None:
    """Neither before somebody else took the stream nor after."""
    store = await harness.open()
    lost = await drive(store)
    harness.clock.advance(TTL_MS)
    await join(store, "other")
    await store.claim("other", "delivery", 1)  # any claim reaps
    await refused(Fenced, store.commit([Write("s", [record()], fence=lost, head=1)]))
    taken = await take(store, "other", "s")
    assert taken.epoch == lost.epoch + 2, "reaping and claiming each count"
    fenced = await refused(Fenced, store.commit([Write("s", [record()], fence=lost, head=1)]))
    assert fenced.stream == "s"
    await store.commit([Write("s", [record()], fence=taken, head=1)])


@cases.of("leases")
async def the_fence_compares_the_name_too(harness: Harness) -> None:
    """A restored backup can bring an old epoch back."""
    store = await harness.open()
    lease = await drive(store)
    twin = Lease("s", lease.epoch, "twin", lease.head, lease.tries, lease.now)
    await refused(Fenced, store.commit([Write("s", [record()], fence=twin)]))


@cases.of("leases")
async def a_driver_s_every_write_is_held_to_fence_and_head(harness: Harness) -> None:
    """However many of its commits under the same lease went through before."""
    store = await harness.open()
    lease = await drive(store)
    for head in (1, 2, 3):
        await store.commit([Write("s", [record()], fence=lease, head=head)])
    for head in (1, 3, 5):
        wrong = store.commit([Write("s", [record()], fence=lease, head=head)])
        assert (await refused(HeadMoved, wrong)).head == 4
    await store.commit([Write("s", fence=lease, head=4, release=Release(0))])
    await refused(Fenced, store.commit([Write("s", [record()], fence=lease, head=4)]))
    again = await take(store, "worker", "s")
    await refused(Fenced, store.commit([Write("s", [record()], fence=lease, head=4)]))
    assert await store.commit([Write("s", [record()], fence=again, head=4)]) == {"s": 5}


async def _die_once(harness: Harness, store: Store, name: str) -> None:
    await join(store, name)
    await take(store, name, "s")
    harness.clock.advance(TTL_MS)
    await join(store, f"{name}'s reaper")
    await store.claim(f"{name}'s reaper", "delivery", 1)


@cases.of("leases")
async def drivers_that_keep_dying_are_followed_later_and_later(harness: Harness) -> None:
    """At once twice, from the third time on after 2^tries seconds, at most five minutes."""
    store = await harness.open()
    await make(store, "s")
    waits: list[int] = []
    for death in range(1, 11):
        await _die_once(harness, store, f"worker-{death}")
        due = (await store.read("s", limit=0)).due
        assert due is not None
        waits.append(due - harness.clock.now())
        harness.clock.advance(waits[-1])
    assert waits == [0, 0, *(1000 * 2**tries for tries in range(3, 9)), 300_000, 300_000]


@cases.of("leases")
async def tries_count_the_claims_since_a_driver_wrote(harness: Harness) -> None:
    """A driver that wrote anything under its fence has got somewhere."""
    store = await harness.open()
    await make(store, "s")
    for death in (1, 2):
        await _die_once(harness, store, f"worker-{death}")
    await join(store, "writer")
    lease = await take(store, "writer", "s")
    assert lease.tries == 3
    await store.commit([Write("s", [record()], fence=lease, head=1)])
    await store.commit([Write("s", fence=lease, head=2, release=Release(0))])
    assert (await take(store, "writer", "s")).tries == 1


@cases.of("leases")
async def a_released_stream_is_due_when_the_release_says(harness: Harness) -> None:
    """Without a time it is parked until it is woken."""
    store = await harness.open()
    lease = await drive(store)
    later = harness.clock.now() + 500
    await store.commit([Write("s", fence=lease, head=1, release=Release(later))])
    assert await store.claim("worker", "session", 1) == []
    harness.clock.advance(500)
    lease = await take(store, "worker", "s")
    await store.commit([Write("s", fence=lease, head=1, release=Release())])
    slice_ = await store.read("s", limit=0)
    assert (slice_.holder, slice_.due) == (None, None)


@cases.of("leases")
async def a_wake_makes_a_parked_stream_due_at_the_earliest_time(harness: Harness) -> None:
    """A later wake does not put off an earlier one."""
    store = await harness.open()
    await make(store, "s", wake=None)
    for wake, due in ((50, 50), (70, 50), (20, 20)):
        await store.commit([Write("s", wake=wake)])
        assert (await store.read("s", limit=0)).due == due


@cases.of("leases")
async def a_slice_says_who_drives_the_stream(harness: Harness) -> None:
    """For those who ask why it moves or does not."""
    store = await harness.open()
    await drive(store)
    assert (await store.read("s", limit=0)).holder == "worker"
