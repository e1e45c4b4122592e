"""Fixtures: a clock, and runtimes on a store that outlives them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Runtime
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock

MakeRuntime = Callable[..., Runtime]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def in_memory(memory: MemoryStore) -> MakeRuntime:
    """Return a factory of runtimes on the memory store of this test."""

    def make(*agents: Agent[Any], **options: Any) -> Runtime:
        return Runtime(memory, agents=agents, **options)

    return make


@pytest.fixture(params=["memory", "sqlite"])
def runtime(
    request: pytest.FixtureRequest, clock: ManualClock, memory: MemoryStore, tmp_path: Path
) -> MakeRuntime:
    """Return a factory of runtimes on the test's data, once in memory and once in SQLite.

    A test may ask for PostgreSQL too: parametrize(…, indirect=True).
    """
    url = f"sqlite:///{tmp_path}/h.db"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")

    def make(*agents: Agent[Any], **options: Any) -> Runtime:
        if request.param == "memory":
            return Runtime(memory, agents=agents, **options)
        return Runtime(url, agents=agents, clock=clock, **options)

    return make
