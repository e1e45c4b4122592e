"""Processes that are ended with their test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.agents import Place
from tests.crash.harness import Child, Forker, StartChild, StartForker


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A folder, also for a runtime of the test itself."""
    monkeypatch.setenv("HOLDFAST_LEASE", "2s")
    monkeypatch.setenv("HOLDFAST_SCRIPT_LOG", str(tmp_path / "requests"))
    return Place(tmp_path)


@pytest.fixture(scope="session")
def forkers() -> Iterator[StartForker]:
    started: list[Forker] = []

    def start() -> Forker:
        started.append(Forker())
        return started[-1]

    yield start
    for forker in started:
        forker.end()


@pytest.fixture(scope="session")
def forker(forkers: StartForker) -> Forker:
    """One that is shared by the tests that need but one."""
    return forkers()


@pytest.fixture
def start() -> Iterator[StartChild]:
    started: list[Child] = []

    def child(*arguments: str) -> Child:
        started.append(Child(*arguments))
        return started[-1]

    yield child
    for one in started:
        one.end()
