"""Two runtimes on one database: one driver, and nothing done twice."""

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from perdure import Agent, Context, Runtime, tool
from perdure.app import around_store
from perdure.store.base import Store
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel

MakeRuntime = Callable[..., Runtime]

ON_EVERY_STORE = pytest.mark.parametrize("runtime", ["memory", "sqlite", "postgres"], indirect=True)


def agent(*turns: dict[str, Any], tools: Sequence[Any] = (), **options: Any) -> Agent[str]:
    return Agent("helper", model=ScriptedModel(turns), tools=tools, **options)


def calls(*names: str) -> dict[str, Any]:
    return {"text": "Go.", "calls": [{"tool": name} for name in names]}


def model_of(one: Agent[Any]) -> ScriptedModel:
    assert isinstance(one.model, ScriptedModel)
    return one.model


async def tool_results(rt: Runtime, session: str = "s") -> list[Any]:
    events = await rt.session(session).events()
    return [event.data for event in events if event.type == "tool_result"]


@ON_EVERY_STORE
async def test_no_run_is_executed_by_two_runtimes_on_one_database(
    runtime: MakeRuntime,
) -> None:
    """S4.35, SX.4"""
    ran: list[str] = []

    @tool
    async def act(ctx: Context) -> str:
        await anyio.lowlevel.checkpoint()
        ran.append(ctx.session_id)
        return "acted"

    turns = (calls("act"), calls("act"), {"text": "Done."})
    one, two = agent(*turns, tools=[act]), agent(*turns, tools=[act])
    names = [f"s{n}" for n in range(20)]
    async with runtime(one, worker=True) as first, runtime(two, worker=True) as second:
        for name in names:
            await first.session(name, agent=one).send("Go")
        with anyio.fail_after(20):
            for name in names:
                assert (await second.session(name, agent=two).run()).output == "Done."
        for name in names:
            types = [event.type for event in await first.session(name).events()]
            assert types.count("assistant") == 3
    assert sorted(ran) == sorted(names * 2)
    assert len(model_of(one).requests) + len(model_of(two).requests) == 60


@ON_EVERY_STORE
async def test_one_runtime_follows_what_the_other_drives(runtime: MakeRuntime) -> None:
    """S4.35"""
    begun, may_end = anyio.Event(), anyio.Event()

    @tool
    async def slow() -> str:
        begun.set()
        await may_end.wait()
        return "slow is done"

    turns = (calls("slow"), {"text": "Done."})
    one, two = agent(*turns, tools=[slow]), agent(*turns, tools=[slow])
    outputs: list[Any] = []
    async with runtime(one) as first, runtime(two) as second:

        async def run(rt: Runtime, by: Agent[str]) -> None:
            outputs.append((await rt.session("s", agent=by).run("Go", key="k")).output)

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, first, one)
                await begun.wait()
                tasks.start_soon(run, second, two)
                await anyio.wait_all_tasks_blocked()
                may_end.set()
    assert outputs == ["Done.", "Done."]
    assert model_of(two).requests == []


async def test_a_worker_that_lost_its_lease_can_write_nothing(
    in_memory: MakeRuntime, memory: MemoryStore, clock: ManualClock
) -> None:
    """SX.4"""
    begun, may_end = anyio.Event(), anyio.Event()

    @tool
    async def slow(ctx: Context) -> str:
        begun.set()
        await may_end.wait()
        return "from the first"

    one = agent(calls("slow"), {"text": "Done."}, tools=[slow])
    other = agent(calls("slow"), {"text": "Done."}, tools=[slow])
    async with in_memory(one) as first, anyio.create_task_group() as tasks:
        tasks.start_soon(first.session("s", agent=one).run, "Go")
        with anyio.fail_after(10):
            await begun.wait()
            clock.advance("1m")  # the first is silent for longer than its lease
            async with kept_open(memory), Runtime(memory, agents=[other]) as second:
                taken = await second.session("s", agent=other).run()
                assert taken.output == "Done."
            may_end.set()
            after = await first.session("s", agent=one).run()
        assert after.output == "Done."
        (told,) = await tool_results(first)
        assert told["interrupted"]
        types = [event.type for event in await first.session("s").events()]
        assert types.count("agent_complete") == 1


class kept_open:  # noqa: N801 - reads as what it does
    """The store stays open when one of its two runtimes leaves."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None:
        await self.store.open()


def test_the_seam_around_the_store_is_for_this_context_only(in_memory: MakeRuntime) -> None:
    seen: list[Store] = []

    def around(store: Store) -> Store:
        seen.append(store)
        return store

    token = around_store.set(around)
    in_memory()
    around_store.reset(token)
    in_memory()
    assert len(seen) == 1
