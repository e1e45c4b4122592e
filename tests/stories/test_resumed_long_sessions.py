"""A message to a long session that this process does not have in memory."""

import asyncio

import pytest

from perdure import Agent, Runtime
from perdure.core.conversation.messages import Conversation
from perdure.core.log import codec
from perdure.core.log.events import Assistant, Event, StampedEvent, User
from perdure.core.session.naming import session_stream
from perdure.errors import Corrupt
from perdure.runtime.records.log import PAGE, as_record
from perdure.store.base import Record, Slice, Write
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel

TURNS = 2 * PAGE
STREAM = session_stream("", "s")


class CountingStore(MemoryStore):
    """Store that counts the records that are read from it."""

    count = 0

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        page = await super().read(stream, after, limit)
        self.count += len(page.records)
        return page


def clerk() -> Agent[str]:
    model = ScriptedModel([{"text": "Yes."}] * TURNS * 2)
    return Agent("clerk", model=model, compaction=False, max_turns=2 * TURNS)


@pytest.fixture
async def store() -> CountingStore:
    """A store with a session of two thousand events."""
    store = CountingStore()
    async with Runtime(store, agents=[clerk()]) as rt:
        await rt.session("s", agent="clerk").run("Begin.")
        text = "x" * 200
        facts: list[Event] = []
        for _ in range(TURNS):
            facts.append(User(role="user", content=text))
            facts.append(Assistant(role="assistant", content=text, agent="clerk"))
        await store.commit([Write(STREAM, [as_record(fact, 1) for fact in facts])])
    await store.open()
    return store


async def test_a_command_and_its_drive_read_and_decode_each_event_once(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10"""
    decoded = 0
    decode = codec.decode

    def counted(kind: str, data: bytes) -> Event:
        nonlocal decoded
        decoded += 1
        return decode(kind, data)

    monkeypatch.setattr(codec, "decode", counted)
    async with Runtime(store, agents=[clerk()]) as rt:
        head = (await store.read(STREAM, limit=0)).head
        store.count = 0
        result = await rt.session("s", agent="clerk").run("Go on.")
        assert (result.state, result.error) == ("completed", None)
        assert head <= decoded <= head + 10
        assert head <= store.count <= head + 10


async def test_other_work_runs_between_the_pages_of_a_long_conversation(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = longest = 0
    add = Conversation.add

    def counted(self: Conversation, stamped: StampedEvent) -> None:
        nonlocal added, longest
        added += 1
        longest = max(longest, added)
        add(self, stamped)

    async def tick() -> None:
        nonlocal added
        while True:
            added = 0
            await asyncio.sleep(0)

    monkeypatch.setattr(Conversation, "add", counted)
    async with Runtime(store, agents=[clerk()]) as rt:
        ticking = asyncio.create_task(tick())
        result = await rt.session("s", agent="clerk").run("Go on.")
        ticking.cancel()
    assert (result.state, result.error) == ("completed", None)
    assert 0 < longest <= PAGE


async def test_damage_is_found_by_the_command_before_anything_is_consumed(
    store: CountingStore,
) -> None:
    """0050"""
    await store.commit([Write(STREAM, [Record("user", b"{", 1)])])
    async with Runtime(store, agents=[clerk()]) as rt:
        session = rt.session("s", agent="clerk")
        with pytest.raises(Corrupt):
            await session.run("Go on.")
        last = (await store.read(STREAM)).records[-1]
        assert last.data == b"{"  # the message was not recorded
