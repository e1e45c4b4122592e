"""Commits: all or nothing, under conditions, in the order of the contract."""

import random
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from perdure.errors import Refused, StoreError
from perdure.store.base import (
    DELETE,
    Check,
    Fenced,
    ForeignWrite,
    Gone,
    HeadMoved,
    Lease,
    NoStream,
    Record,
    Release,
    VersionMoved,
    Write,
)
from perdure.store.judge import NAME_BYTES
from perdure.testing.contract.harness import Cases, Harness
from perdure.testing.contract.steps import drive, entry, expect_error, make, put, record, texts

cases = Cases()


@cases.case("commit")
async def records_get_the_next_seqs_and_keep_their_order(harness: Harness) -> None:
    """Seqs are 1, 2, 3 without gaps, however the records are grouped."""
    store = await harness.open()
    await make(store, "s")
    assert await store.commit([Write("s", [record("a"), record("b")])]) == {"s": 3}
    slice_ = await store.read("s")
    assert [r.seq for r in slice_.records] == [1, 2, 3]
    assert [r.data for r in slice_.records] == [b"first", b"a", b"b"]
    assert slice_.head == 3


@cases.case("commit")
async def a_commit_that_is_not_synced_counts_like_any_other(harness: Harness) -> None:
    """It is visible at once, checks its conditions, and the next synced one stands on it."""
    store = await harness.open()
    await make(store, "s")
    await store.commit([Write("s", [record("a")], synced=False)], [put("k")])
    assert (await store.read("s")).head == 2
    await expect_error(
        VersionMoved, store.commit([Write("s", [record("b")], synced=False)], [put("k")])
    )
    assert await store.commit([Write("s", [record("c")], head=2)]) == {"s": 3}


@cases.case("commit")
async def a_commit_that_relies_on_a_count_of_foreign_writes_is_refused_at_another_one(
    harness: Harness,
) -> None:
    """A backend that cannot tell who has written replies no count, and refuses every one."""
    store = await harness.open()
    await make(store, "s")
    count = (await store.commit([Write("s", [record("a")])], [put("k")])).foreign_writes
    if count is not None:
        assert await store.commit([Write("s", [record("b")], foreign_writes=count)]) == {"s": 3}
    head = (await store.read("s")).head
    relying = Write("s", [record("c")], foreign_writes=-1 if count is None else count + 1)
    refusal = await expect_error(ForeignWrite, store.commit([relying], [put("k")]))
    assert (refusal.stream, (await store.read("s")).head) == ("s", head)
    await expect_error(NoStream, store.commit([Write("none", foreign_writes=-1)]))
    lease = await drive(store, stream="driven")
    await expect_error(ValueError, store.commit([Write("driven", fence=lease, foreign_writes=0)]))


@cases.case("commit")
async def a_slice_begins_after_the_seq_and_ends_at_the_limit(harness: Harness) -> None:
    """Limit 0 returns only head, holder and due."""
    store = await harness.open()
    await make(store, "s", wake=7)
    await store.commit([Write("s", [record(str(n)) for n in range(2, 6)])])
    assert [r.seq for r in (await store.read("s", after=2, limit=2)).records] == [3, 4]
    assert (await store.read("s", after=5)).records == ()
    state = await store.read("s", limit=0)
    assert (state.records, state.head, state.holder, state.due) == ((), 5, None, 7)


@cases.case("commit")
async def a_record_without_a_time_gets_the_store_s(harness: Harness) -> None:
    """A time set by the writer is kept."""
    store = await harness.open()
    await store.commit([Write("s", [Record("t", b""), Record("t", b"", 5)], create="session")])
    assert [r.at for r in (await store.read("s")).records] == [harness.clock.now(), 5]


@cases.case("commit")
async def data_of_ten_mebibytes_comes_back_whole(harness: Harness) -> None:
    """Attachments are records and entries too."""
    store = await harness.open()
    big = bytes(range(256)) * (10 * 4096)
    await store.commit([Write("s", [Record("blob", big)], create="session")], [put("k", data=big)])
    assert (await store.read("s")).records[0].data == big
    assert (await entry(store, "k")).data == big


@cases.case("commit")
async def any_text_can_be_an_id(harness: Harness) -> None:
    """Users choose ids: quotes, line ends, other scripts, NUL."""
    store = await harness.open()
    for name in ("o'neill", "a\nb", "日本 🦀", "%_", "a:b", "nul\0nul", "x" * 200):
        await store.commit([Write(name, [record()], create="session")], [put(name, stream=name)])
        assert (await store.read(name)).records[0].stream == name
        assert (await entry(store, name)).stream == name


@cases.case("commit")
async def an_unknown_stream_is_neither_read_nor_written(harness: Harness) -> None:
    """Only `create` creates one."""
    store = await harness.open()
    assert (await expect_error(NoStream, store.read("s"))).stream == "s"
    assert (await expect_error(NoStream, store.commit([Write("s", [record()])]))).stream == "s"
    await expect_error(NoStream, store.read("s"))


@cases.case("commit")
async def create_creates_a_stream_once(harness: Harness) -> None:
    """With head 0 it must be new, even if the existing one is empty."""
    store = await harness.open()
    assert await store.commit([Write("s", create="session", head=0)]) == {"s": 0}
    moved = await expect_error(
        HeadMoved, store.commit([Write("s", [record()], create="session", head=0)])
    )
    assert (moved.stream, moved.head) == ("s", 0)
    assert await store.commit([Write("s", [record()], create="session")]) == {"s": 1}
    assert (await expect_error(HeadMoved, store.commit([Write("t", create="x", head=3)]))).head == 0


@cases.case("commit")
async def the_first_condition_in_the_contract_s_order_wins(harness: Harness) -> None:
    """Missing, gone, fenced, head, version, whatever the order of the streams in the commit."""
    store = await harness.open()
    await make(store, "s", "erased")
    await store.commit([Write("erased", erase=True)])
    other_lease = Lease("s", 9, "other", 1, 1, 0)
    head, fence = Write("s", head=9), Write("s", head=9, fence=other_lease)
    version = [put("k", 5)]
    await expect_error(NoStream, store.commit([fence, Write("erased"), Write("none")], version))
    await expect_error(Gone, store.commit([fence, Write("erased")], version))
    await expect_error(Fenced, store.commit([fence], version))
    await expect_error(HeadMoved, store.commit([head], version))
    await expect_error(VersionMoved, store.commit([Write("s")], version))


@cases.case("commit")
async def a_refused_commit_writes_nothing_at_all(harness: Harness) -> None:
    """Neither to the streams whose conditions hold, nor new streams, nor entries."""
    store = await harness.open()
    await make(store, "a", "b", wake=None)
    puts = [put("k", stream="a")]
    attempt = [
        Write("a", [record()], wake=0),
        Write("new", create="session"),
        Write("b", [record()], head=7),
    ]
    assert (await expect_error(HeadMoved, store.commit(attempt, puts))).stream == "b"
    assert await texts(store, "a") == ["first"]
    assert (await store.read("a")).due is None
    assert await store.get("pending", "k") is None
    await expect_error(NoStream, store.read("new"))


@cases.case("commit")
async def of_two_writers_at_the_same_head_exactly_one_wins(harness: Harness) -> None:
    """The other gets the new head."""
    store = await harness.open()
    await make(store, "s")
    outcomes: list[object] = []

    async def write(text: str) -> None:
        try:
            outcomes.append(await store.commit([Write("s", [record(text)], head=1)]))
        except HeadMoved as moved:
            outcomes.append(moved.head)

    async with anyio.create_task_group() as group:
        for text in "abcdefgh":
            group.start_soon(write, text)
    assert outcomes.count({"s": 2}) == 1
    assert outcomes.count(2) == 7


@cases.case("commit")
async def many_commits_at_once_leave_no_gap_and_no_duplicate(harness: Harness) -> None:
    """Facts are appended wherever the stream ends, and each commit returns its own head."""
    store = await harness.open()
    await make(store, "a", "b")
    heads: dict[str, list[int]] = {"a": [], "b": []}

    async def write(number: int) -> None:
        stream = "ab"[number % 2]
        heads[stream].append((await store.commit([Write(stream, [record()])]))[stream])

    async with anyio.create_task_group() as group:
        for number in range(100):
            group.start_soon(write, number)
    assert sorted(heads["a"]) == sorted(heads["b"]) == list(range(2, 52))


@cases.case("commit")
async def one_bad_commit_does_not_fail_its_neighbors(harness: Harness) -> None:
    """Refusals are per commit, however many are written together."""
    store = await harness.open()
    await make(store, "s")
    outcomes: list[bool] = []

    async def write(number: int) -> None:
        try:
            await store.commit([Write("s" if number % 3 else "none", [record()])])
            outcomes.append(True)
        except NoStream:
            outcomes.append(False)

    async with anyio.create_task_group() as group:
        for number in range(30):
            group.start_soon(write, number)
    assert (outcomes.count(True), outcomes.count(False)) == (20, 10)
    assert (await store.read("s", limit=0)).head == 21


@cases.case("commit")
async def cancelling_the_caller_does_not_withdraw_the_commit(harness: Harness) -> None:
    """A commit that was submitted is written."""
    store = await harness.open()
    await make(store, "s")
    async with anyio.create_task_group() as group:
        group.start_soon(store.commit, [Write("s", [record("late")])])
        await checkpoint()  # until it is submitted
        group.cancel_scope.cancel()
    await store.commit([Write("s", [record("after")])])
    assert await texts(store, "s") == ["first", "late", "after"]


@cases.case("commit")
async def a_malformed_commit_is_a_value_error(harness: Harness) -> None:
    """Whatever the rows are, and nothing is written."""
    store = await harness.open()
    lease = await drive(store)
    wrong: list[tuple[list[Write], list[object]]] = [
        ([Write("s"), Write("s")], []),
        ([Write("s")], [put("k"), put("k")]),
        ([Write("s")], [put("k", stream="other")]),
        ([Write("s")], [Check("pending", "k", 0, "other")]),
        ([Write("s", release=Release(), head=1)], []),
        ([Write("s", release=Release(), fence=lease)], []),
        ([Write("t", fence=lease, create="session")], []),
        ([Write("s", [record()], erase=True)], []),
        ([Write("s", erase=True)], [put("k")]),
        ([Write("", create="session")], []),
        ([Write("\ud800", create="session")], []),
        ([Write("s", wake=2**63)], []),
        ([Write("s", [Record("t", "text")])], []),  # type: ignore[arg-type]
    ]
    for writes, items in wrong:
        puts = [item for item in items if not isinstance(item, Check)]
        checks = [item for item in items if isinstance(item, Check)]
        await expect_error(ValueError, store.commit(writes, puts, checks))  # type: ignore[arg-type]
    assert await texts(store, "s") == ["first"]
    assert await store.get("pending", "k") is None


@cases.case("commit")
async def names_may_be_as_long_as_every_backend_can_index(harness: Harness) -> None:
    """Every backend refuses longer ones before anything is written."""
    store = await harness.open()
    letters = random.Random(7)  # noqa: S311 - they must only be hard to compress

    def name(size: int) -> str:
        return "".join(chr(letters.randint(0xA1, 0x7FF)) for _ in range(size // 2))

    longest = name(NAME_BYTES)
    stream, kind, key = longest[:800], longest[800:], name(NAME_BYTES - 100)
    items: dict[str, Any] = {"kind": name(60), "key": key, "state": name(40), "due": 1}
    await store.commit([Write(stream, [record()], create=kind, wake=0)])
    await store.commit([Write(stream)], [put(stream=stream, **items)])
    assert await texts(store, stream) == ["x"]
    assert (await entry(store, key, items["kind"])).stream == stream
    for wrong in ({**items, "key": f"{key}!"}, {**items, "state": name(42)}):
        await expect_error(Refused, store.commit([Write(stream)], [put(stream=stream, **wrong)]))
    error = await expect_error(Refused, store.commit([Write(f"{longest}!", create="k")]))
    assert error.code == "ID_INVALID"


@cases.case("commit")
async def a_closed_store_refuses_and_can_be_closed_again(harness: Harness) -> None:
    """With our own error, not with that of a database driver."""
    store = await harness.open()
    await make(store, "s")
    await store.close()
    await store.close()
    await expect_error(StoreError, store.read("s"))
    await expect_error(StoreError, store.commit([Write("s", [record()])]))
    await expect_error(StoreError, store.claim("w", "session", 1))


@cases.case("erase")
async def an_erased_stream_accepts_nothing_and_shows_nothing(harness: Harness) -> None:
    """Its entries and records are deleted; its id cannot be used again."""
    store = await harness.open()
    lease = await drive(store)
    await store.commit([Write("s")], [put("k", due=1)])
    await store.commit([Write("s", erase=True)])
    for attempt in (
        Write("s", [record()]),
        Write("s", create="session", head=0),
        Write("s", [record()], fence=lease, head=1),
        Write("s", erase=True),
    ):
        assert (await expect_error(Gone, store.commit([attempt]))).stream == "s"
    await expect_error(Gone, store.read("s"))
    assert await store.get("pending", "k") is None
    assert (await store.find("pending", due_before=9)).entries == ()
    assert (await store.tail("")).records == ()
    assert await store.claim("worker", "session", 9) == []


@cases.case("erase")
async def another_stream_may_take_the_keys_of_an_erased_one_in_the_same_commit(
    harness: Harness,
) -> None:
    """Its entries are deleted before the puts, so that a session can be replaced atomically."""
    store = await harness.open()
    await make(store, "s", "t")
    await store.commit([Write("s"), Write("t")], [put("k", data=b"old"), put("mine", stream="t")])
    instead = Write("s2", [record("anew")], create="session", head=0)
    foreign = put("mine", stream="s2")
    both = [put("k", stream="s2", data=b"new"), foreign]
    await expect_error(VersionMoved, store.commit([Write("s", erase=True), instead], both))
    await expect_error(VersionMoved, store.commit([instead], [put("k", stream="s2")]))
    assert (await entry(store, "k")).data == b"old"
    await store.commit([Write("s", erase=True), instead], [put("k", stream="s2", data=b"new")])
    new = await entry(store, "k")
    assert (new.stream, new.version, new.data) == ("s2", 1, b"new")
    assert await texts(store, "s2") == ["anew"]
    await expect_error(Gone, store.read("s"))
    assert [e.key for e in (await store.find("pending", stream="s2")).entries] == ["k"]


@cases.case("erase")
async def positions_of_erased_records_are_not_used_again(harness: Harness) -> None:
    """A reader of the feed would miss a record at a position that it has passed."""
    store = await harness.open()
    await make(store, "s")
    cursor = (await store.tail("")).cursor
    await store.commit([Write("s", erase=True)])
    await make(store, "t")
    assert [r.stream for r in (await store.tail(cursor)).records] == ["t"]


@cases.case("entries")
async def an_entry_s_version_counts_its_puts(harness: Harness) -> None:
    """The refusal of a put at another version carries the present entry."""
    store = await harness.open()
    await make(store, "s")
    await store.commit([Write("s")], [put("k", data=b"1")])
    await store.commit([Write("s")], [put("k", 1, state="settled", due=4, data=b"2")])
    present = await entry(store, "k")
    assert (present.version, present.state, present.due, present.data) == (2, "settled", 4, b"2")
    for expect in (0, 1, 3):
        moved = await expect_error(VersionMoved, store.commit([Write("s")], [put("k", expect)]))
        assert moved.entry == present
    missing = await expect_error(VersionMoved, store.commit([Write("s")], [put("other", 1)]))
    assert missing.entry is None


@cases.case("entries")
async def an_entry_belongs_to_one_stream(harness: Harness) -> None:
    """A put for another stream's entry is refused, even at the right version."""
    store = await harness.open()
    await make(store, "s", "t")
    await store.commit([Write("s")], [put("k")])
    moved = await expect_error(VersionMoved, store.commit([Write("t")], [put("k", 1, stream="t")]))
    assert moved.entry is not None
    assert moved.entry.stream == "s"


@cases.case("entries")
async def an_entry_is_deleted_at_its_version_only(harness: Harness) -> None:
    """DELETE is a put like any other."""
    store = await harness.open()
    await make(store, "s")
    await store.commit([Write("s")], [put("k")])
    await expect_error(VersionMoved, store.commit([Write("s")], [put("k", 2, data=DELETE)]))
    await store.commit([Write("s")], [put("k", 1, data=DELETE)])
    assert await store.get("pending", "k") is None
    assert (await store.find("pending")).entries == ()


@cases.case("entries")
async def a_check_changes_nothing_and_refuses_like_a_put(harness: Harness) -> None:
    """It guards a write by an entry that the commit does not change."""
    store = await harness.open()
    await make(store, "s")
    await store.commit([Write("s")], [put("k")])
    await store.commit([Write("s", [record("ok")])], checks=[Check("pending", "k", 1, "s")])
    assert (await entry(store, "k")).version == 1
    stale = store.commit([Write("s", [record("no")])], checks=[Check("pending", "k", 2, "s")])
    assert (await expect_error(VersionMoved, stale)).stream == "s"
    assert await texts(store, "s") == ["first", "ok"]
