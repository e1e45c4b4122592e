"""The watchdog names user code that blocks the event loop."""

import asyncio
import gc
import logging
import re
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from perdure import Agent, Runtime, tool
from perdure.runtime.engine import watchdog
from perdure.testing import ScriptedModel

MakeRuntime = Callable[..., Runtime]
CALL: list[dict[str, Any]] = [{"calls": [{"tool": "act"}]}, {"text": "Done."}]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "BLOCKED_S", 0.2)
    monkeypatch.setattr(watchdog, "BEAT_S", 0.05)


async def reports(
    rt: Runtime, caplog: pytest.LogCaptureFixture, is_expected: bool = True, **options: Any
) -> list[str]:
    """Run a session; return what the watchdog reported."""
    agent: Agent[Any] = Agent("a", **{"model": ScriptedModel(CALL), **options})
    with caplog.at_level(logging.WARNING), anyio.fail_after(20):
        await rt.session("s1", agent=agent).run("Go")
        while is_expected and not re.search("(?<!has) blocked the event loop", caplog.text):  # noqa: ASYNC110 - by a thread
            await asyncio.sleep(0.01)
    return [m for m in caplog.messages if "blocked the event loop" in m]


async def test_a_tool_that_blocks_the_event_loop_is_named_while_it_does_and_afterwards(
    in_memory: MakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    """A1"""
    logged_inside: list[str] = []

    @tool
    async def act() -> str:
        end = time.monotonic() + 10
        while not caplog.messages and time.monotonic() < end:
            time.sleep(0.01)  # noqa: ASYNC251 - what is tested
        logged_inside.extend(caplog.messages)
        return "acted"

    async with in_memory() as rt:
        during, after = await reports(rt.tenant("acme"), caplog, tools=[act])
    assert logged_inside == [during]
    assert re.match(
        r"the tool act of session s1 of tenant acme has blocked the event loop for \d+\.\d s "
        r"\(.*test_watchdog\.py:\d+, in act\), and no session of this process continues meanwhile; "
        r"write it with def instead of async def: then it runs in a thread$",
        during,
    )
    assert re.match(
        r"the tool act of session s1 of tenant acme blocked the event loop for \d+\.\d s$",
        after,
    )


async def test_a_task_of_a_tool_that_blocks_the_event_loop_is_reported_as_that_tool(
    in_memory: MakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    async def act() -> str:
        async def child() -> None:
            time.sleep(0.5)  # noqa: ASYNC251

        await asyncio.gather(child())
        return "acted"

    async with in_memory() as rt:
        during, _ = await reports(rt, caplog, tools=[act])
    assert during.startswith("the tool act of session s1 has blocked")
    assert "in child)" in during


@pytest.mark.parametrize("kind", ["predicate", "instructions"])
async def test_other_code_that_blocks_the_event_loop_is_named_too(
    in_memory: MakeRuntime, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    def block(*_: Any) -> Any:
        time.sleep(0.5)
        return ""

    gated = tool(lambda: "", name="act", description="Act.", requires_approval=block)
    options = {"tools": [gated]} if kind == "predicate" else {"instructions": block}
    async with in_memory() as rt:
        during, *_ = await reports(rt, caplog, **options)
    names = {"predicate": "the approval predicate act", "instructions": "the instructions"}
    assert during.startswith(f"{names[kind]} of session s1 has blocked")
    assert during.endswith("; let it await what takes long")


async def test_a_tool_in_a_thread_blocks_nothing(
    in_memory: MakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    def act() -> str:
        time.sleep(0.5)
        return "acted"

    gc.collect()  # among the objects of all tests, a full collection may take as long
    async with in_memory() as rt:
        assert await reports(rt, caplog, is_expected=False, tools=[act]) == []


def test_a_process_that_the_machine_did_not_run_has_not_been_blocked() -> None:
    last = watchdog._WatchdogTurn(at=10.0, cpu=1.0)
    assert watchdog._WatchdogTurn(at=11.5, cpu=1.01).is_starved_since(last)
    assert not watchdog._WatchdogTurn(at=11.5, cpu=2.4).is_starved_since(
        last
    )  # code held the interpreter
    assert not watchdog._WatchdogTurn(at=10.06, cpu=1.0).is_starved_since(last)  # code sleeps
