"""Backends that the store contract runs against."""

import sqlite3
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from tests.contract.indexed import indexed_maker

from perdure.store.base import Entry, Store
from perdure.store.files.store import files_store
from perdure.store.memory import MemoryStore
from perdure.store.postgres.store import PostgresStore
from perdure.store.shared.names import file_name
from perdure.store.sqlite.open import BUSY_S, Connect
from perdure.store.sqlite.store import SqliteStore
from perdure.testing.contract import HandClock, Harness, MakeHarness


@dataclass
class MemoryHarness:
    """Memory store, the reference; all opens share one object."""

    clock: HandClock = field(default_factory=HandClock)
    capabilities: frozenset[str] = frozenset({"broadcasts"})
    store: MemoryStore | None = None

    async def open(self) -> Store:
        self.store = self.store or MemoryStore(self.clock)
        await self.store.open()
        return self.store


@dataclass
class SqliteHarness:
    """SQLite file with any number of stores."""

    path: Path
    connect: Connect | None = None
    clock: HandClock = field(default_factory=HandClock)
    capabilities: frozenset[str] = frozenset({"durable", "shared", "broadcasts"})
    stores: list[SqliteStore] = field(default_factory=list)

    async def open(self) -> Store:
        store = SqliteStore(self.path, clock=self.clock, connect=self.connect)
        self.stores.append(store)
        await store.open()
        return store


class EveryFile:
    """Layout in which all streams have a log, and the calls that the suite puts a file."""

    kinds: Collection[str] = ("pending", "task")
    indexed_kind: str | None = "pending"

    def folder(self, stream: str) -> str:
        """Return the name of a folder for any stream."""
        return file_name(stream)

    def file_path(self, entry: Entry) -> str:
        """Return the name of a file for any entry."""
        return f"storage/{file_name(entry.kind)}/{file_name(entry.key)}.json"

    def content(self, entry: Entry) -> bytes:
        """Return the data of the entry."""
        return entry.data

    def index(self, entries: Iterable[Entry]) -> bytes:
        """Return the keys."""
        return "\n".join(entry.key for entry in entries).encode()


@dataclass
class FilesHarness:
    """Folder with any number of stores; every stream has a log there, and every entry a file."""

    base: Path
    clock: HandClock = field(default_factory=HandClock)
    capabilities: frozenset[str] = frozenset({"durable", "shared", "broadcasts"})
    stores: list[SqliteStore] = field(default_factory=list)

    async def open(self) -> Store:
        store = files_store(self.base, EveryFile(), clock=self.clock)
        self.stores.append(store)
        await store.open()
        return store


@dataclass
class PostgresHarness:
    """PostgreSQL schema with any number of stores."""

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
    """Empty the tables, which is faster than to create them again."""
    store = PostgresStore(url)
    await store.open()
    async with store._ready().readers.connection() as line, line.transaction() as inside:
        await inside.execute("DELETE FROM stream; DELETE FROM record; DELETE FROM entry")
        await inside.execute("DELETE FROM holder")
    await store.close()


def newest_sqlite() -> Connect:
    """Return a connect function of the newest SQLite with a wheel; skip without it."""
    module = pytest.importorskip(
        "pysqlite3", reason="pysqlite3 is not installed: NOT TESTED on the newest SQLite"
    )

    def connect(path: str) -> sqlite3.Connection:
        connection = module.connect(
            path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        return cast("sqlite3.Connection", connection)  # another class with the same methods

    return connect


POSTGRES = ("postgres", "pgbouncer")
BACKENDS = ("memory", "files", "sqlite", "sqlite-newest", "redis", *POSTGRES)
PLAIN = "listen=off&advisory=off"


@asynccontextmanager
async def postgres_harness(backend: str, url: str) -> AsyncIterator[PostgresHarness]:
    """Yield a harness on the emptied database; a pooler allows plain SQL only."""
    harness = PostgresHarness(url, frozenset({"durable", "shared", "broadcasts"}))
    if backend == "pgbouncer":
        harness = PostgresHarness(f"{url}&{PLAIN}", frozenset({"durable", "shared"}))
    await empty(harness.url)
    try:
        yield harness
    finally:
        for store in harness.stores:
            await store.close()


def harness_maker(backend: str, folder: Path) -> MakeHarness:
    """Return a factory of harnesses of this backend, each with its own data."""
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


@pytest.fixture(params=BACKENDS)
def make_harness(request: pytest.FixtureRequest, tmp_path: Path) -> MakeHarness:
    if request.param == "redis":
        return indexed_maker(request.getfixturevalue("redis_server"), tmp_path)
    if request.param not in POSTGRES:
        return harness_maker(request.param, tmp_path)
    url = request.getfixturevalue("new_postgres_schema")()
    if request.param == "pgbouncer":
        url = request.getfixturevalue("pgbouncer").through(url)
    return partial(postgres_harness, request.param, url)
