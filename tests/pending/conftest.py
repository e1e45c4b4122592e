"""Fixtures: runtimes with a session that waits for two calls."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.runtimes import clock, memory

from perdure import Agent, Runtime, tool
from perdure.address_filter import AddressFilter
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel

__all__ = ["clock", "memory"]


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


@pytest.fixture(params=["memory", "sqlite"])
async def rt(
    request: pytest.FixtureRequest,
    agent: Agent[str],
    memory: MemoryStore,
    clock: ManualClock,
    tmp_path: Path,
) -> AsyncIterator[Runtime]:
    """Open runtime in which session `s` waits for two calls of `deploy`."""
    store: Any = memory if request.param == "memory" else f"sqlite:///{tmp_path}/h.db"
    async with Runtime(store, agents=[agent], clock=clock) as opened:
        await opened.session("s", agent=agent).run("Go")
        opened._resources.outbox.address_filter = AddressFilter.from_allow_list([], somewhere)
        yield opened


async def somewhere(host: str, port: int) -> list[str]:
    """Resolve every name to a public address, without DNS."""
    return ["93.184.215.14"]
