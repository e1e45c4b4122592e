"""Claims in commits: a caller that will drive gets the lease with the reply to its commit."""

import anyio

from perdure.store.base import (
    Fenced,
    HeadMoved,
    Heads,
    Lease,
    Lost,
    Release,
    Store,
    VersionMoved,
    Write,
)
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


async def _send(store: Store, holder: str, text: str = "message", stream: str = "s") -> Heads:
    """Commit a message that is due now, with a claim."""
    write = Write(stream, [record(text)], wake=store.now(), claim=holder)
    return await store.commit([write])


async def _parked(store: Store, *streams: str) -> None:
    await make(store, *(streams or ("s",)), wake=None)
    await join(store, "worker")


@cases.case("leases")
async def a_commit_can_claim_the_stream_that_it_creates(harness: Harness) -> None:
    """The lease is as a claim right after the commit would return it."""
    store = await harness.open()
    await join(store, "worker")
    now = store.now()
    write = Write("s", [record(), record()], create="session", head=0, wake=now, claim="worker")
    heads = await store.commit([write], [put("k")])
    assert (heads, heads.leases) == ({"s": 2}, {"s": Lease("s", 1, "worker", 2, 1, now)})
    stream = await store.read("s", limit=0)
    assert (stream.holder, stream.due) == ("worker", None)
    assert (await store.census(())).held == 1
    assert await store.claim("worker", "session", 9) == []
    turn = Write("s", [record()], fence=heads.leases["s"], head=2)
    assert await store.commit([turn], [put("k", 1)]) == {"s": 3}


@cases.case("leases")
async def a_commit_can_claim_the_stream_that_it_wakes(harness: Harness) -> None:
    """Parked, due already, or due later and woken by the commit."""
    store = await harness.open()
    await _parked(store, "parked")
    await make(store, "due")
    await make(store, "later", wake=store.now() + 99)
    for stream in ("parked", "due", "later"):
        lease = (await _send(store, "worker", stream=stream)).leases[stream]
        assert lease == Lease(stream, 1, "worker", 2, 1, store.now())
        await store.commit([Write(stream, fence=lease, head=2, release=Release())])
        assert (await store.read(stream, limit=0)).due is None


@cases.case("leases")
async def a_commit_without_a_claim_returns_no_lease(harness: Harness) -> None:
    """And leaves the stream due, for any worker."""
    store = await harness.open()
    await _parked(store)
    heads = await store.commit([Write("s", [record()], wake=0)])
    assert (heads, dict(heads.leases)) == ({"s": 2}, {})
    assert (await claim(store, "worker", "s")).epoch == 1


@cases.case("leases")
async def a_commit_claims_no_stream_that_is_not_due(harness: Harness) -> None:
    """Without a wake-up, or with one in the future, nothing is to be driven yet."""
    store = await harness.open()
    await _parked(store)
    now = store.now()
    for wake, due in ((None, None), (now + 5, now + 5)):
        heads = await store.commit([Write("s", [record()], wake=wake, claim="worker")])
        assert dict(heads.leases) == {}
        stream = await store.read("s", limit=0)
        assert (stream.holder, stream.due) == (None, due)


@cases.case("leases")
async def a_commit_takes_no_stream_from_its_driver(harness: Harness) -> None:
    """Neither from another holder nor from the same one; the write counts as a wake-up."""
    store = await harness.open()
    lease = await drive(store, "driver")
    await join(store, "worker")
    for head, holder in ((2, "worker"), (3, "driver")):
        heads = await _send(store, holder)
        assert (heads, dict(heads.leases)) == ({"s": head}, {})
    stream = await store.read("s", limit=0)
    assert (stream.holder, stream.due) == ("driver", None)
    await expect_error(
        HeadMoved, store.commit([Write("s", fence=lease, head=1, release=Release())])
    )
    assert await store.commit([Write("s", [record()], fence=lease, head=3)]) == {"s": 4}


@cases.case("leases")
async def a_commit_never_leases_to_a_holder_that_is_not_alive(harness: Harness) -> None:
    """One that never joined, has left, or has expired: nobody could free its streams again.

    The write is judged on its own: it is made, and the stream is due for others.
    """
    store = await harness.open()
    await make(store, "s", wake=None)
    await join(store, "left")
    await store.renew("left", 0)
    await join(store, "expired")
    await join(store, "alive", 9 * TTL_MS)
    harness.clock.advance(TTL_MS)
    for head, holder in ((2, "stranger"), (3, "left"), (4, "expired")):
        heads = await _send(store, holder)
        assert (heads, dict(heads.leases)) == ({"s": head}, {})
        stream = await store.read("s", limit=0)
        assert (stream.holder, stream.due) == (None, store.now())
    await expect_error(Lost, store.claim("expired", "session", 1))
    assert (await claim(store, "alive", "s")).epoch == 1


@cases.case("leases")
async def a_holder_that_was_renewed_in_time_is_alive(harness: Harness) -> None:
    """The last heartbeat counts, up to the last millisecond before its end."""
    store = await harness.open()
    await _parked(store)
    harness.clock.advance(TTL_MS - 1)
    await store.renew("worker", TTL_MS)
    harness.clock.advance(TTL_MS - 1)
    assert (await _send(store, "worker")).leases["s"].epoch == 1


@cases.case("leases")
async def a_commit_s_claim_reaps_nobody(harness: Harness) -> None:
    """The stream of a dead holder is left to the next claim, which counts its death."""
    store = await harness.open()
    lost = await drive(store, "dying")
    await join(store, "worker", 9 * TTL_MS)
    harness.clock.advance(TTL_MS)
    assert dict((await _send(store, "worker")).leases) == {}
    lease = await claim(store, "worker", "s")
    assert (lease.epoch, lease.head, lease.tries) == (lost.epoch + 2, 2, 2)
    await expect_error(Fenced, store.commit([Write("s", [record()], fence=lost)]))


@cases.case("leases")
async def a_refused_commit_claims_nothing(harness: Harness) -> None:
    """Whichever of its conditions does not hold."""
    store = await harness.open()
    await _parked(store)
    now = store.now()
    await expect_error(
        HeadMoved, store.commit([Write("s", [record()], head=9, wake=now, claim="worker")])
    )
    claiming = Write("s", [record()], wake=now, claim="worker")
    await expect_error(VersionMoved, store.commit([claiming], [put("k", 5)]))
    new = Write("s", [record()], create="session", head=0, wake=now, claim="worker")
    await expect_error(HeadMoved, store.commit([new]))
    stream = await store.read("s", limit=0)
    assert (stream.head, stream.holder, stream.due) == (1, None, None)
    assert (await _send(store, "worker")).leases["s"].epoch == 1


@cases.case("leases")
async def a_claim_in_a_commit_fences_the_driver_before_it(harness: Harness) -> None:
    """Its epoch is a new one, also for the same holder: a park whose reply was lost is over."""
    store = await harness.open()
    before = await drive(store)
    await store.commit([Write("s", fence=before, head=1, release=Release())])
    lease = (await _send(store, "worker")).leases["s"]
    assert lease.epoch == before.epoch + 1
    await expect_error(Fenced, store.commit([Write("s", [record("late")], fence=before)]))
    await store.commit([Write("s", [record("turn")], fence=lease, head=2)])
    assert await texts(store, "s") == ["first", "message", "turn"]


@cases.case("leases")
async def a_stream_that_a_commit_claimed_is_freed_when_its_holder_dies(harness: Harness) -> None:
    """As any lease: the holder is reaped, and the try was counted."""
    store = await harness.open()
    await _parked(store)
    lost = (await _send(store, "worker")).leases["s"]
    harness.clock.advance(TTL_MS)
    await join(store, "other")
    lease = await claim(store, "other", "s")
    assert (lease.epoch, lease.tries) == (lost.epoch + 2, 2)
    await expect_error(Fenced, store.commit([Write("s", [record()], fence=lost, head=2)]))


@cases.case("leases")
async def tries_count_the_claims_of_commits_too(harness: Harness) -> None:
    """And the first commit under the fence resets the count."""
    store = await harness.open()
    await _parked(store)
    for death in (1, 2):
        name = f"worker-{death}"
        await join(store, name)
        assert (await _send(store, name)).leases["s"].tries == death
        await store.renew(name, 0)
    lease = (await _send(store, "worker")).leases["s"]
    assert lease.tries == 3
    await store.commit([Write("s", fence=lease, head=4, release=Release(0))])
    assert (await claim(store, "worker", "s")).tries == 1


@cases.case("leases")
async def each_stream_of_a_commit_is_claimed_or_not_for_itself(harness: Harness) -> None:
    """A child's end can wake its parent and claim it; a held one stays with its driver."""
    store = await harness.open()
    held = await drive(store, "driver", "held")
    await _parked(store, "free", "plain")
    now = store.now()
    writes = [
        Write("held", [record()], wake=now, claim="worker"),
        Write("free", [record()], wake=now, claim="worker"),
        Write("plain", [record()], wake=now),
    ]
    heads = await store.commit(writes)
    assert heads == {"held": 2, "free": 2, "plain": 2}
    assert dict(heads.leases) == {"free": Lease("free", 1, "worker", 2, 1, now)}
    assert [x.stream for x in await store.claim("worker", "session", 9)] == ["plain"]
    assert await store.commit([Write("held", [record()], fence=held)]) == {"held": 3}


@cases.case("leases")
async def one_of_many_callers_gets_the_lease_of_a_stream(harness: Harness) -> None:
    """Commits with a claim and claims of workers race for it; all messages are written."""
    store = await harness.open()
    await make(store, "s", wake=None)
    leases: list[Lease] = []

    async def send(number: int) -> None:
        name = f"worker-{number}"
        await join(store, name)
        if number % 3:
            leases.extend((await _send(store, name)).leases.values())
        else:
            await store.commit([Write("s", [record()], wake=store.now())])
            leases.extend(await store.claim(name, "session", 1))

    async with anyio.create_task_group() as group:
        for number in range(12):
            group.start_soon(send, number)
    (lease,) = leases
    assert (await store.read("s", limit=0)).head == 13
    assert await store.commit([Write("s", [record()], fence=lease)]) == {"s": 14}


@cases.case("leases")
async def a_claim_in_a_commit_needs_no_lease_and_a_stream_that_stays(harness: Harness) -> None:
    """A driver has its stream already, and an erased one has nothing to drive."""
    store = await harness.open()
    lease = await drive(store)
    for write in (
        Write("s", [record()], fence=lease, claim="worker"),
        Write("s", erase=True, claim="worker"),
        Write("s", [record()], claim=""),
        Write("s", [record()], claim="\ud800"),
    ):
        await expect_error(ValueError, store.commit([write]))
    assert (await store.read("s", limit=0)).head == 1


@cases.case("shared")
async def a_holder_removed_by_another_store_is_granted_nothing(harness: Harness) -> None:
    """However recently this store has seen it alive."""
    first, other = await harness.open(), await harness.open()
    await _parked(first)
    lease = (await _send(first, "worker")).leases["s"]
    await first.commit([Write("s", fence=lease, head=2, release=Release())])
    await other.renew("worker", 0)
    assert dict((await _send(first, "worker")).leases) == {}
    assert (await first.read("s", limit=0)).holder is None


@cases.case("shared")
async def one_of_many_stores_gets_the_lease_of_a_stream(harness: Harness) -> None:
    """As with many processes: each lease fences the one before."""
    stores = [await harness.open() for _ in range(4)]
    await make(stores[0], "s", wake=None)
    leases: list[Lease] = []

    async def send(store: Store, name: str) -> None:
        await join(store, name)
        for _ in range(5):
            for lease in (await _send(store, name)).leases.values():
                leases.append(lease)
                head: int | None = (await store.read("s", limit=0)).head
                while head is not None:
                    head = await _park(store, lease, head)

    async with anyio.create_task_group() as group:
        for number, store in enumerate(stores):
            group.start_soon(send, store, f"worker-{number}")
    assert sorted(lease.epoch for lease in leases) == list(range(1, len(leases) + 1))
    assert (await stores[0].read("s", limit=0)).head == 21


async def _park(store: Store, lease: Lease, head: int) -> int | None:
    """Park at a head; returns the head to try again with, if another caller wrote."""
    try:
        await store.commit([Write("s", fence=lease, head=head, release=Release())])
    except HeadMoved as moved:
        return moved.head
    return None


@cases.case("durable")
async def a_claim_of_a_commit_is_there_after_opening_again(harness: Harness) -> None:
    """It is durable with its commit."""
    store = await harness.open()
    await _parked(store)
    await store.commit([Write("s")], [put("k")])
    lease = (await _send(store, "worker")).leases["s"]
    await store.close()
    store = await harness.open()
    assert (await store.read("s", limit=0)).holder == "worker"
    assert (await entry(store, "k")).version == 1
    assert await store.commit([Write("s", [record()], fence=lease, head=2)]) == {"s": 3}
