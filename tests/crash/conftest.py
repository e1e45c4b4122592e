"""Processes that are ended with their test."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from tests.crash.agents import Place
from tests.crash.harness import Child, Forker, MakePlace, StartChild, StartForker
from tests.servers.postgres import PostgresServer

MakeUrl = Callable[[], str]


@pytest.fixture(scope="session")
def crash_database(postgres: PostgresServer) -> MakeUrl:
    """Schemas of one database, each empty."""
    url, numbers = postgres.new_database(), count(1)
    return lambda: f"{url}?schema=place{next(numbers)}"


@pytest.fixture(params=["sqlite", "postgres"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> MakePlace:
    """Folders with a database each, on every store that several processes can use."""

    def make(name: str = "") -> Place:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        if request.param == "postgres":
            (folder / "url").write_text(request.getfixturevalue("crash_database")())
        return Place(folder)

    return make


@pytest.fixture
def place(places: MakePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A folder, also for a runtime of the test itself."""
    monkeypatch.setenv("PERDURE_LEASE", "2s")
    monkeypatch.setenv("PERDURE_SCRIPT_LOG", str(tmp_path / "requests"))
    return places()


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
