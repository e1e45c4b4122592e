"""Fixtures: open runtimes with a folder for tasks, on every store where that fits."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.runtimes import clock, memory

from perdure import Runtime
from perdure.store.memory import MemoryStore
from perdure.tasks import (
    LockManager,
    MultiLayerPersistence,
    TaskLifecycle,
    TaskLifecycleHooks,
    TaskRegistry,
)
from perdure.testing import ManualClock

__all__ = ["clock", "memory"]


@pytest.fixture(params=["memory", "sqlite", "files", "postgres"])
def url(request: pytest.FixtureRequest, memory: MemoryStore, tmp_path: Path) -> Any:
    match request.param:
        case "memory":
            return memory
        case "sqlite":
            return f"sqlite:///{tmp_path}/h.db"
        case "files":
            return f"files:{tmp_path}/store"
        case _:
            return request.getfixturevalue("postgres_url")


@pytest.fixture
async def rt(url: Any, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(url, clock=clock, tasks={"root": tmp_path / "tasks"}) as opened:
        yield opened


@pytest.fixture
def hooks() -> TaskLifecycleHooks:
    return TaskLifecycleHooks()


@pytest.fixture
def lifecycle(rt: Runtime, hooks: TaskLifecycleHooks) -> TaskLifecycle:
    return TaskLifecycle(rt, hooks)


@pytest.fixture
def registry(rt: Runtime) -> TaskRegistry:
    return TaskRegistry(rt)


@pytest.fixture
def layers(rt: Runtime) -> MultiLayerPersistence:
    return MultiLayerPersistence(rt)


@pytest.fixture
def locks(rt: Runtime) -> LockManager:
    return LockManager(rt)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "tasks"
