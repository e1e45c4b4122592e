"""Store behind a Redis index, for the contract."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers.redis import RedisServer

from perdure.app.layouts import PendingNames
from perdure.store.base import Store
from perdure.store.redis.store import IndexedStore
from perdure.store.sqlite.store import SqliteStore
from perdure.testing.contract import HandClock, Harness, MakeHarness


@dataclass
class IndexedHarness:
    """SQLite file and Redis that all stores of the harness share."""

    path: Path
    url: str
    clock: HandClock = field(default_factory=HandClock)
    capabilities: frozenset[str] = frozenset({"durable", "shared", "broadcasts"})
    stores: list[IndexedStore] = field(default_factory=list)

    async def open(self) -> Store:
        plain = SqliteStore(self.path, clock=self.clock)
        self.stores.append(IndexedStore(plain, self.url, PendingNames()))
        await self.stores[-1].open()
        return self.stores[-1]


def indexed_maker(server: RedisServer, folder: Path) -> MakeHarness:
    """Return a factory of harnesses, each with its own data."""
    made = 0

    @asynccontextmanager
    async def make() -> AsyncIterator[Harness]:
        nonlocal made
        made += 1
        server.empty()
        harness = IndexedHarness(folder / f"{made}.db", server.url)
        try:
            yield harness
        finally:
            for store in harness.stores:
                await store.close()

    return make
