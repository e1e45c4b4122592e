"""States of long logs: a reader folds only what is new, and notices another log."""

import asyncio

import pytest
from msgspec.structs import replace
from tests.support.http_shop import agent

from perdure import Runtime
from perdure.app import service_of
from perdure.core.log.events import User
from perdure.errors import Corrupt, NotFound
from perdure.runtime.records.entries import SessionEntry, SessionRef
from perdure.runtime.records.folded import LONG, FoldedLogs
from perdure.runtime.records.log import as_record
from perdure.store.base import Slice, Store, Write
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock


class CountingStore(MemoryStore):
    """Store that counts the records that are read from it."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.count = 0

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        page = await super().read(stream, after, limit)
        self.count += len(page.records)
        return page


async def grow(store: Store, stream: str, number: int) -> None:
    """Append so many messages."""
    notes = [User(role="user", content=f"note {n}") for n in range(number)]
    await store.commit([Write(stream, [as_record(note, store.now()) for note in notes])])


async def session(rt: Runtime, name: str = "s") -> SessionEntry:
    """Return the entry of a new session."""
    await rt.session(name, agent=agent().name).send("Go")
    return await service_of(rt).get(SessionRef("", name))


async def test_only_new_events_of_a_long_log_are_read_again(clock: ManualClock) -> None:
    """G10"""
    store = CountingStore(clock)
    async with Runtime(store, agents=[agent()]) as rt:
        entry, logs = await session(rt), FoldedLogs()
        await grow(store, entry.stream, LONG)
        first = await logs.read(store, entry)
        store.count = 0
        await grow(store, entry.stream, 3)
        second = await logs.read(store, entry)
        assert store.count == 4, "the last record that was known, and three new ones"
        assert second.state.head == first.state.head + 3
        assert second.state == (await FoldedLogs().read(store, entry)).state


async def test_a_log_with_another_last_record_is_read_from_its_beginning(
    clock: ManualClock,
) -> None:
    logs, states = FoldedLogs(), []
    for text in ("one", "other"):
        store = MemoryStore(clock)
        async with Runtime(store, agents=[agent()]) as rt:
            entry = await session(rt)
            await grow(store, entry.stream, LONG)
            note = User(role="user", content=text)
            await store.commit([Write(entry.stream, [as_record(note, store.now())])])
            await rt.session("s").cancel(reason=text)
            states.append((await logs.read(store, entry)).state)
            fresh = await FoldedLogs().read(store, entry)
            assert states[-1] == fresh.state
    assert states[0].head == states[1].head


async def test_a_deleted_session_is_not_found_and_a_shortened_one_is_corrupt(
    clock: ManualClock,
) -> None:
    store = MemoryStore(clock)
    async with Runtime(store, agents=[agent()]) as rt:
        entry, logs = await session(rt), FoldedLogs()
        await grow(store, entry.stream, LONG)
        state = (await logs.read(store, entry)).state
        await rt.session("s").delete()
        with pytest.raises(NotFound):
            await logs.read(store, entry)
    other = MemoryStore(clock)
    async with Runtime(other, agents=[agent()]) as rt:
        short = await session(rt)
        claimed = replace(short, record=replace(short.record, head=state.head))
        with pytest.raises(Corrupt):
            await logs.read(other, claimed)


class YieldingStore(CountingStore):
    """Store whose reads let other tasks run, as those of a disk do."""

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        await asyncio.sleep(0)
        return await super().read(stream, after, limit)


async def test_readers_of_a_long_log_at_one_time_read_it_once(clock: ManualClock) -> None:
    """G10"""
    store = YieldingStore(clock)
    async with Runtime(store, agents=[agent()]) as rt:
        entry, logs = await session(rt), FoldedLogs()
        await grow(store, entry.stream, LONG)
        record = replace(entry.record, head=LONG + 1)
        entry = SessionEntry(entry.index_entry, record)
        store.count = 0
        states = await asyncio.gather(*[logs.read(store, entry) for _ in range(75)])
        assert {folded.state.head for folded in states} == {LONG + 1}
        assert store.count == LONG + 1 + 74, "the log once, and its last record for each other one"
