"""Each rule that keeps work from being lost or done twice, as the interleaving that needs it."""

from perdure.store.base import (
    Check,
    Fenced,
    Gone,
    HeadMoved,
    Put,
    Release,
    VersionMoved,
    Write,
)
from perdure.testing.contract.harness import Cases, Harness
from perdure.testing.contract.steps import (
    TTL_MS,
    drive,
    entry,
    join,
    make,
    put,
    record,
    refused,
    take,
    texts,
)

cases = Cases()


@cases.of("leases")
async def a_driver_cannot_park_past_a_result_it_has_not_seen(harness: Harness) -> None:
    """The result came first: the park is refused, and no wake-up is lost."""
    store = await harness.open()
    lease = await drive(store)
    await store.commit([Write("s", [record("result")], wake=0)])
    moved = await refused(
        HeadMoved, store.commit([Write("s", fence=lease, head=1, release=Release())])
    )
    assert moved.head == 2
    await store.commit([Write("s", fence=lease, head=2, release=Release())])


@cases.of("leases")
async def a_result_after_the_park_makes_the_stream_due(harness: Harness) -> None:
    """The park came first: the wake in the result's own commit finds nobody holding it."""
    store = await harness.open()
    lease = await drive(store)
    await store.commit([Write("s", fence=lease, head=1, release=Release())])
    await store.commit([Write("s", [record("result")], wake=harness.clock.now())])
    assert (await take(store, "worker", "s")).head == 2


@cases.of("leases")
async def a_wake_while_the_stream_is_held_changes_nothing(harness: Harness) -> None:
    """Else a live driver would lose its session, and its effect be called interrupted."""
    store = await harness.open()
    lease = await drive(store)
    await store.commit([Write("s", [record("result")], wake=0)])
    assert (await store.read("s", limit=0)).due is None
    await join(store, "other")
    assert await store.claim("other", "session", 1) == []
    assert await store.commit([Write("s", [record()], fence=lease, head=2)]) == {"s": 3}
    await store.commit([Write("s", fence=lease, head=3, release=Release())])
    assert await store.claim("other", "session", 1) == []


@cases.of("entries")
async def a_result_and_an_expiry_of_one_call_cannot_both_win(harness: Harness) -> None:
    """Both saw it open; the second is told what the first made of it."""
    store = await harness.open()
    await make(store, "s")
    await store.commit([Write("s", [record("asked")])], [put("k", due=5)])
    await store.commit([Write("s", [record("result")])], [put("k", 1, state="completed")])
    moved = await refused(
        VersionMoved,
        store.commit([Write("s", [record("expired")])], [put("k", 1, state="expired")]),
    )
    assert moved.entry is not None
    assert moved.entry.state == "completed"
    assert await texts(store, "s") == ["first", "asked", "result"]


@cases.of("entries")
async def a_new_version_that_is_still_open_can_be_settled(harness: Harness) -> None:
    """Progress came between: look at the entry that the refusal carries, and go on."""
    store = await harness.open()
    await make(store, "s")
    await store.commit([Write("s")], [put("k")])
    await store.commit([Write("s")], [put("k", 1, data=b"50%")])
    settle = [Write("s", [record("result")])]
    moved = await refused(VersionMoved, store.commit(settle, [put("k", 1, state="completed")]))
    assert moved.entry is not None
    assert moved.entry.state == "open"
    await store.commit(settle, [put("k", moved.entry.version, state="completed")])
    assert (await entry(store, "k")).state == "completed"


@cases.of("commit")
async def a_call_and_the_entry_that_finds_it_appear_together(harness: Harness) -> None:
    """A result cannot come for a call that is not there yet, nor a call be there without entry."""
    store = await harness.open()
    lease = await drive(store)
    turn = Write("s", [record("call"), record("intent")], fence=lease, head=1)
    await store.commit([turn], [put("k", due=9)])
    assert (await entry(store, "k")).stream == "s"
    assert (await store.read("s")).head == 3


@cases.of("commit")
async def no_effect_is_intended_after_a_cancel(harness: Harness) -> None:
    """An intent names the head it was decided at; the cancel has moved it."""
    store = await harness.open()
    lease = await drive(store)
    await store.commit([Write("s", [record("cancel")], head=1, wake=0)])
    await refused(HeadMoved, store.commit([Write("s", [record("intent")], fence=lease, head=1)]))
    assert await texts(store, "s") == ["first", "cancel"]


@cases.of("commit")
async def a_fact_is_recorded_wherever_the_stream_ends(harness: Harness) -> None:
    """It needs the fence, but not to have seen everything; the answer shows somebody wrote."""
    store = await harness.open()
    lease = await drive(store)
    await store.commit([Write("s", [record("message")], wake=0)])
    assert await store.commit([Write("s", [record("outcome")], fence=lease)]) == {"s": 3}


@cases.of("leases")
async def a_frozen_driver_s_outcome_is_refused_after_the_take_over(harness: Harness) -> None:
    """Its successor has already recorded the effect as interrupted."""
    store = await harness.open()
    frozen = await drive(store)
    await store.commit([Write("s", [record("intent")], fence=frozen, head=1)])
    harness.clock.advance(TTL_MS)
    await join(store, "successor")
    lease = await take(store, "successor", "s")
    await store.commit([Write("s", [record("interrupted")], fence=lease, head=2)])
    await refused(Fenced, store.commit([Write("s", [record("outcome")], fence=frozen)]))
    await refused(Fenced, store.commit([Write("s", [record("outcome")], fence=frozen, head=2)]))
    assert await texts(store, "s") == ["first", "intent", "interrupted"]


@cases.of("entries")
async def mail_is_delivered_by_exactly_one_taker(harness: Harness) -> None:
    """The put and the record of where it went are one commit."""
    store = await harness.open()
    await make(store, "s")
    await store.commit([Write("s")], [put("m", kind="mail")])
    taken = [put("m", 1, kind="mail", state="taken")]
    await store.commit([Write("s", [record("to the call")])], taken)
    await refused(VersionMoved, store.commit([Write("s", [record("to the model")])], taken))
    assert await texts(store, "s") == ["first", "to the call"]


@cases.of("commit")
async def a_child_s_end_and_its_parent_s_wake_up_are_one_commit(harness: Harness) -> None:
    """Two streams, entries of both, all or nothing."""
    store = await harness.open()
    lease = await drive(store, stream="child")
    await make(store, "parent", wake=None)
    end = [
        Write("child", [record("ended")], fence=lease, head=1, release=Release()),
        Write("parent", [record("child finished")], wake=0),
    ]
    mail = put("m", kind="mail", stream="parent")
    assert await store.commit(end, [mail]) == {"child": 2, "parent": 2}
    assert [x.stream for x in await store.claim("worker", "session", 9)] == ["parent"]
    await store.commit([Write("parent", erase=True)])
    await refused(Gone, store.commit([Write("child", [record()]), Write("parent", [record()])]))
    assert (await store.read("child")).head == 2


@cases.of("entries")
async def a_write_guarded_by_a_lock_fails_once_the_lock_has_moved(harness: Harness) -> None:
    """Of two lock takers one wins, and what the former holder writes is stale."""
    store = await harness.open()
    await make(store, "s")
    await store.commit([Write("lock:a", create="lock")], [_lock(0)])
    guard = [Check("lock", "a", 1, "lock:a")]
    guarded = [Write("s", [record("guarded")]), Write("lock:a")]
    await store.commit(guarded, checks=guard)
    await store.commit([Write("lock:a")], [_lock(1)])
    await refused(VersionMoved, store.commit([Write("lock:a")], [_lock(1)]))
    await refused(VersionMoved, store.commit(guarded, checks=guard))
    assert await texts(store, "s") == ["first", "guarded"]


def _lock(expect: int) -> Put:
    return put("a", expect, kind="lock", stream="lock:a")
