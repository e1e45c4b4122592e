"""The backends that the contract is run against."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from tests.contract.indexed import indexed_maker
from tests.servers.postgres import PostgresServer

from perdure.store.base import Store
from perdure.store.files.store import FilesStore
from perdure.store.memory import MemoryStore
from perdure.store.postgres.store import PostgresStore
from perdure.store.sqlite.open import BUSY_S, Connect
from perdure.store.sqlite.store import SqliteStore
from perdure.testing.contract import HandClock, Harness, MakeHarness


@dataclass
class MemoryHarness:
    """The reference: gone with its process, and one object is all its data."""

    clock: HandClock = field(default_factory=HandClock)
    capabilities: frozenset[str] = frozenset({"whispers"})
    store: MemoryStore | None = None

    async def open(self) -> Store:
        self.store = self.store or MemoryStore(self.clock)
        await self.store.open()
        return self.store


@dataclass
class SqliteHarness:
    """One file, as many stores as wanted."""

    path: Path
    connect: Connect | None = None
    clock: HandClock = field(default_factory=HandClock)
    capabilities: frozenset[str] = frozenset({"durable", "shared", "whispers"})
    stores: list[SqliteStore] = field(default_factory=list)

    async def open(self) -> Store:
        store = SqliteStore(self.path, clock=self.clock, connect=self.connect)
        self.stores.append(store)
        await store.open()
        return store


@dataclass
class FilesHarness:
    """One folder, one store at a time."""

    base: Path
    clock: HandClock = field(default_factory=HandClock)
    capabilities: frozenset[str] = frozenset({"durable", "whispers"})
    stores: list[FilesStore] = field(default_factory=list)

    async def open(self) -> Store:
        store = FilesStore(self.base, clock=self.clock)
        self.stores.append(store)
        await store.open()
        return store


@dataclass
class PostgresHarness:
    """One schema of a database, as many stores as wanted."""

    url: str
    capabilities: frozenset[str]
    clock: HandClock = field(default_factory=HandClock)
    stores: list[PostgresStore] = field(default_factory=list)

    async def open(self) -> Store:
        store = PostgresStore(self.url, clock=self.clock)
        self.stores.append(store)
        await store.open()
        return store


async def empty(url: str) -> None:
    """Leave nothing in the tables, which costs less than to make them anew."""
    store = PostgresStore(url)
    await store.open()
    async with store._ready().readers.line() as line, line.transaction() as inside:
        await inside.execute("DELETE FROM stream; DELETE FROM record; DELETE FROM entry")
        await inside.execute("DELETE FROM holder")
    await store.close()


def newest_sqlite() -> Connect:
    """Connections of the newest SQLite that there is a wheel for; skips, saying so, without it."""
    module = pytest.importorskip(
        "pysqlite3", reason="pysqlite3 is not installed: NOT TESTED on the newest SQLite"
    )

    def connect(path: str) -> sqlite3.Connection:
        connection = module.connect(
            path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        return cast("sqlite3.Connection", connection)  # the same names, another class

    return connect


POSTGRES = ("postgres", "pgbouncer")
BACKENDS = ("memory", "files", "sqlite", "sqlite-newest", "redis", *POSTGRES)
PLAIN = "listen=off&advisory=off"


@asynccontextmanager
async def postgres_harness(backend: str, url: str) -> AsyncIterator[PostgresHarness]:
    """The database, emptied; through a pooler there is nothing beyond plain SQL."""
    harness = PostgresHarness(url, frozenset({"durable", "shared", "whispers"}))
    if backend == "pgbouncer":
        harness = PostgresHarness(f"{url}?{PLAIN}", frozenset({"durable", "shared"}))
    await empty(harness.url)
    try:
        yield harness
    finally:
        for store in harness.stores:
            await store.close()


def harness_maker(backend: str, folder: Path) -> MakeHarness:
    """Makes harnesses of this backend, each with data of its own."""
    connect = newest_sqlite() if backend == "sqlite-newest" else None
    made = 0

    @asynccontextmanager
    async def make() -> AsyncIterator[Harness]:
        nonlocal made
        made += 1
        if backend == "memory":
            yield MemoryHarness()
            return
        harness: FilesHarness | SqliteHarness
        if backend == "files":
            harness = FilesHarness(folder / f"{made}")
        else:
            harness = SqliteHarness(folder / f"{made}.db", connect)
        try:
            yield harness
        finally:
            for store in harness.stores:
                await store.close()

    return make


@pytest.fixture(scope="session")
def contract_database(postgres: PostgresServer) -> str:
    """One for all cases, emptied before each."""
    return postgres.new_database()


@pytest.fixture(params=BACKENDS)
def make_harness(request: pytest.FixtureRequest, tmp_path: Path) -> MakeHarness:
    if request.param == "redis":
        return indexed_maker(request.getfixturevalue("redis_server"), tmp_path)
    if request.param not in POSTGRES:
        return harness_maker(request.param, tmp_path)
    url = request.getfixturevalue("contract_database")
    if request.param == "pgbouncer":
        url = request.getfixturevalue("pgbouncer").through(url)
    return partial(postgres_harness, request.param, url)
