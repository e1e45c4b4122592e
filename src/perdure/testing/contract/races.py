"""Rules that keep work from being lost or repeated, each as the interleaving that needs it."""

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


@cases.case("leases")
async def a_driver_cannot_park_before_it_has_read_a_result(harness: Harness) -> None:
    """The result came first: the park is refused, and no wake-up is lost."""
    store = await harness.open()
    lease = await drive(store)
    await store.commit([Write("s", [record("result")], wake=0)])
    moved = await expect_error(
        HeadMoved, store.commit([Write("s", fence=lease, head=1, release=Release())])
    )
    assert moved.head == 2
    await store.commit([Write("s", fence=lease, head=2, release=Release())])


@cases.case("leases")
async def a_result_after_the_park_makes_the_stream_due(harness: Harness) -> None:
    """The park came first: the wake in the result's own commit finds the stream free."""
    store = await harness.open()
    lease = await drive(store)
    await store.commit([Write("s", fence=lease, head=1, release=Release())])
    await store.commit([Write("s", [record("result")], wake=harness.clock.now())])
    assert (await claim(store, "worker", "s")).head == 2


@cases.case("leases")
async def a_wake_while_the_stream_is_held_changes_nothing(harness: Harness) -> None:
    """Otherwise a live driver would lose its session, and its effect count as interrupted."""
    store = await harness.open()
    lease = await drive(store)
    await store.commit([Write("s", [record("result")], wake=0)])
    assert (await store.read("s", limit=0)).due is None
    await join(store, "other")
    assert await store.claim("other", "session", 1) == []
    assert await store.commit([Write("s", [record()], fence=lease, head=2)]) == {"s": 3}
    await store.commit([Write("s", fence=lease, head=3, release=Release())])
    assert await store.claim("other", "session", 1) == []


@cases.case("entries")
async def a_result_and_an_expiry_of_one_call_cannot_both_win(harness: Harness) -> None:
    """Both read it as open; the refusal of the second carries the settled entry."""
    store = await harness.open()
    await make(store, "s")
    await store.commit([Write("s", [record("asked")])], [put("k", due=5)])
    await store.commit([Write("s", [record("result")])], [put("k", 1, state="completed")])
    moved = await expect_error(
        VersionMoved,
        store.commit([Write("s", [record("expired")])], [put("k", 1, state="expired")]),
    )
    assert moved.entry is not None
    assert moved.entry.state == "completed"
    assert await texts(store, "s") == ["first", "asked", "result"]


@cases.case("entries")
async def a_new_version_that_is_still_open_can_be_settled(harness: Harness) -> None:
    """After progress in between, the caller retries with the entry of the refusal."""
    store = await harness.open()
    await make(store, "s")
    await store.commit([Write("s")], [put("k")])
    await store.commit([Write("s")], [put("k", 1, data=b"50%")])
    settle = [Write("s", [record("result")])]
    moved = await expect_error(VersionMoved, store.commit(settle, [put("k", 1, state="completed")]))
    assert moved.entry is not None
    assert moved.entry.state == "open"
    await store.commit(settle, [put("k", moved.entry.version, state="completed")])
    assert (await entry(store, "k")).state == "completed"


@cases.case("commit")
async def a_call_and_the_entry_that_finds_it_appear_together(harness: Harness) -> None:
    """No result can come for a call that does not exist, and no call exists without an entry."""
    store = await harness.open()
    lease = await drive(store)
    turn = Write("s", [record("call"), record("intent")], fence=lease, head=1)
    await store.commit([turn], [put("k", due=9)])
    assert (await entry(store, "k")).stream == "s"
    assert (await store.read("s")).head == 3


@cases.case("commit")
async def no_effect_is_intended_after_a_cancel(harness: Harness) -> None:
    """An intent names the head that its driver has folded; the cancel has moved the head."""
    store = await harness.open()
    lease = await drive(store)
    await store.commit([Write("s", [record("cancel")], head=1, wake=0)])
    await expect_error(
        HeadMoved, store.commit([Write("s", [record("intent")], fence=lease, head=1)])
    )
    assert await texts(store, "s") == ["first", "cancel"]


@cases.case("commit")
async def a_fact_is_recorded_wherever_the_stream_ends(harness: Harness) -> None:
    """It needs the fence but not the head; the new head shows that others wrote too."""
    store = await harness.open()
    lease = await drive(store)
    await store.commit([Write("s", [record("message")], wake=0)])
    assert await store.commit([Write("s", [record("outcome")], fence=lease)]) == {"s": 3}


@cases.case("leases")
async def a_frozen_driver_s_outcome_is_refused_after_the_take_over(harness: Harness) -> None:
    """Its successor has already recorded the effect as interrupted."""
    store = await harness.open()
    frozen = await drive(store)
    await store.commit([Write("s", [record("intent")], fence=frozen, head=1)])
    harness.clock.advance(TTL_MS)
    await join(store, "successor")
    lease = await claim(store, "successor", "s")
    await store.commit([Write("s", [record("interrupted")], fence=lease, head=2)])
    await expect_error(Fenced, store.commit([Write("s", [record("outcome")], fence=frozen)]))
    await expect_error(
        Fenced, store.commit([Write("s", [record("outcome")], fence=frozen, head=2)])
    )
    assert await texts(store, "s") == ["first", "intent", "interrupted"]


@cases.case("entries")
async def mail_is_delivered_exactly_once(harness: Harness) -> None:
    """The put and the record of where it went are one commit."""
    store = await harness.open()
    await make(store, "s")
    await store.commit([Write("s")], [put("m", kind="mail")])
    puts = [put("m", 1, kind="mail", state="taken")]
    await store.commit([Write("s", [record("to the call")])], puts)
    await expect_error(VersionMoved, store.commit([Write("s", [record("to the model")])], puts))
    assert await texts(store, "s") == ["first", "to the call"]


@cases.case("commit")
async def a_child_s_end_and_its_parent_s_wake_up_are_one_commit(harness: Harness) -> None:
    """Two streams and their entries, all or nothing."""
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
    await expect_error(
        Gone, store.commit([Write("child", [record()]), Write("parent", [record()])])
    )
    assert (await store.read("child")).head == 2


@cases.case("entries")
async def a_write_guarded_by_a_lock_fails_once_the_lock_has_moved(harness: Harness) -> None:
    """One of two callers gets the lock, and the writes of its former owner are refused."""
    store = await harness.open()
    await make(store, "s")
    await store.commit([Write("lock:a", create="lock")], [_lock(0)])
    guard = [Check("lock", "a", 1, "lock:a")]
    guarded = [Write("s", [record("guarded")]), Write("lock:a")]
    await store.commit(guarded, checks=guard)
    await store.commit([Write("lock:a")], [_lock(1)])
    await expect_error(VersionMoved, store.commit([Write("lock:a")], [_lock(1)]))
    await expect_error(VersionMoved, store.commit(guarded, checks=guard))
    assert await texts(store, "s") == ["first", "guarded"]


def _lock(expect: int) -> Put:
    return put("a", expect, kind="lock", stream="lock:a")
