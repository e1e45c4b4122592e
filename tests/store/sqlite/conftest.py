"""Fixtures: SQLite stores, and other processes that use the same file."""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from perdure.store.sqlite.store import SqliteStore

CHILD = Path(__file__).with_name("child.py")


class Child:
    """Process that communicates in lines."""

    def __init__(self, role: str, database: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), role, str(database)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self) -> str:
        """Return the next line of its output; empty when it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self) -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Kill it if it still runs."""
        self.process.kill()
        self.process.communicate()


StartChild = Callable[[str, Path], Child]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "perdure.db"


@pytest.fixture
async def store(database: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(database)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def start_child() -> Iterator[StartChild]:
    children: list[Child] = []

    def start(role: str, database: Path) -> Child:
        children.append(Child(role, database))
        return children[-1]

    yield start
    for child in children:
        child.end()
