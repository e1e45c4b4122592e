"""What falls in between: a failure at the worst moment leaves nobody waiting for ever."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from perdure import Agent, Runtime, tool
from perdure.errors import StoreError
from perdure.runtime.engine import driver as engine
from perdure.runtime.engine import writer as ledger
from perdure.store.base import (
    DELETE,
    Check,
    Feed,
    Heads,
    Lease,
    Put,
    Record,
    Slice,
    Unavailable,
    Write,
)
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel


def agent(*turns: dict[str, Any], tools: Sequence[Any] = ()) -> Agent[str]:
    return Agent("helper", model=ScriptedModel(turns), tools=tools)


def calls(*names: str) -> dict[str, Any]:
    return {"calls": [{"tool": name} for name in names]}


class Endless:
    """A tool that only a cancellation ends."""

    def __init__(self) -> None:
        self.begun = anyio.Event()

        @tool(name="wait")
        async def wait() -> None:
            self.begun.set()
            await anyio.sleep_forever()

        self.agent = agent(calls("wait"), tools=[wait])


async def cancelled_by(other: Runtime, rt: Runtime, endless: Endless) -> str:
    """How a run ends here that another runtime cancels while it is in a call."""
    states: list[str] = []

    async def run() -> None:
        states.append((await rt.session("s", agent=endless.agent).run("Go")).state)

    with anyio.fail_after(8):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await endless.begun.wait()
            await other.session("s").cancel()
    return states[0]


async def test_a_cancellation_is_heard_that_came_before_the_feed_could_be_read(
    clock: ManualClock,
) -> None:
    """E1"""

    class Away(MemoryStore):
        reads = 0

        async def tail(self, cursor: str, limit: int = 500) -> Feed:
            self.reads += 1
            if self.reads == 1:
                raise Unavailable("away")
            return await super().tail(cursor, limit)

    store, endless = Away(clock), Endless()
    async with Runtime(store, agents=[endless.agent]) as rt, Runtime(store) as other:
        assert await cancelled_by(other, rt, endless) == "cancelled"


async def test_a_cancellation_is_heard_in_a_store_that_is_younger_than_the_runtime(
    tmp_path: Path,
) -> None:
    """A backup was restored while it was closed: the feed ends long before where it had read."""
    file, endless = tmp_path / "h.db", Endless()
    one = Agent("first", model=ScriptedModel([{"text": "Hello."}]))
    rt = Runtime(f"sqlite:///{file}", agents=[one, endless.agent])
    read = anyio.Event()

    def taken(_: int, records: Sequence[Record]) -> None:
        if any(one.stream.endswith("/s4") and one.seq > 3 for one in records):
            read.set()

    async with rt:
        with rt._service.drives.background.feed.subscribe_records(taken):
            for n in range(5):
                await rt.session(f"s{n}", agent=one).run("Hi")
            await read.wait()
    file.unlink()
    async with rt, Runtime(f"sqlite:///{file}") as other:
        assert await cancelled_by(other, rt, endless) == "cancelled"


async def test_who_leaves_while_a_lease_is_given_back_leaves_no_session_held(
    clock: ManualClock,
) -> None:
    """S4.34"""

    class Moody(MemoryStore):
        is_full = False
        hangs: anyio.Event | None = None

        async def commit(
            self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
        ) -> Heads:
            if self.is_full and any(write.fence is not None for write in writes):
                raise Unavailable("disk full")
            return await super().commit(writes, puts, checks)

        async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
            if self.hangs is not None:
                hangs, self.hangs = self.hangs, None
                hangs.set()
                await anyio.sleep_forever()
            return await super().read(stream, after, limit)

    store, one = Moody(clock), agent({"text": "Hello."})
    async with Runtime(store, agents=[one]) as rt:
        session = rt.session("s", agent=one)
        store.is_full = True
        with pytest.raises(StoreError, match="disk full"):
            await session.run("Hi")
        store.is_full = False
        store.hangs = hangs = anyio.Event()
        task = asyncio.ensure_future(rt._service.drives.claim("helper", 0))
        await hangs.wait()
        task.cancel()
        await asyncio.wait([task])
        with anyio.fail_after(5):
            assert (await session.run()).output == "Hello."


class Boom(BaseException):
    """What nothing survives."""


async def test_a_runtime_that_fell_and_is_opened_again_lets_its_calls_finish(
    clock: ManualClock,
) -> None:
    """As one that never fell."""
    begun, may_end = anyio.Event(), anyio.Event()

    class Falling(MemoryStore):
        is_falling = True

        async def claim(self, holder: str, kind: str, limit: int, **options: Any) -> list[Lease]:
            if self.is_falling:
                raise Boom
            return await super().claim(holder, kind, limit, **options)

    store = Falling(clock)

    @tool
    async def act() -> str:
        begun.set()
        await may_end.wait()
        return "acted"

    one = agent(calls("act"), tools=[act])
    rt = Runtime(store, agents=[one])
    async with rt:
        with pytest.raises(StoreError, match="background task has failed"):
            await rt.session("s", agent=one).run("Go")
    store.is_falling = False
    async with rt:
        running = asyncio.ensure_future(rt.session("t", agent=one).run("Go"))
        await begun.wait()
        asyncio.get_running_loop().call_later(0.05, may_end.set)
    await asyncio.wait([running])
    async with Runtime(store) as other:
        assert "tool_result" in [event.type for event in await other.session("t").events()]


async def test_a_call_that_cannot_be_stopped_keeps_no_lease_that_a_failing_drive_gives_back(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor whoever waits for that drive."""
    monkeypatch.setattr(engine, "STOP_WAIT_S", 0)
    monkeypatch.setattr(ledger, "FACT_PATIENCE_S", 0)
    may_end = anyio.Event()

    class Full(MemoryStore):
        is_full = True

        async def commit(
            self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
        ) -> Heads:
            types = {record.type for write in writes for record in write.records}
            if self.is_full and "tool_result" in types:
                raise Unavailable("disk full")
            return await super().commit(writes, puts, checks)

    @tool
    async def shielded() -> str:
        with anyio.CancelScope(shield=True):
            await may_end.wait()
        return "too late"

    @tool
    async def act() -> str:
        return "acted"

    store = Full(clock)
    one = agent(calls("shielded", "act"), {"text": "Done."}, tools=[shielded, act])
    async with Runtime(store, agents=[one]) as rt:
        session = rt.session("s", agent=one)
        try:
            with anyio.fail_after(8):
                with pytest.raises(StoreError, match="disk full"):
                    await session.run("Go")
                store.is_full = False
                assert (await session.run()).output == "Done."
        finally:
            may_end.set()


async def test_a_session_whose_entry_is_missing_is_not_held(memory: MemoryStore) -> None:
    one = agent({"text": "Hello."})
    async with Runtime(memory, agents=[one]) as rt:
        await rt.session("s", agent=one).send("Hi")
        (entry,) = (await memory.find("session")).entries
        gone = Put("session", entry.key, entry.version, entry.stream, "", None, DELETE)
        await memory.commit([Write(entry.stream)], [gone])
        rt._resources.cache.clear()
        with anyio.fail_after(5):
            await rt.work(once=True)
        assert (await memory.read(entry.stream, limit=0)).holder is None
