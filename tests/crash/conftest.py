"""Fixtures: folders with a database, and processes that end with their test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.agents import Place
from tests.crash.harness import Child, Forker, MakePlace, StartChild, StartForker


@pytest.fixture(params=["sqlite", "postgres"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> MakePlace:
    """Return a factory of folders with a database, for every store that processes can share."""

    def make(name: str = "") -> Place:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        if request.param == "postgres":
            (folder / "url").write_text(request.getfixturevalue("new_postgres_schema")())
        return Place(folder)

    return make


@pytest.fixture
def place(places: MakePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Folder that a runtime of the test itself can use too."""
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
    """Forker that tests share if they need only one."""
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
