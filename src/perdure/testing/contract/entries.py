"""Entries, streams, the feed, and hints of changes."""

from typing import Unpack

import anyio
from anyio.lowlevel import checkpoint

from perdure.store.base import Entry, FindOptions, Order, Release, Store, StreamState, Write
from perdure.testing.contract.harness import Cases, Harness
from perdure.testing.contract.steps import drive, expect_error, make, put, record

cases = Cases()


async def _all_pages(store: Store, limit: int, **conditions: object) -> list[Entry]:
    entries: list[Entry] = []
    after: str | None = None
    while True:
        page = await store.find("pending", after=after, limit=limit, **conditions)  # type: ignore[arg-type]
        entries += page.entries
        after = page.next
        if after is None:
            return entries
        assert len(page.entries) == limit, "a page that is not the last one is full"


@cases.case("entries")
async def pages_by_key_hold_every_entry_once(harness: Harness) -> None:
    """In the order of keys, whatever the page size."""
    store = await harness.open()
    await make(store, "s")
    keys = [f"k:{n:02}" for n in range(7)] + ["Z", "é", "😀"]
    await store.commit([Write("s")], [put(key) for key in reversed(keys)])
    for limit in (1, 3, 10, 100):
        assert [e.key for e in await _all_pages(store, limit)] == sorted(keys)


@cases.case("entries")
async def pages_by_due_time_are_ordered_by_due_then_key(harness: Harness) -> None:
    """Entries that are due at the same time, or exactly now, are not lost between pages."""
    store = await harness.open()
    await make(store, "s")
    dues = {"d": 5, "a": 5, "c": 5, "b": 2, "later": 9, "never": None, "edge": 8, "old": -3}
    await store.commit([Write("s")], [put(key, due=due) for key, due in dues.items()])
    for limit in (1, 2, 3, 50):
        entries = await _all_pages(store, limit, due_before=8)
        assert [e.key for e in entries] == ["old", "b", "a", "c", "d", "edge"]


@cases.case("entries")
async def a_page_leaves_out_as_many_entries_as_it_skips(harness: Harness) -> None:
    """From the beginning or from a cursor, in every order; past the last one it is empty."""
    store = await harness.open()
    await make(store, "s", "t")
    puts = [put(f"{n:02}", state="ab"[n % 2], stream="st"[n % 3 == 0]) for n in range(9)]
    dues = [put(f"d{n}", kind="mail", due=n // 2) for n in range(9)]
    await store.commit([Write("s"), Write("t")], [*puts, *dues])

    async def check(kind: str, **options: Unpack[FindOptions]) -> None:
        async def page(**more: Unpack[FindOptions]) -> tuple[list[str], str | None]:
            query: FindOptions = {**options, **more}
            result = await store.find(kind, **query)
            return [entry.key for entry in result.entries], result.next

        keys, _ = await page()
        _, first = await page(limit=1)
        for skip in (0, 1, 2, len(keys) - 1, len(keys), len(keys) + 1):
            two, following = await page(skip=skip, limit=2)
            assert two == keys[skip : skip + 2]
            assert (following is None) == (skip + 2 >= len(keys))
            assert (await page(skip=skip, after=first))[0] == keys[1 + skip :]
            if following is not None:
                assert (await page(after=following))[0] == keys[skip + 2 :]

    await check("pending")
    await check("pending", state="a")
    await check("pending", stream="s")
    await check("pending", stream="s", state="a")
    await check("mail", due_before=3)
    await check("mail", due_before=3, state="open")


@cases.case("entries")
async def find_filters_by_kind_state_and_stream(harness: Harness) -> None:
    """All conditions together; an unknown stream has no entries."""
    store = await harness.open()
    await make(store, "s", "t")
    puts = [
        put("a", due=1),
        put("b", state="settled"),
        put("c", stream="t", due=2),
        put("d", stream="t", state="settled", due=3),
        put("a", kind="mail"),
    ]
    await store.commit([Write("s"), Write("t")], puts)

    async def keys(**conditions: object) -> list[str]:
        return [e.key for e in await _all_pages(store, 1, **conditions)]

    assert await keys() == ["a", "b", "c", "d"]
    assert await keys(state="open") == ["a", "c"]
    assert await keys(stream="t") == ["c", "d"]
    assert await keys(stream="t", state="open") == ["c"]
    assert await keys(state="settled", due_before=9) == ["d"]
    assert await keys(stream="t", due_before=2) == ["c"]
    assert await keys(stream="none") == []
    assert [e.kind for e in (await store.find("mail")).entries] == ["mail"]


async def _listed(store: Store, order: Order, limit: int, listing: str = "open") -> list[str]:
    keys: list[str] = []
    after: str | None = None
    while True:
        page = await store.find_listed("pending", listing, order=order, after=after, limit=limit)
        keys += [entry.key for entry in page.entries]
        after = page.next
        if after is None:
            return keys
        assert len(page.entries) == limit, "a page that is not the last one is full"


@cases.case("entries")
async def a_listing_is_ordered_by_the_instants_of_its_entries(harness: Harness) -> None:
    """Either way, by key at one instant, whatever the page size, and only of its own entries."""
    store = await harness.open()
    await make(store, "s")
    places = {"k:1": 5, "c": 9, "a": 5, "b": -2, "z": 0}
    puts = [put(key, listing="open", at=at) for key, at in places.items()]
    others = [put("x"), put("y", listing="settled", at=5), put("a", kind="mail", listing="open")]
    await store.commit([Write("s")], [*puts, *others])
    expected = ["b", "z", "a", "k:1", "c"]
    for limit in (1, 2, 50):
        assert await _listed(store, "oldest", limit) == expected
        assert await _listed(store, "newest", limit) == expected[::-1]
    assert await _listed(store, "oldest", 9, "settled") == ["y"]
    assert await _listed(store, "oldest", 9, "nothing") == []


@cases.case("entries")
async def a_listing_is_ordered_by_due_times(harness: Harness) -> None:
    """Then by instant and key; entries without a due time come last."""
    store = await harness.open()
    await make(store, "s")
    places = {"a": (7, 1), "b": (7, 0), "c": (None, 3), "d": (None, 2), "e": (-1, 9), "f": (7, 1)}
    puts = [put(key, listing="open", due=due, at=at) for key, (due, at) in places.items()]
    await store.commit([Write("s")], puts)
    for limit in (1, 2, 50):
        assert await _listed(store, "due", limit) == ["e", "b", "a", "f", "d", "c"]


@cases.case("entries")
async def an_entry_keeps_the_instant_at_which_it_was_created(harness: Harness) -> None:
    """Unless a put names another; it can leave a listing, and a listing another entry."""
    store = await harness.open()
    await make(store, "s")
    created = harness.clock.now()
    await store.commit([Write("s")], [put("a", listing="open"), put("b", listing="open", at=1)])
    harness.clock.advance(5)
    await store.commit([Write("s")], [put("a", 1, listing="open", data=b"2")])
    entry = await store.get("pending", "a")
    assert entry == Entry("pending", "a", "s", 2, "open", None, b"2", "open", created)
    await store.commit([Write("s")], [put("a", 2, listing="settled", state="done", at=8)])
    await store.commit([Write("s")], [put("b", 1)])
    assert await _listed(store, "oldest", 9) == []
    assert await _listed(store, "oldest", 9, "settled") == ["a"]
    census = await store.census(["pending", "mail"])
    assert census.listings == {("pending", "settled"): 1}
    entry = await store.get("pending", "b")
    assert entry == Entry("pending", "b", "s", 2, "open", None, b"")


@cases.case("entries")
async def a_listing_refuses_unknown_orders_and_cursors_of_other_queries(harness: Harness) -> None:
    """Both come from outside."""
    store = await harness.open()
    await expect_error(ValueError, store.find_listed("pending", "open", order="key"))  # type: ignore[arg-type]
    await expect_error(ValueError, store.find_listed("pending", "open", after="5:a"))


@cases.case("durable")
async def listings_survive_a_new_opening(harness: Harness) -> None:
    """With their order, and without the entries that left them."""
    store = await harness.open()
    await make(store, "s")
    await store.commit([Write("s")], [put(k, listing="open", at=n) for n, k in enumerate("cab")])
    await store.commit([Write("s")], [put("a", 1, listing=None)])
    await store.close()
    store = await harness.open()
    assert await _listed(store, "newest", 1) == ["b", "c"]


@cases.case("entries")
async def a_malformed_cursor_is_a_value_error(harness: Harness) -> None:
    """Cursors come from outside."""
    store = await harness.open()
    await expect_error(ValueError, store.find("pending", after="rubbish"))
    await expect_error(ValueError, store.tail("rubbish"))


@cases.case("entries")
async def a_census_counts_what_exists_now(harness: Harness) -> None:
    """Entries by kind and state, overdue entries, live holders, held and due streams."""
    store = await harness.open()
    lease = await drive(store)
    await make(store, "t", "u", wake=harness.clock.now() + 1)
    puts = [
        put("a", due=harness.clock.now()),
        put("b", due=harness.clock.now() + 1),
        put("c", stream="t"),
        put("d", state="settled"),
        put("e", kind="mail"),
        put("f", kind="key"),
    ]
    await store.commit([Write("s"), Write("t")], puts)
    first = await store.census(["pending", "mail", "nothing"])
    assert first.entries == {("pending", "open"): 3, ("pending", "settled"): 1, ("mail", "open"): 1}
    assert (first.overdue, first.held, first.due) == ({"pending": 1}, 1, 0)
    assert first.alive == (lease.holder,)
    harness.clock.advance(1)
    await store.commit([Write("s", fence=lease, head=1, release=Release())])
    await store.commit([Write("t", erase=True)])
    later = await store.census(["pending"])
    assert later.entries == {("pending", "open"): 2, ("pending", "settled"): 1}
    assert (later.overdue, later.held, later.due) == ({"pending": 2}, 0, 1)
    assert later.records >= first.records > 0
    assert later.commits - first.commits == 2


@cases.case("entries")
async def entries_of_returns_every_entry_of_a_stream(harness: Harness) -> None:
    """All kinds and states, by kind and key; none of another stream, none for an unknown one."""
    store = await harness.open()
    await make(store, "s", "t")
    puts = [
        put("b"),
        put("a", state="settled", due=3, data=b"x"),
        put("a", kind="mail"),
        put("c", stream="t"),
    ]
    await store.commit([Write("s"), Write("t")], puts)
    entries = await store.entries_of("s")
    assert [(e.kind, e.key) for e in entries] == [("mail", "a"), ("pending", "a"), ("pending", "b")]
    assert entries[1] == Entry("pending", "a", "s", 1, "settled", 3, b"x")
    assert list(await store.entries_of("none")) == []
    await store.commit([Write("s", erase=True)])
    assert list(await store.entries_of("s")) == []


@cases.case("entries")
async def every_stream_can_be_listed(harness: Harness) -> None:
    """By id, page by page, with its state; gone streams too."""
    store = await harness.open()
    now = harness.clock.now()
    lease = await drive(store)
    await make(store, "a", "Z", "é", "😀", wake=now)
    await store.commit([Write("b", create="delivery", epoch=7), Write("a", erase=True)])
    names, after = [], ""
    while page := await store.streams(after, limit=2):
        names += [state.stream for state in page]
        after = page[-1].stream
    assert names == ["Z", "a", "b", "s", "é", "😀"]
    states = {state.stream: state for state in await store.streams()}
    assert states["Z"] == StreamState("Z", "session", 1, 0, None, now, gone=False)
    assert states["b"] == StreamState("b", "delivery", 0, 7, None, None, gone=False)
    assert (states["s"].holder, states["s"].epoch) == ("worker", lease.epoch)
    assert (states["a"].gone, states["a"].head) == (True, 0)
    assert list(await store.streams(limit=0)) == []


@cases.case("feed")
async def the_feed_has_every_record_once_and_continues(harness: Harness) -> None:
    """The cursor of an empty page is as good as the one before."""
    store = await harness.open()
    await make(store, "a", "b")
    feed = await store.tail("", limit=1)
    records = [*feed.records]
    feed = await store.tail(feed.cursor)
    records += feed.records
    assert sorted((r.stream, r.seq) for r in records) == [("a", 1), ("b", 1)]
    empty = await store.tail(feed.cursor)
    assert empty.records == ()
    await store.commit([Write("a", [record("new")])])
    assert [r.data for r in (await store.tail(empty.cursor)).records] == [b"new"]
    assert (await store.tail("", limit=0)).records == ()


@cases.case("feed")
async def the_growth_of_the_feed_names_each_stream_with_its_newest_seq(harness: Harness) -> None:
    """It covers the records that `tail` returns, and continues where it ended."""
    store = await harness.open()
    await make(store, "a", "b")
    await store.commit([Write("a", [record("x"), record("y")])])
    growth = await store.growth("")
    assert (dict(growth.heads), growth.more) == ({"a": 3, "b": 1}, False)
    assert growth.cursor == (await store.tail("")).cursor
    heads: dict[str, int] = {}
    part = await store.growth("", limit=3)
    heads.update(part.heads)
    assert part.more
    part = await store.growth(part.cursor, limit=3)
    heads.update(part.heads)
    assert (heads, part.more, part.cursor) == ({"a": 3, "b": 1}, False, growth.cursor)
    empty = await store.growth(growth.cursor)
    assert (dict(empty.heads), empty.cursor, empty.more) == ({}, growth.cursor, False)
    await store.commit([Write("b", [record("z")])])
    assert dict((await store.growth(empty.cursor)).heads) == {"b": 2}
    assert dict((await store.growth("$")).heads) == {}
    await expect_error(ValueError, store.growth("rubbish"))


@cases.case("feed")
async def the_feed_can_be_read_from_now_on(harness: Harness) -> None:
    """Also if it is empty, or its last records were erased."""
    store = await harness.open()
    empty = await store.tail("$")
    assert empty.records == ()
    await make(store, "a", "b")
    assert len((await store.tail(empty.cursor)).records) == 2
    await store.commit([Write("b", erase=True)])
    end = await store.tail("$")
    assert (end.records, (await store.tail(end.cursor)).records) == ((), ())
    await store.commit([Write("a", [record("new")])])
    assert [r.data for r in (await store.tail(end.cursor)).records] == [b"new"]


async def _follow(store: Store, written: anyio.Event) -> list[tuple[str, int]]:
    """Read the feed until everything is written, and return its records by stream and seq."""
    records: list[tuple[str, int]] = []
    cursor = ""
    while True:
        is_written = written.is_set()
        feed = await store.tail(cursor, limit=7)
        records.extend((r.stream, r.seq) for r in feed.records)
        cursor = feed.cursor
        if is_written and not feed.records:
            return records
        await checkpoint()


@cases.case("feed")
async def a_reader_beside_many_writers_misses_nothing(harness: Harness) -> None:
    """Each record once, those of one stream in order."""
    store = await harness.open()
    streams = [f"s{n}" for n in range(8)]
    await make(store, *streams)
    written = anyio.Event()

    async def write(stream: str) -> None:
        for _ in range(20):
            await store.commit([Write(stream, [record(), record()])])

    async def write_all() -> None:
        async with anyio.create_task_group() as writers:
            for stream in streams:
                writers.start_soon(write, stream)
        written.set()

    async with anyio.create_task_group() as group:
        group.start_soon(write_all)
        records = await _follow(store, written)
    assert len(records) == len(set(records)) == 8 * 41
    for stream in streams:
        assert [seq for name, seq in records if name == stream] == list(range(1, 42))


@cases.case("hints")
async def a_commit_wakes_a_task_that_waits_for_a_change(harness: Harness) -> None:
    """Long before the timeout."""
    store = await harness.open()
    await make(store, "s")
    await store.read("s")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(store.changed, 60.0)
            await checkpoint()
            await store.commit([Write("s", [record()])])


@cases.case("hints")
async def a_change_between_reading_and_waiting_ends_the_wait(harness: Harness) -> None:
    """A reader reads, then waits; a change in between must not cost the whole timeout."""
    store = await harness.open()
    await make(store, "s")
    was_read, written = anyio.Event(), anyio.Event()

    async def follow() -> None:
        await store.read("s")
        was_read.set()
        await written.wait()
        await store.changed(60.0)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await was_read.wait()
            await store.commit([Write("s", [record()])])
            written.set()


@cases.case("hints")
async def without_a_change_the_wait_ends_with_its_timeout(harness: Harness) -> None:
    """A hint may be missing."""
    store = await harness.open()
    with anyio.fail_after(5):
        for _ in range(3):
            await store.changed(0.01)
