"""Runtimes on data that a test can leave and come back to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.hanging import nothing_hangs

from perdure import Agent, Runtime
from perdure.store.memory import MemoryStore
from perdure.testing import ManualClock

__all__ = ["nothing_hangs"]

MakeRuntime = Callable[..., Runtime]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def in_memory(memory: MemoryStore) -> MakeRuntime:
    """Runtimes on the memory store of this test."""

    def make(*agents: Agent[Any], **options: Any) -> Runtime:
        return Runtime(memory, agents=agents, **options)

    return make


@pytest.fixture(params=["memory", "sqlite"])
def runtime(
    request: pytest.FixtureRequest, clock: ManualClock, memory: MemoryStore, tmp_path: Path
) -> MakeRuntime:
    """Runtimes on the data of this test, once in memory and once in a SQLite file.

    And in a PostgreSQL database, where a test asks for that: parametrize(…, indirect=True).
    """
    url = f"sqlite:///{tmp_path}/h.db"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")

    def make(*agents: Agent[Any], **options: Any) -> Runtime:
        if request.param == "memory":
            return Runtime(memory, agents=agents, **options)
        return Runtime(url, agents=agents, clock=clock, **options)

    return make
