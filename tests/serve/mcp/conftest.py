"""An open runtime without agents, for the tools of tasks."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.mcp_client import open_folder, unconfined

from perdure import Runtime
from perdure.options import TaskOptions
from perdure.store.memory import MemoryStore


@pytest.fixture
async def empty(tmp_path: Path) -> AsyncIterator[Runtime]:
    """Open runtime without agents."""
    async with Runtime(MemoryStore(), tasks={"root": str(tmp_path / "tasks")}) as rt:
        yield rt


@pytest.fixture
def task_options() -> Iterator[TaskOptions]:
    """Options of tasks whose commands run without a sandbox, as a user who can enter the folder."""
    with open_folder() as folder:
        yield unconfined(folder)
