"""Stores to damage: a process creates each scene once, and copies it for each case."""

import pytest
from tests.damage.cases import Databases, SqliteFiles
from tests.servers.postgres import PostgresServer


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> SqliteFiles:
    """SQLite files of all scenes."""
    return SqliteFiles(tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="session")
def databases(postgres: PostgresServer) -> Databases:
    """PostgreSQL databases of all scenes."""
    return Databases(postgres)


@pytest.fixture(autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the originals of rebuilt sessions out of the home of the person who runs the tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
