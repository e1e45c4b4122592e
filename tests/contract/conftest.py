"""The backends that the contract is run against."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from holdfast.store.base import Store
from holdfast.store.files import FilesStore
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite_open import BUSY_S, Connect
from holdfast.testing.contract import HandClock, Harness, MakeHarness


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


BACKENDS = ("memory", "files", "sqlite", "sqlite-newest")


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


@pytest.fixture(params=BACKENDS)
def make_harness(request: pytest.FixtureRequest, tmp_path: Path) -> MakeHarness:
    return harness_maker(request.param, tmp_path)
