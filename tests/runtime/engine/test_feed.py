"""The reader of the feed, which tells listeners here what any process has recorded."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from perdure.runtime.engine import feed
from perdure.runtime.engine.feed import BUSY_STREAMS, FeedReader
from perdure.runtime.records.cache import SessionCache
from perdure.store.base import Record, Write
from perdure.store.memory import MemoryStore


@asynccontextmanager
async def running(reader: FeedReader) -> AsyncIterator[None]:
    await reader.fix_cursor()
    task = asyncio.ensure_future(reader.run())
    await asyncio.sleep(0)
    yield
    task.cancel()
    await asyncio.wait((task,))


async def grow(store: MemoryStore, streams: Sequence[str]) -> None:
    await store.commit([Write(name, [Record("t", b"")], create="session") for name in streams])


async def test_growth_is_gathered_for_longer_while_many_streams_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, cache = MemoryStore(), SessionCache()
    await store.open()
    reader, pauses = FeedReader(store, cache), list[float]()
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async def hear(names: Sequence[str]) -> None:
        """Let streams grow, and wait until the listener of the last one is told."""
        told = asyncio.Event()
        with reader.subscribe(names[-1], lambda _: told.set()):
            await grow(store, names)
            async with asyncio.timeout(10):
                await told.wait()

    async with running(reader):
        monkeypatch.setattr(asyncio, "sleep", note)
        many = [f"s{number}" for number in range(BUSY_STREAMS)]
        await hear(many)
        await hear(many)
        await hear(many[:1])
        await hear(many[:1])
    waits = [pause for pause in pauses if pause]
    assert waits == [feed.GATHER_S, feed.BUSY_GATHER_S, feed.BUSY_GATHER_S, feed.GATHER_S]
