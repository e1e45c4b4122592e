"""Fan-out of events to many readers: what it costs the event loop and the store."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from tests.support.http_shop import TOKENS
from tests.support.sse import Reader, reading

from perdure import Agent, Runtime, asgi
from perdure.serve.http import sse
from perdure.serve.http.app import application
from perdure.serve.http.auth import token_authenticator
from perdure.serve.http.middleware import Rules
from perdure.serve.limits import Rate
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel

READERS = 100
GREETS = Agent("greets", model=ScriptedModel([{"text": f"Hello {n}."} for n in range(400)]))


@pytest.fixture
async def rt() -> AsyncIterator[Runtime]:
    async with Runtime(MemoryStore(), agents=[GREETS]) as opened:
        yield opened


@asynccontextmanager
async def followed(rt: Runtime) -> AsyncIterator[list[Reader]]:
    """Yield many readers of all sessions, which have read what was recorded before."""
    many = Rate(1_000_000, 1_000_000)
    app = application(rt, token_authenticator(TOKENS), Rules(per_source=many, per_id=many))
    async with AsyncExitStack() as stack:
        paths = ["/events"] * READERS
        readers = [await stack.enter_async_context(reading(app, path)) for path in paths]
        for reader in readers:
            await reader.block()
        yield readers


async def last_seq(reader: Reader, seq: int) -> list[int]:
    found: list[int] = []
    while not found or found[-1] < seq:
        found.append((await reader.next()).data["seq"])
    return found


class Rounds:
    """Counter of the rounds of the event loop, which asks for one callback in each."""

    def __init__(self) -> None:
        self.number = 0
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_soon(self._count)

    def _count(self) -> None:
        self.number += 1
        self._next = self._loop.call_soon(self._count)

    def stop(self) -> None:
        self._next.cancel()


async def test_few_readers_send_in_one_round_of_the_event_loop(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat is a callback like any other: it waits for one round, not for all readers."""
    sent, receive = Counter[int](), Reader.sent

    async def counted(reader: Reader, message: Any) -> None:
        sent[rounds.number] += 1
        await receive(reader, message)

    session = rt.session("s", agent=GREETS)
    await session.run("Hi")
    rounds = Rounds()
    monkeypatch.setattr(Reader, "sent", counted)
    async with followed(rt) as readers:
        sent.clear()
        last = (await session.run("Again")).seq
        for reader in readers:
            assert (await last_seq(reader, last))[-1] == last
    rounds.stop()
    assert sent.total() >= READERS
    assert max(sent.values()) <= sse.AT_ONCE


async def test_events_that_wait_for_a_reader_are_sent_together(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = rt.session("s", agent=GREETS)
    last = (await session.run("Hi")).seq
    for _ in range(20):
        last = (await session.run("More")).seq
    sent, receive = 0, Reader.sent

    async def counted(reader: Reader, message: Any) -> None:
        nonlocal sent
        sent += 1
        await receive(reader, message)

    monkeypatch.setattr(Reader, "sent", counted)
    async with reading(asgi(rt, auth=TOKENS, ui=False), "/events?after=0") as reader:
        assert await last_seq(reader, last) == list(range(1, last + 1))
    assert sent < 10


async def test_readers_that_fell_behind_do_not_each_read_the_store(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "MAX_ITEMS", 1)
    session, store = rt.session("s", agent=GREETS), rt._resources.store
    last = (await session.run("Hi")).seq
    tail, reads = store.tail, 0

    async def counted(cursor: str, limit: int = 500) -> Any:
        nonlocal reads
        reads += 1
        return await tail(cursor, limit)

    async with followed(rt) as readers:
        monkeypatch.setattr(store, "tail", counted)
        after = (await session.run("Again")).seq
        for reader in readers:
            assert await last_seq(reader, after) == list(range(last + 1, after + 1))
        assert reads < READERS / 2
