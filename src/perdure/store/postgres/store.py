"""The PostgreSQL backend: one database, any number of processes and machines."""

import asyncio
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar, Unpack

import anyio

from perdure.errors import StoreError
from perdure.store.base import (
    Census,
    Check,
    Clock,
    Entry,
    Feed,
    FindOptions,
    Growth,
    Heads,
    Lease,
    ListingOptions,
    Page,
    Put,
    Slice,
    StreamState,
    SuspectLimit,
    Write,
)
from perdure.store.judge import check_commit
from perdure.store.postgres import reads
from perdure.store.postgres.connection import Connector
from perdure.store.postgres.connections import PostgresConnections
from perdure.store.postgres.leases import ServerClock
from perdure.store.postgres.schema import Schema, SchemaStep, known_steps
from perdure.store.postgres.url import PostgresAddress, parse_address
from perdure.store.shared.paging import (
    END,
    feed_position,
    growth_of,
)
from perdure.store.shared.queries import EntryQuery, ListingQuery
from perdure.store.shared.signal import Signal, Subscribers

T = TypeVar("T")


class PostgresStore:
    """Store in a PostgreSQL database; it belongs to the event loop that opened it.

    `postgresql://user:password@host/database`, with `listen=off`, `advisory=off` or `schema=NAME`
    in the query; the rest of the query is PostgreSQL's own. With both off the store works behind a
    pooler in transaction mode. `steps` replaces the steps of the schema, for tests.
    """

    def __init__(
        self, url: str, *, clock: Clock | None = None, steps: Sequence[SchemaStep] | None = None
    ) -> None:
        self._connector = Connector(parse_address(url))
        self._clock = ServerClock(clock)
        self._schema = Schema(self._connector, steps or known_steps())
        # The clock's own method: a drive calls it thirty times, and a wrapper would cost.
        self.now = self._clock.now
        self._signal = Signal()
        self._subscribers = Subscribers()
        self._opening = anyio.Lock()
        self._connections: PostgresConnections | None = None
        self._commits = 0

    @property
    def address(self) -> PostgresAddress:
        """The address of the database, password included."""
        return self._connector.address

    @property
    def where(self) -> str:
        """The host and name of the database, without user and password."""
        return self._connector.address.where

    @property
    def identity(self) -> str:
        """Name of the data: equal in all processes that connect in the same way."""
        return f"postgresql:{self.where}/{self.address.schema}"

    @property
    def has_liveness_locks(self) -> bool:
        """A dead worker is detected by its lock at once; without locks when its lease expires."""
        return self._connector.address.advisory

    async def open(self) -> None:
        """Connect, and apply the missing schema steps that only add to the schema."""
        async with self._opening:
            if self._connections is None:
                connections = PostgresConnections(
                    self._connector,
                    self._clock,
                    self._signal,
                    self._subscribers.publish,
                    self._schema.newest,
                )
                await connections.start(self._schema)
                self._connections = connections

    async def migrate(self) -> list[str]:
        """Apply every missing schema step and return their names; for a store that is not open.

        Raises Conflict if one removes something that a live worker still needs.
        """
        connection = await self._connector.connect()
        try:
            return await self._schema.apply_missing(connection, contract=True)
        finally:
            await connection.close()

    async def close(self) -> None:
        """Finish the queued commits and close the connections."""
        async with self._opening:
            connections, self._connections = self._connections, None
            if connections is not None:
                with anyio.CancelScope(shield=True):
                    await connections.close()
                self._signal.notify()

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        """Write everything durably and return the new heads, or raise and write nothing."""
        heads = await self._ready().writer.submit(check_commit(writes, puts, checks))
        self._commits += 1
        return heads

    async def claim(
        self,
        holder: str,
        kind: str,
        limit: int,
        *,
        only: str | None = None,
        suspects: SuspectLimit | None = None,
    ) -> list[Lease]:
        """Reap dead holders, then lease up to `limit` due streams, oldest due first."""
        self._signal.mark_seen()
        return await self._ready().claim(holder, kind, limit, only, suspects)

    async def reap(self, now: int) -> None:
        """Free the leases of the holders whose rows have expired at `now`.

        Holders whose process has ended are reaped in the background, by their advisory locks.
        """
        await self._ready().reap(now)

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        """Extend the holder's row and return its new end; ttl 0 removes the row."""
        connections = self._ready()
        if join:
            until = await connections.join(holder, ttl_ms)
            if ttl_ms > 0:
                return until
        elif ttl_ms > 0:
            return await connections.renew(holder, ttl_ms)
        return await connections.leave(holder, ttl_ms)

    def renew_in_thread(self, holder: str, ttl_ms: int) -> int:
        """Extend the holder's row for a thread, without the event loop of the store."""
        return asyncio.run(self._ready().leases.renew_alone(holder, ttl_ms))

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        """Return the records after `after`, oldest first. Raises NoStream or Gone."""
        return await self._query(partial(reads.read, stream=stream, after=after, limit=limit))

    async def get(self, kind: str, key: str) -> Entry | None:
        """Return the entry with this key, or None. Raises Corrupt if its stream is lost."""
        connections = self._ready()
        self._signal.mark_seen()
        return reads.checked_entry(await connections.entries.submit((kind, key)))

    async def find(self, kind: str, **options: Unpack[FindOptions]) -> Page:
        """Return entries of a kind by key; with `due_before` those due by then, by (due, key)."""
        return await self._query(partial(reads.find, query=EntryQuery.of(kind, options)))

    async def find_listed(self, kind: str, listing: str, **options: Unpack[ListingOptions]) -> Page:
        """Return the entries of a listing in an order, by an index."""
        query = ListingQuery.of(kind, listing, options)
        return await self._query(partial(reads.find_listed, query=query))

    async def entries_of(self, stream: str) -> Sequence[Entry]:
        """Return every entry of a stream by (kind, key)."""
        return await self._query(partial(reads.entries_of, stream=stream))

    async def streams(self, after: str = "", limit: int = 500) -> Sequence[StreamState]:
        """Return streams by id, gone ones too."""
        return await self._query(partial(reads.streams, after=after, limit=limit))

    async def tail(self, cursor: str, limit: int = 500) -> Feed:
        """Return records of all streams after the cursor, each exactly once."""
        position = 0 if cursor == END else feed_position(cursor)
        connections = self._ready()
        self._signal.mark_seen()
        if cursor == END:
            return await connections.feed.end()
        return await connections.feed.after(position, limit)

    async def growth(self, cursor: str, limit: int = 500) -> Growth:
        """Return the streams that have grown since the cursor."""
        return growth_of(await self.tail(cursor, limit), limit)

    async def census(self, kinds: Collection[str]) -> Census:
        """Count what exists at this moment, by indexes."""
        names = sorted(set(kinds))
        return await self._query(
            partial(reads.census, kinds=names, now=self.now(), commits=self._commits)
        )

    async def changed(self, timeout_s: float) -> None:
        """Return when something may have changed, here or in another process."""
        await self._ready().control.changed(timeout_s)

    def broadcast(self, topic: str, data: bytes) -> None:
        """Send a message to the present subscribers, here and, with LISTEN, in other processes."""
        if self._connections is not None and self._connections.process == os.getpid():
            self._connections.control.broadcast(topic, data)
        self._subscribers.publish(topic, data)

    def subscribe(self, callback: Callable[[str, bytes], None]) -> AbstractContextManager[None]:
        """Call the callback with each broadcast."""
        if self._connections is not None:
            self._connections.control.listen()
        return self._subscribers.subscribe(callback)

    async def _query(self, query: reads.ReadQuery[T]) -> T:
        connections = self._ready()
        self._signal.mark_seen()
        return await connections.readers.query(query)

    def _ready(self) -> PostgresConnections:
        connections = self._connections
        if connections is None:
            raise StoreError(
                f"the store on {self.where} is not open",
                hint="open it first: async with Runtime(…) as rt",
            )
        if connections.process != os.getpid():
            raise StoreError(
                f"the store on {self.where} was opened by another process",
                hint="open a new store in the child process after a fork",
            )
        return connections
