"""Exceptions that would end a process, raised by user code: each is the failure of that call."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, NoReturn

import anyio
import pytest
from pydantic import AfterValidator

from perdure import Agent, Context, Delta, PendingCall, Refused, Runtime, tool
from perdure.core.conversation.messages import Answer
from perdure.runtime.models.base import Request
from perdure.testing import ScriptedModel

MakeRuntime = Callable[..., Runtime]


class Custom(BaseException):
    """An exception of a library that nobody is meant to catch."""


RAISED: list[tuple[Callable[[], Any], str]] = [
    (lambda: sys.exit(2), "SystemExit: 2"),
    (lambda: pytest.fail("must not be called"), "Failed: must not be called"),
]


def raises(error: type[BaseException]) -> Callable[[], Any]:
    def act() -> NoReturn:
        raise error("stop")

    return act


RAISED += [
    (raises(error), f"{error.__name__}: stop")
    for error in (Custom, GeneratorExit, KeyboardInterrupt, asyncio.CancelledError)
]
EVERY = pytest.mark.parametrize("act, line", RAISED, ids=[line for _, line in RAISED])
CALL: list[dict[str, Any]] = [{"calls": [{"tool": "act"}]}, {"text": "Done."}]


async def results(rt: Runtime, *tools: Any, turns: Any = CALL) -> list[str]:
    """Run a session of these tools beside another one; return the results of its calls."""
    agent = Agent("a", model=ScriptedModel(turns), tools=tools)
    session = rt.session("s", agent=agent)
    with anyio.fail_after(10):
        assert (await session.run("Go")).output == "Done."
    other = Agent("b", model=ScriptedModel([{"text": "Unaffected."}]))
    assert (await rt.session("other", agent=other).run("Go")).output == "Unaffected."
    return [e.data["result"] for e in await session.events() if e.type == "tool_result"]


@EVERY
@pytest.mark.parametrize("kind", ["sync", "async", "task"])
async def test_what_a_tool_raises_is_the_failure_of_its_call(
    in_memory: MakeRuntime, act: Callable[[], Any], line: str, kind: str
) -> None:
    async def in_task() -> None:
        async def child() -> None:
            await asyncio.sleep(0)
            act()

        await asyncio.create_task(child())

    async def plain() -> None:
        act()

    functions: dict[str, Any] = {"sync": act, "async": plain, "task": in_task}
    async with in_memory() as rt:
        (result,) = await results(rt, tool(functions[kind], name="act", description="Act."))
    assert result == line


@EVERY
async def test_what_the_start_of_a_deferred_tool_raises_is_the_failure_of_its_call(
    in_memory: MakeRuntime, act: Callable[[], Any], line: str
) -> None:
    @tool(deferred=True, name="act")
    def start(call: PendingCall) -> str:
        act()
        return "never"

    async with in_memory() as rt:
        assert await results(rt, start) == [line]


@EVERY
async def test_a_predicate_that_raises_requires_approval(
    in_memory: MakeRuntime, act: Callable[[], Any], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    def predicate(_: Context) -> bool:
        return bool(act())

    gated = tool(lambda: "acted", name="act", description="Act.", requires_approval=predicate)
    agent = Agent("a", model=ScriptedModel(CALL), tools=[gated])
    async with in_memory(agent) as rt:
        with anyio.fail_after(5), caplog.at_level(logging.WARNING):
            (call,) = (await rt.session("s", agent=agent).run("Go")).pending
    assert call.kind == "approval"
    assert line in caplog.text


@EVERY
async def test_instructions_that_raise_fail_the_run(
    in_memory: MakeRuntime, act: Callable[[], Any], line: str
) -> None:
    agent = Agent("a", model=ScriptedModel([]), instructions=lambda _: str(act()))
    async with in_memory(agent) as rt:
        with anyio.fail_after(5):
            result = await rt.session("s", agent=agent).run("Go")
    assert result.state == "failed"
    assert result.error is not None
    assert result.error.message == line


@EVERY
async def test_a_model_that_raises_fails_the_run(
    in_memory: MakeRuntime, act: Callable[[], Any], line: str
) -> None:
    class Model:
        name = "test:raising"

        async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
            act()
            yield Answer("never")

    agent = Agent("a", model=Model())
    async with in_memory(agent) as rt:
        with anyio.fail_after(5):
            result = await rt.session("s", agent=agent).run("Go")
    assert result.state == "failed"
    assert result.error is not None
    assert result.error.message == line


@EVERY
async def test_a_validator_of_arguments_that_raises_rejects_the_call(
    in_memory: MakeRuntime, act: Callable[[], Any], line: str
) -> None:
    def take(n: Annotated[int, AfterValidator(lambda _: act())]) -> str:
        return "never"

    turns = [{"calls": [{"tool": "act", "args": {"n": 1}}]}, {"text": "Done."}]
    async with in_memory() as rt:
        (result,) = await results(rt, tool(take, name="act", description="Act."), turns=turns)
    assert line in result


@EVERY
async def test_a_validator_of_outputs_that_raises_asks_the_model_again(
    in_memory: MakeRuntime, act: Callable[[], Any], line: str
) -> None:
    calls: list[int] = []

    def check(n: int) -> int:
        calls.append(n)
        if len(calls) == 1:
            act()
        return n

    model = ScriptedModel([{"text": "1"}, {"text": "2"}])
    agent: Agent[int] = Agent("a", model=model, output_type=Annotated[int, AfterValidator(check)])  # type: ignore[arg-type]
    async with in_memory(agent) as rt:
        with anyio.fail_after(5):
            result = await rt.session("s", agent=agent).run("Go")
    assert result.output == 2


@EVERY
async def test_a_validator_of_submitted_results_that_raises_refuses_the_result(
    in_memory: MakeRuntime, act: Callable[[], Any], line: str
) -> None:
    @tool(deferred=True, name="act", validate_result=lambda _: bool(act()))
    def start(call: PendingCall) -> str:
        return "job-1"

    agent = Agent("a", model=ScriptedModel(CALL), tools=[start])
    async with in_memory(agent) as rt:
        (call,) = (await rt.session("s", agent=agent).run("Go")).pending
        with pytest.raises(Refused):
            await rt.submit_result(call.id, "42")


@EVERY
async def test_a_result_whose_serializer_raises_is_shown_as_a_note(
    in_memory: MakeRuntime, act: Callable[[], Any], line: str
) -> None:
    class Odd(dict[str, Any]):
        def items(self) -> Any:
            act()

    async with in_memory() as rt:
        (result,) = await results(rt, tool(lambda: Odd(a=1), name="act", description="Act."))
    assert "cannot be shown" in result


async def test_cancelling_a_session_still_cancels_its_tool(in_memory: MakeRuntime) -> None:
    begun, ended = anyio.Event(), anyio.Event()

    @tool
    async def act() -> str:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return "never"

    agent = Agent("a", model=ScriptedModel(CALL), tools=[act])
    async with in_memory(agent) as rt, anyio.create_task_group() as tasks:
        session = rt.session("s", agent=agent)
        with anyio.fail_after(5):
            tasks.start_soon(session.run, "Go")
            await begun.wait()
            await session.cancel()
            await ended.wait()
        assert (await session.get()).state == "cancelled"


async def test_a_result_that_is_not_json_is_reported_to_the_operator(
    in_memory: MakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    class Row:
        def __str__(self) -> str:
            return "row 7"

    with caplog.at_level(logging.WARNING):
        async with in_memory() as rt:
            shown = await results(rt, tool(lambda: [Row()], name="act", description="Act."))
    assert shown == ['["row 7"]']
    (warning,) = [m for m in caplog.messages if "not JSON" in m]
    assert warning.startswith("tool act of session s returned a value that is not JSON (Row)")
    assert "return text, numbers, dicts" in warning


async def test_an_exception_group_shows_its_first_cause(in_memory: MakeRuntime) -> None:
    @tool
    async def act() -> str:
        async def fail(text: str) -> None:
            raise ValueError(text)

        async with asyncio.TaskGroup() as group:
            group.create_task(fail("no such order"))
        return "never"

    async with in_memory() as rt:
        assert await results(rt, act) == ["ExceptionGroup: ValueError: no such order"]


async def test_an_exception_whose_text_cannot_be_read_is_recorded(in_memory: MakeRuntime) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async with in_memory() as rt:
        (result,) = await results(rt, tool(raises_error(Mute()), name="act", description="Act."))
    assert result == "Mute: (its text cannot be read: RuntimeError)"


@pytest.mark.parametrize("kind", ["exception", "perdure"])
async def test_the_text_of_a_huge_exception_is_bounded(in_memory: MakeRuntime, kind: str) -> None:
    huge = "x" * 20_000_000
    error = ValueError(huge) if kind == "exception" else Refused(huge)
    async with in_memory() as rt:
        (result,) = await results(rt, tool(raises_error(error), name="act", description="Act."))
    assert len(result) < 101_000
    assert result.endswith("x… (20,000,000 characters; the rest is not recorded)")


def noted() -> Exception:
    error = ValueError("short")
    error.add_note("n" * 1_000_000)
    return error


def caused() -> Exception:
    error = ValueError("short")
    error.__cause__ = ValueError("c" * 1_000_000)
    return error


def named() -> Exception:
    kind: type[Exception] = type("N" * 1_000_000, (Exception,), {})
    return kind("short")


@pytest.mark.parametrize("make", [noted, caused, named])
async def test_the_log_of_a_huge_exception_is_bounded(
    in_memory: MakeRuntime, caplog: pytest.LogCaptureFixture, make: Callable[[], Exception]
) -> None:
    act = tool(raises_error(make()), name="act", description="Act.")
    async with in_memory() as rt:
        (result,) = await results(rt, act)
    assert result.endswith(": short")
    assert len(result) < 1_000
    assert "tool act failed" in caplog.text
    assert len(caplog.text) < 101_000


def raises_error(error: Exception) -> Callable[[], NoReturn]:
    def act() -> NoReturn:
        raise error

    return act
