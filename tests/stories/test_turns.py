"""Turns: tools side by side, whatever they are given, return or raise."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pydantic
import pytest

from perdure import Agent, Context, Runtime, ToolError, tool
from perdure.testing import ScriptedModel

MakeRuntime = Callable[..., Runtime]


def agent(*turns: dict[str, Any], tools: Sequence[Any] = (), **options: Any) -> Agent[Any]:
    return Agent("helper", model=ScriptedModel(turns), tools=tools, **options)


def calls(*names: str, **args: Any) -> dict[str, Any]:
    return {"text": "Go.", "calls": [{"tool": name, "args": args} for name in names]}


def model_of(one: Agent[Any]) -> ScriptedModel:
    assert isinstance(one.model, ScriptedModel)
    return one.model


async def tool_results(rt: Runtime) -> list[Any]:
    events = await rt.session("s").events()
    return [event.data for event in events if event.type == "tool_result"]


async def test_async_tools_of_one_turn_run_at_the_same_time(in_memory: MakeRuntime) -> None:
    together = 0
    all_here = anyio.Event()

    @tool
    async def meet() -> str:
        nonlocal together
        together += 1
        if together == 3:
            all_here.set()
        await all_here.wait()
        return "met"

    one = agent(calls("meet", "meet", "meet"), {"text": "Done."}, tools=[meet])
    async with in_memory(one) as rt:
        with anyio.fail_after(5):
            assert (await rt.session("s", agent=one).run("Go")).output == "Done."


async def test_plain_tools_of_one_turn_run_at_the_same_time_in_threads(
    in_memory: MakeRuntime,
) -> None:
    barrier = threading.Barrier(3, timeout=5)
    threads: set[int] = set()

    @tool
    def meet() -> str:
        barrier.wait()
        threads.add(threading.get_ident())
        return "met"

    one = agent(calls("meet", "meet", "meet"), {"text": "Done."}, tools=[meet])
    async with in_memory(one) as rt:
        with anyio.fail_after(10):
            assert (await rt.session("s", agent=one).run("Go")).output == "Done."
        assert [t["result"] for t in await tool_results(rt)] == ["met"] * 3
    assert len(threads) == 3
    assert threading.get_ident() not in threads


async def test_results_keep_the_order_of_the_calls(in_memory: MakeRuntime) -> None:
    second_done = anyio.Event()

    @tool
    async def first() -> str:
        await second_done.wait()
        return "one"

    @tool
    async def second() -> str:
        second_done.set()
        return "two"

    one = agent(calls("first", "second"), {"text": "Done."}, tools=[first, second])
    async with in_memory(one) as rt:
        with anyio.fail_after(5):
            await rt.session("s", agent=one).run("Go")
    told = model_of(one).requests[1].messages[-2:]
    assert [getattr(m, "content", "") for m in told] == ["one", "two"]


@pytest.mark.parametrize("how_many", [16, 40])
async def test_all_calls_of_a_large_turn_run_once(in_memory: MakeRuntime, how_many: int) -> None:
    ran: list[str] = []
    most = 0
    running = 0

    @tool
    async def act(ctx: Context) -> str:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await anyio.lowlevel.checkpoint()
        running -= 1
        ran.append(ctx.effect_id)
        return ctx.call_id

    one = agent(calls(*["act"] * how_many), {"text": "Done."}, tools=[act])
    async with in_memory(one) as rt:
        with anyio.fail_after(10):
            assert (await rt.session("s", agent=one).run("Go")).output == "Done."
    assert len(ran) == len(set(ran)) == how_many
    assert most <= 16


@pytest.mark.parametrize(
    "error, told",
    [
        (ToolError("no such order"), "no such order"),
        (ValueError("bad value"), "ValueError: bad value"),
        (KeyError("k"), "KeyError: 'k'"),
        (ToolError("half \ud800 char"), "half ? char"),
        (ValueError("half \ud800 char"), "ValueError: half ? char"),
    ],
)
async def test_what_a_tool_raises_is_told_to_the_model(
    runtime: MakeRuntime, error: Exception, told: str
) -> None:
    @tool
    def act() -> str:
        raise error

    one = agent(calls("act"), {"text": "I see."}, tools=[act])
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert (result.state, result.output) == ("completed", "I see.")
        (found,) = await tool_results(rt)
        assert (found["result"], found["isError"]) == (told, True)


@pytest.mark.parametrize(
    "returned, shown",
    [
        (None, "(no output)"),
        ("ü\x00🙂", "ü\x00🙂"),
        ("half \ud800", "half ???"),
        ({"a": [1, 2.5, None]}, '{"a":[1,2.5,null]}'),
        (7, "7"),
    ],
)
async def test_whatever_a_tool_returns_can_be_shown(
    runtime: MakeRuntime, returned: Any, shown: str
) -> None:
    @tool
    def act() -> Any:
        return returned

    one = agent(calls("act"), {"text": "I see."}, tools=[act])
    async with runtime(one) as rt:
        assert (await rt.session("s", agent=one).run("Go")).state == "completed"
        assert [t["result"].replace("\ufffd", "?") for t in await tool_results(rt)] == [shown]


async def test_a_result_that_is_too_large_is_an_error_for_the_model(
    in_memory: MakeRuntime,
) -> None:
    @tool
    def act() -> str:
        return "x" * (10 * 1024 * 1024 + 1)

    one = agent(calls("act"), {"text": "I see."}, tools=[act])
    async with in_memory(one) as rt:
        assert (await rt.session("s", agent=one).run("Go")).output == "I see."
        (told,) = await tool_results(rt)
        assert told["isError"]
        assert "limit" in told["result"]


async def test_a_reference_that_cannot_be_kept_does_not_end_the_run(
    in_memory: MakeRuntime,
) -> None:
    @tool(deferred=True)
    def begin() -> str:
        return "half \ud800"

    one = agent(calls("begin"), {"text": "Done."}, tools=[begin])
    async with in_memory(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert result.state == "waiting"
        assert result.pending[0].external_ref == "half " + "\ufffd" * 3


async def test_an_unknown_tool_is_told_to_the_model(in_memory: MakeRuntime) -> None:
    @tool
    def look() -> str:
        return "seen"

    one = agent(calls("loook"), {"text": "Sorry."}, tools=[look])
    async with in_memory(one) as rt:
        assert (await rt.session("s", agent=one).run("Go")).output == "Sorry."
        (told,) = await tool_results(rt)
        assert told["isError"]
        assert "'loook'" in told["result"]
        assert "look" in told["result"].replace("loook", "")


async def test_bad_arguments_are_told_to_the_model(in_memory: MakeRuntime) -> None:
    @tool
    def add(a: int, b: int = 1) -> int:
        return a + b

    one = agent(calls("add", a="x"), calls("add", a=2), {"text": "3."}, tools=[add])
    async with in_memory(one) as rt:
        assert (await rt.session("s", agent=one).run("Go")).output == "3."
        wrong, right = await tool_results(rt)
        assert wrong["isError"]
        assert wrong["result"].startswith("Invalid arguments: a: ")
        assert right["result"] == "3"


async def test_a_rule_for_arguments_that_breaks_is_told_to_the_model(
    in_memory: MakeRuntime,
) -> None:
    class Order(pydantic.BaseModel):
        number: int

        @pydantic.field_validator("number")
        @classmethod
        def check(cls, value: int) -> int:
            raise TypeError("the author's own mistake")

    @tool
    def ship(order: Order) -> str:
        return "shipped"

    one = agent(calls("ship", order={"number": 1}), {"text": "Oh."}, tools=[ship])
    async with in_memory(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert (result.state, result.output) == ("completed", "Oh.")
        (told,) = await tool_results(rt)
        assert told["isError"]


async def test_two_calls_with_one_id_are_told_apart(in_memory: MakeRuntime) -> None:
    ran: list[int] = []

    @tool
    def act(n: int) -> str:
        ran.append(n)
        return str(n)

    twice = [{"tool": "act", "args": {"n": n}, "id": "same"} for n in (1, 2)]
    one = agent({"calls": twice}, {"text": "Done."}, tools=[act])
    async with in_memory(one) as rt:
        assert (await rt.session("s", agent=one).run("Go")).output == "Done."
        results = await tool_results(rt)
    assert sorted(ran) == [1, 2]
    assert len({t["toolCallId"] for t in results}) == 2


async def test_todos_are_shown(runtime: MakeRuntime) -> None:
    todos = [
        {"content": "Look", "status": "completed", "activeForm": "Looking"},
        {"content": "Fix", "status": "in_progress", "activeForm": "Fixing"},
    ]
    one = agent(calls("todo_write", todos=todos), {"text": "Done."}, tools=["todo_write"])
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert [t["content"] for t in result.todos] == ["Look", "Fix"]
        assert result.to_json()["todos"] == list(result.todos)


async def test_todos_that_the_tool_refused_are_not_shown(runtime: MakeRuntime) -> None:
    """S2.61"""
    kept = {"content": "Look", "status": "in_progress", "activeForm": "Looking"}
    refused = [kept, {**kept, "content": "Fix"}]
    turns = [calls("todo_write", todos=[kept]), calls("todo_write", todos=refused)]
    one = agent(*turns, {"text": "Done."}, tools=["todo_write"])
    async with runtime(one) as rt:
        result = await rt.session("s", agent=one).run("Go")
        assert [t["content"] for t in result.todos] == ["Look"]
