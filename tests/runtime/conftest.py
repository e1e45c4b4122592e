"""Runtimes on data that a test can leave and come back to."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast import Agent, Runtime
from holdfast.store.memory import MemoryStore
from holdfast.testing import ManualClock

MakeRuntime = Callable[..., Runtime]


@pytest.fixture(autouse=True)
def _nothing_hangs() -> Iterator[None]:
    """Even a loop that never awaits ends as a failed test."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the test hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


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
