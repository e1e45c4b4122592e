"""Runtimes with a session that waits for two calls."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Runtime, tool
from perdure.app import service_of
from perdure.runtime.webhooks.addresses import Screen
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel


@tool(deferred=True, timeout="24h")
def deploy(branch: str) -> str:
    """Deploy."""
    return f"dep-{branch}"


@pytest.fixture
def agent() -> Agent[str]:
    turns: Sequence[dict[str, Any]] = [
        {"calls": [{"tool": "deploy", "args": {"branch": name}} for name in "ab"]},
        {"text": "Both are up."},
    ]
    return Agent("ci", model=ScriptedModel(turns), tools=[deploy])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture(params=["memory", "sqlite"])
async def rt(
    request: pytest.FixtureRequest,
    agent: Agent[str],
    memory: MemoryStore,
    clock: ManualClock,
    tmp_path: Path,
) -> AsyncIterator[Runtime]:
    """An open runtime where session `s` waits for two calls of `deploy`."""
    store: Any = memory if request.param == "memory" else f"sqlite:///{tmp_path}/h.db"
    async with Runtime(store, agents=[agent], clock=clock) as opened:
        await opened.session("s", agent=agent).run("Go")
        service_of(opened).desk.outbox.screen = Screen.allowing([], somewhere)
        yield opened


async def somewhere(host: str, port: int) -> list[str]:
    """Every name means a public address: no test asks the machine."""
    return ["93.184.215.14"]
