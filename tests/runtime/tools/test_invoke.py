"""Running a tool: approval, prompts, injection, threads and time."""

import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import Enum
from typing import Any

import anyio
import pytest

from perdure.core.pending.record import PendingResult
from perdure.errors import Refused, ToolError
from perdure.runtime.tools.builtin import ASK_USER
from perdure.runtime.tools.invoke import (
    invoke,
    is_approval_required,
    is_valid_result,
    render_prompt,
)
from perdure.runtime.tools.tool import Tool, as_tool, tool
from perdure.runtime.values import Context
from perdure.views.calls import CallTimes, PendingCall


def context(**args: Any) -> Context[str]:
    return Context(deps="the deps", args=args, effect_id="e_1")


@tool
def refund(cents: int) -> str:
    return str(cents)


def no_answer(ctx: Context) -> None: ...


async def asks_later(ctx: Context) -> bool:
    return bool(ctx.args["cents"] > 10 and ctx.deps == "the deps")


@pytest.mark.parametrize(
    "rule, asked",
    [
        (True, True),
        (False, False),
        (lambda ctx: ctx.args["cents"] > 10, True),
        (lambda ctx: ctx.args["cents"] > 100, False),
        (asks_later, True),
        (lambda ctx: ctx.args["nothing"], True),
        (no_answer, True),
    ],
    ids=["yes", "no", "above", "below", "async", "raises", "none"],
)
async def test_in_doubt_a_person_is_asked(rule: Any, asked: bool) -> None:
    """S4.1"""
    assert (
        await is_approval_required(replace(refund, requires_approval=rule), context(cents=50))
        is asked
    )


def test_the_prompt_shows_tool_and_input() -> None:
    """S4.1"""
    gated = replace(refund, approval_prompt="May {tool} take {input}? {other} {}")
    assert render_prompt(gated, {"x": "{tool}"}) == 'May refund take {"x": "{tool}"}? {other} {}'
    assert render_prompt(refund, {"cents": 5}) == 'Run refund with {"cents": 5}?'
    assert render_prompt(refund, {}) == "Run refund?"
    assert render_prompt(ASK_USER, {"question": "Why {tool}?"}) == "Why {tool}?"


async def test_a_validator_that_raises_refuses_the_result() -> None:
    """S0.38"""

    def breaks(result: PendingResult) -> bool:
        raise RuntimeError(result)

    five = PendingResult("Refund", {"cents": 5}, {"currency": "EUR"})

    async def is_other(result: PendingResult) -> bool:
        return result.title == "Other"

    async def breaks_later(result: PendingResult) -> bool:
        raise RuntimeError(result)

    assert await is_valid_result(refund, five)
    validators: list[tuple[Callable[[PendingResult], bool | Awaitable[bool]], bool]] = [
        (lambda result: result.output["cents"] == 5, True),
        (lambda result: result.metadata["currency"] == "EUR", True),
        (lambda result: result.title == "Refund", True),
        (lambda result: result.title == "Other", False),
        (breaks, False),
        (is_other, False),
        (lambda result: is_other(PendingResult("Other", None, {})), True),
        (breaks_later, False),
    ]
    for validate, is_valid in validators:
        checked = replace(refund, validate_result=validate)
        assert await is_valid_result(checked, five) is is_valid


class Colour(Enum):
    RED = "red"


async def test_the_function_gets_typed_values_and_what_is_injected() -> None:
    def paint(colour: Colour, /, ctx: Context[str], *, n: int = 2, **more: int) -> Any:
        return colour, ctx.deps, n, more

    ctx = context(colour="red", depth="3")
    assert await invoke(as_tool(paint), ctx) == (Colour.RED, "the deps", 2, {"depth": 3})


async def test_a_deferred_tool_gets_its_pending_call_and_others_none() -> None:
    """S0.14, S0.82"""

    async def start(call: PendingCall | None = None) -> str | None:
        return None if call is None else call.effect_id

    call = PendingCall(
        id="p_1",
        kind="tool",
        status="waiting",
        session_id="s_1",
        agent="a",
        tool="start",
        args={},
        call_id="c_1",
        effect_id="e_1",
        time=CallTimes(created=1),
    )
    made = tool(start, deferred=True)
    assert await invoke(made, replace(context(), pending=call)) == "e_1"
    assert await invoke(replace(made, deferred=False), context()) is None


async def test_a_plain_function_runs_in_a_thread_and_an_async_one_here() -> None:
    async def here() -> int:
        return threading.get_ident()

    def there() -> int:
        return threading.get_ident()

    def both() -> Any:
        return here()

    class Called:
        async def __call__(self) -> int:
            return threading.get_ident()

    limiter = anyio.CapacityLimiter(1)
    mine = threading.get_ident()
    assert await invoke(as_tool(here), context()) == mine
    assert await invoke(as_tool(there), context(), limiter=limiter) != mine
    assert await invoke(as_tool(both), context()) == mine
    assert await invoke(as_tool(Called()), context()) == mine


async def test_a_tool_with_its_own_schema_takes_the_context() -> None:
    async def read(ctx: Context) -> Any:
        return ctx.args["path"]

    assert await invoke(Tool(read, name="read"), context(path="a")) == "a"
    assert await invoke(Tool(str, name="show"), context(path="b")) == str(context(path="b"))


async def test_wrong_arguments_do_not_reach_the_function() -> None:
    with pytest.raises(Refused, match="cents: is missing"):
        await invoke(refund, context())


def slow(release: threading.Event) -> Callable[[], bool]:
    def wait_for_it() -> bool:
        return release.wait(120)

    return wait_for_it


async def test_a_tool_that_runs_too_long_is_an_error_for_the_model() -> None:
    async def hang() -> None:
        await anyio.sleep_forever()

    release = threading.Event()
    with anyio.fail_after(60):
        for function in (hang, slow(release)):
            with pytest.raises(ToolError, match="timed out after 20ms") as caught:
                await invoke(tool(function, timeout=0.02), context())
            assert caught.value.code == "TOOL_TIMEOUT"
    release.set()


async def test_a_timeout_of_the_tools_own_is_its_own() -> None:
    async def fails() -> None:
        raise TimeoutError("theirs")

    with pytest.raises(TimeoutError, match="theirs"):
        await invoke(tool(fails, timeout=60), context())


async def test_the_deadline_of_a_deferred_tool_is_not_its_running_time() -> None:
    async def start() -> str:
        await anyio.sleep(0.02)
        return "job-1"

    assert await invoke(tool(start, deferred=True, timeout=0.001), context()) == "job-1"
