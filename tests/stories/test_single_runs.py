"""An agent that runs without a runtime of the program, and tools that use the one they run in."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.executions import open_folder, task_options

from perdure import Agent, Context, PerdureError, Refused, Runtime, tool
from perdure.errors import ConfigError
from perdure.testing import ScriptedModel, make_context

__all__ = ["open_folder"]


@tool
def greet(ctx: Context) -> str:
    """Greet."""
    return f"Hello, {ctx.deps}"


@tool(requires_approval=True)
def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


def clerk(*turns: dict[str, Any], **options: Any) -> Agent[str]:
    return Agent("clerk", model=ScriptedModel(list(turns)), tools=[greet, pay], **options)


async def test_an_agent_runs_without_a_runtime() -> None:
    agent = clerk({"calls": [{"tool": "greet"}]}, {"text": "Greeted."})
    result = await agent.run("Go", deps="Ana")
    assert (result.state, result.unwrap()) == ("completed", "Greeted.")
    assert [finding.code for finding in result.findings] == ["COMPLETED"]
    assert result.usage.requests == 2


def test_an_agent_runs_in_a_program_that_is_not_async() -> None:
    assert clerk({"text": "Hi."}).run_sync("Go").output == "Hi."


async def test_in_an_event_loop_run_sync_says_what_to_write() -> None:
    with pytest.raises(Refused) as caught:
        clerk({"text": "Hi."}).run_sync("Go")
    assert caught.value.code == "LOOP_RUNNING"
    assert "await agent.run" in (caught.value.hint or "")


async def test_a_run_that_pauses_waits_and_its_first_finding_names_runtime() -> None:
    agent = clerk({"calls": [{"tool": "pay", "args": {"cents": 1}}]})
    result = await agent.run("Go")
    assert (result.state, [call.tool for call in result.pending]) == ("waiting", ["pay"])
    assert result.findings[0].code == "NOT_STORED"
    assert 'Runtime("sqlite:///' in result.findings[0].text


async def test_a_run_that_takes_longer_than_its_timeout_is_cancelled() -> None:
    started = time.monotonic()
    result = await clerk({"text": "Late.", "delay_ms": 60_000}).run("Go", timeout=0.05)
    assert result.state == "cancelled"
    assert time.monotonic() - started < 30


async def test_what_a_run_needs_is_checked_as_in_a_runtime() -> None:
    with pytest.raises(ConfigError, match="durable session_store"):
        await clerk({"text": "Hi."}, hitl="async").run("Go")


async def test_a_tool_reads_sessions_of_its_own_tenant_only() -> None:
    seen: list[str] = []

    @tool
    async def look(ctx: Context) -> str:
        """Look."""
        seen.extend([result.session_id async for result in ctx.runtime.sessions()])
        await ctx.runtime.session("other").send("Hello")
        return "sent"

    agent = Agent("clerk", model=ScriptedModel([{"calls": [{"tool": "look"}]}, {"text": "."}] * 2))
    looking = Agent("looking", model=agent.model, tools=[look])
    async with Runtime("memory:", agents=[agent, looking]) as rt:
        for tenant in ("a", "b", ""):
            await rt.tenant(tenant).session("other", agent=agent).send("Wait")
        await rt.tenant("a").session("s", agent=looking).run("Go")
        assert sorted(seen) == ["other", "s"]
        seen.clear()
        await rt.session("s", agent=looking).run("Go")
        assert sorted(seen) == ["other", "s"]


async def test_a_tool_gets_the_task_in_which_its_session_runs_commands(open_folder: Path) -> None:
    tasks: list[str] = []

    @tool
    async def show(ctx: Context) -> str:
        """Show."""
        tasks.append((await ctx.task()).id)
        return "shown"

    turns: list[dict[str, Any]] = [
        {"calls": [{"tool": "show"}]},
        {"calls": [{"tool": "execute_command", "args": {"command": "echo x > file"}}]},
        {"calls": [{"tool": "show"}]},
        {"text": "Done."},
    ]
    agent = Agent(
        "ops",
        model=ScriptedModel(turns),
        tools=[show, "execute_command"],
        permissions={"allow": ["execute_command"]},
    )
    options = task_options(open_folder)
    async with Runtime("memory:", agents=[agent], tasks=options) as rt:
        assert (await rt.session("s", agent=agent).run("Go")).state == "completed"
    assert tasks == ["session_s"] * 2


async def test_a_context_of_a_test_says_that_it_has_no_runtime() -> None:
    with pytest.raises(PerdureError) as caught:
        _ = make_context().runtime
    assert caught.value.code == "NOT_BOUND"
    with pytest.raises(Refused, match="no task"):
        await make_context().task()


def test_the_import_of_the_package_loads_no_runtime() -> None:
    import subprocess

    program = "import sys, perdure; print([n for n in sys.modules if n.startswith('perdure.')])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
