"""Opening and closing a runtime, and the deps that it opens with it."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import anyio
import pytest

from perdure import Agent, Context, Refused, Runtime, tool
from perdure.errors import ConfigError
from perdure.testing import ScriptedModel

MakeRuntime = Callable[..., Runtime]


@dataclass
class Shop:
    name: str
    opened: int = 0
    closed: int = 0


class Named(Protocol):
    name: str


@tool
def whose(ctx: Context[Shop]) -> str:
    """Whose shop."""
    return ctx.deps.name


@tool
def whose_protocol(ctx: Context[Named]) -> str:
    """Whose shop."""
    return ctx.deps.name


def agent(*turns: dict[str, Any], tools: Sequence[Any] = ()) -> Agent[str]:
    return Agent("helper", model=ScriptedModel(turns), tools=tools)


async def asked(rt: Runtime, one: Agent[str]) -> Any:
    await rt.session("s", agent=one).run("Whose?")
    events = await rt.session("s").events()
    return [event.data["result"] for event in events if event.type == "tool_result"]


async def test_deps_may_be_a_value(in_memory: MakeRuntime) -> None:
    one = agent({"calls": [{"tool": "whose"}]}, {"text": "ok"}, tools=[whose])
    async with in_memory(one, deps=Shop("Ana's")) as rt:
        assert await asked(rt, one) == ["Ana's"]


async def test_deps_may_be_opened_once_with_the_runtime(in_memory: MakeRuntime) -> None:
    shop = Shop("Ana's")

    @asynccontextmanager
    async def open_shop() -> AsyncIterator[Shop]:
        shop.opened += 1
        yield shop
        shop.closed += 1

    one = agent({"calls": [{"tool": "whose"}]}, {"text": "ok"}, tools=[whose])
    async with in_memory(one, deps=open_shop) as rt:
        assert await asked(rt, one) == ["Ana's"]
        await rt.session("t", agent=one).run("Again")
        assert (shop.opened, shop.closed) == (1, 0)
    assert (shop.opened, shop.closed) == (1, 1)


async def test_deps_of_another_type_than_a_tool_states_are_refused(
    in_memory: MakeRuntime,
) -> None:
    one = agent(tools=[whose])
    with pytest.raises(ConfigError, match="'whose' needs deps of type Shop") as wrong:
        async with in_memory(one, deps="Ana"):
            pass
    assert wrong.value.code == "DEPS_INVALID"


async def test_deps_are_checked_also_for_an_agent_that_comes_later(
    in_memory: MakeRuntime,
) -> None:
    async with in_memory(deps="Ana") as rt:
        with pytest.raises(ConfigError) as wrong:
            rt.session("s", agent=agent(tools=[whose]))
    assert wrong.value.code == "DEPS_INVALID"


async def test_deps_may_be_stated_as_a_protocol(in_memory: MakeRuntime) -> None:
    one = agent({"calls": [{"tool": "whose_protocol"}]}, {"text": "ok"}, tools=[whose_protocol])
    async with in_memory(one, deps=Shop("Ana's")) as rt:
        assert await asked(rt, one) == ["Ana's"]


async def test_a_function_that_opens_nothing_cannot_be_deps(in_memory: MakeRuntime) -> None:
    with pytest.raises(ConfigError) as wrong:
        async with in_memory(deps=lambda: 7):
            pass
    assert wrong.value.code == "DEPS_INVALID"


async def test_if_the_deps_cannot_be_opened_the_runtime_can_be_tried_again(
    in_memory: MakeRuntime,
) -> None:
    tries: list[int] = []

    @asynccontextmanager
    async def open_shop() -> AsyncIterator[Shop]:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no network")
        yield Shop("Ana's")

    one = agent({"calls": [{"tool": "whose"}]}, {"text": "ok"}, tools=[whose])
    rt = in_memory(one, deps=open_shop)
    with pytest.raises(OSError, match="no network"):
        async with rt:
            pass
    async with rt:
        assert await asked(rt, one) == ["Ana's"]


async def test_a_runtime_may_be_left_by_another_task_than_entered_it(
    runtime: MakeRuntime,
) -> None:
    one = agent({"text": "Hello."})
    rt = runtime(one, worker=True)

    async def enter() -> None:
        await rt.__aenter__()

    async def leave() -> None:
        await rt.__aexit__(None, None, None)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(enter)
        assert (await rt.session("s", agent=one).run("Hi")).output == "Hello."
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leave)


async def test_a_runtime_may_be_opened_again(runtime: MakeRuntime) -> None:
    one = agent({"text": "First."}, {"text": "Second."}, {"text": "Third."})
    rt = runtime(one)
    for n, said in enumerate(("First.", "Second.", "Third.")):
        async with rt:
            with anyio.fail_after(5):
                assert (await rt.session("s", agent=one).run(str(n))).output == said


async def test_a_runtime_cannot_be_opened_twice_at_once(in_memory: MakeRuntime) -> None:
    async with in_memory() as rt:
        with pytest.raises(Refused) as refused:
            await rt.__aenter__()
        assert refused.value.code == "ALREADY_OPEN"


async def test_leaving_lets_a_running_tool_finish(in_memory: MakeRuntime) -> None:
    begun = anyio.Event()
    ended: list[str] = []

    @tool
    async def slow() -> str:
        begun.set()
        await anyio.wait_all_tasks_blocked()
        ended.append("whole")
        return "slow is done"

    one = agent({"calls": [{"tool": "slow"}]}, {"text": "Done."}, tools=[slow])
    rt = in_memory(one)
    with anyio.fail_after(10):
        async with rt, anyio.create_task_group() as tasks:
            tasks.start_soon(rt.session("s", agent=one).run, "Go")
            await begun.wait()
            tasks.cancel_scope.cancel()
        assert ended == ["whole"]
        async with in_memory(one) as rt:
            assert (await rt.session("s", agent=one).run()).output == "Done."
            results = [e for e in await rt.session("s").events() if e.type == "tool_result"]
            assert [e.data["result"] for e in results] == ["slow is done"]


def test_a_store_that_is_not_known_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigError) as wrong:
        Runtime("mysql://me:hunter2@db/x")
    assert wrong.value.code == "STORE_UNKNOWN"
    assert "hunter2" not in str(wrong.value.to_json())


def test_a_runtime_is_an_async_context_manager(in_memory: MakeRuntime) -> None:
    assert isinstance(in_memory(), AbstractAsyncContextManager)
