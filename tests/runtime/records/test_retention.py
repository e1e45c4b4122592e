"""Settled calls are forgotten after a while: their entries, never an event, never an open call."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, NotFound, PendingCall, Runtime, tool
from perdure.runtime.records import retention
from perdure.runtime.records.retention import Retention
from perdure.store.base import Page, Put, Write
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel

MakeRuntime = Callable[..., Runtime]


@tool(deferred=True, timeout=None)
def start() -> str:
    """Start."""
    return "ref"


def agent(count: int = 2) -> Agent[str]:
    turns: list[dict[str, Any]] = [
        {"calls": [{"tool": "start"}] * count},
        {"text": "Done."},
    ]
    return Agent("helper", model=ScriptedModel(turns), tools=[start])


async def waiting(rt: Runtime, one: Agent[str], session: str = "s") -> tuple[PendingCall, ...]:
    return (await rt.session(session, agent=one).run("Go")).pending


async def every_id(rt: Runtime) -> set[str]:
    return {call.id async for call in rt.pending(status="all")}


async def test_what_was_settled_long_ago_goes_and_what_is_open_stays(
    runtime: MakeRuntime, clock: ManualClock
) -> None:
    """S0.71"""
    one = agent()
    async with runtime(one) as rt:
        settled, still_open = await waiting(rt, one)
        await rt.submit_result(settled.id, "x")
        clock.advance("6d 23h")
        await rt.work(once=True)
        assert await every_id(rt) == {settled.id, still_open.id}
        events = await rt.session("s").events()
        clock.advance("2h")
        await rt.work(once=True)
        assert await every_id(rt) == {still_open.id}
        assert await rt.session("s").events() == events
        with pytest.raises(NotFound):
            await rt.submit_result(settled.id, "x")
        clock.advance("365d")
        await rt.work(once=True)
        await rt.submit_result(still_open.id, "y")
        assert (await rt.session("s").run()).state == "completed"


async def test_every_end_is_an_end(in_memory: MakeRuntime, clock: ManualClock) -> None:
    """S0.71"""
    one = agent(3)
    async with in_memory(one) as rt:
        done, failed, cancelled = await waiting(rt, one)
        await rt.submit_result(done.id, "x")
        await rt.submit_error(failed.id, "no")
        await rt.cancel_call(cancelled.id)
        clock.advance("8d")
        assert await Retention(rt._resources.store).run_round() == 3
        assert await every_id(rt) == set()


class Counting(MemoryStore):
    """Counts how often pages are asked for."""

    looks = 0

    async def find(self, kind: str, **wanted: Any) -> Page:
        self.looks += 1
        return await super().find(kind, **wanted)


async def settled_calls(store: MemoryStore, count: int, completed: int) -> None:
    data = (
        '{"id":"%s","sessionID":"s","agent":"a","taskID":"t","messageID":"m","partID":"m.0",'
        '"callID":"c","effectID":"e","tool":"t","input":{},"kind":"tool","status":"completed",'
        '"time":{"created":1,"completed":%d}}'
    )
    ids = [f"p{completed}-{number:04}" for number in range(count)]
    puts = [
        Put("pending", one, 0, "s", "completed", None, (data % (one, completed)).encode())
        for one in ids
    ]
    await store.open()
    await store.commit([Write("s", create="session:a")], puts)


async def test_it_is_paced_and_bounded(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PAGE", 10)
    store = Counting(clock)
    await settled_calls(store, 25, clock.now())
    clock.advance("8d")
    sweep = Retention(store)
    assert [await sweep.run_step() for _ in range(3)] == [10, 0, 0]
    assert store.looks == 1
    clock.advance("5s")
    assert await sweep.run_step() == 10
    clock.advance("5s")
    assert await sweep.run_step() == 5


async def test_a_store_where_nothing_is_old_is_not_looked_at(clock: ManualClock) -> None:
    store = Counting(clock)
    await settled_calls(store, 1, clock.now())
    clock.advance("1d")
    sweep = Retention(store)
    assert await sweep.run_round() == 0
    looks = store.looks
    clock.advance("5d 23h")
    assert await sweep.run_step() == 0
    assert store.looks == looks
    clock.advance("1h")
    assert await sweep.run_step() == 1


async def test_an_entry_that_cannot_be_read_is_kept_and_stops_nothing(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    await settled_calls(store, 2, clock.now())
    await store.commit([Write("s")], [Put("pending", "a-bad-one", 0, "s", "completed", None, b"{")])
    clock.advance("8d")
    assert await Retention(store).run_round() == 2
    assert await store.get("pending", "a-bad-one") is not None


async def test_one_entry_that_moved_meanwhile_stops_no_other(clock: ManualClock) -> None:
    store = Counting(clock)
    await settled_calls(store, 3, clock.now())
    clock.advance("8d")
    sweep, other = Retention(store), Retention(store)
    page = await store.find("pending", state="completed")
    assert await other._remove(page.entries[:1]) == 1
    assert await sweep._remove(page.entries) == 2


async def test_the_configuration_says_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "perdure.yaml").write_text("retention: {settled_calls: 36h}")
    runtime = Runtime.from_config(tmp_path / "perdure.yaml")
    assert runtime._service.keep_settled_ms == 36 * 3_600_000
    assert Runtime("memory:")._service.keep_settled_ms == 7 * 86_400_000


async def test_a_sweep_goes_on_after_a_step_back_of_the_clock(clock: ManualClock) -> None:
    clock.advance("1h")
    store = Counting(clock)
    await settled_calls(store, 1, clock.now())
    sweep = Retention(store)
    while await sweep.run_step() or sweep._remaining:
        clock.advance("5s")
    looks = store.looks
    clock._now -= 3_600_000
    await sweep.run_step()
    assert store.looks > looks
