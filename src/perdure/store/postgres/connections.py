"""Connections of an open PostgreSQL store, one kind per use."""

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from typing import Final

from perdure.errors import StoreError
from perdure.store.base import Entry, Lease, Lost, SuspectLimit, Unknown
from perdure.store.postgres import reads
from perdure.store.postgres.batcher import Batcher
from perdure.store.postgres.connection import Connector, Pool
from perdure.store.postgres.errors import is_database_error, is_row_error, pooler_error
from perdure.store.postgres.feed import PostgresFeed
from perdure.store.postgres.leases import LeaseRows, ServerClock
from perdure.store.postgres.notify import ControlConnection
from perdure.store.postgres.schema import Schema
from perdure.store.postgres.sql import statement
from perdure.store.postgres.url import PostgresAddress
from perdure.store.postgres.writer import PostgresWriter
from perdure.store.shared.signal import BroadcastCallback, Signal

OLDEST: Final = 130_000  # version of a server that the store supports
_READERS: Final = 4


def check_server(address: PostgresAddress, version: int, encoding: str, path: str) -> None:
    """Raise StoreError for a server that the store cannot use."""
    if version < OLDEST:
        raise StoreError(
            f"{address.where} is PostgreSQL {version // 10_000}; perdure needs 13 or newer",
            code="STORE_TOO_OLD",
            hint="upgrade the server",
        )
    if encoding != "UTF8":
        raise StoreError(
            f"{address.where} has the encoding {encoding}; perdure needs UTF8",
            hint="create the database with ENCODING 'UTF8' TEMPLATE template0",
        )
    if path != address.schema:
        raise pooler_error(address.where)


class PostgresConnections:
    """Connections of one open store; each is opened when it is first needed."""

    def __init__(
        self,
        connector: Connector,
        clock: ServerClock,
        signal: Signal,
        on_broadcast: BroadcastCallback,
        program: int,
    ) -> None:
        self.process = os.getpid()
        self._connector = connector
        self._clock = clock
        self.readers = Pool(connector, _READERS)
        self.entries = Batcher(self._entries, connector.explain, is_row_error)
        self.feed = PostgresFeed(self.readers)
        self.leases = LeaseRows(connector, clock, program)
        self.control = ControlConnection(connector, signal, on_broadcast, self.reap_dead)
        self.writer = PostgresWriter(
            connector, clock.now, self.control.signal_change, self.undo_claims
        )

    async def start(self, schema: Schema) -> None:
        """Connect and apply the missing schema steps. Raises StoreError."""
        connection = await self._connector.connect()
        try:
            check_server(self._connector.address, *await connection.fetchrow(statement("server")))
            await schema.apply_missing(connection)
            (now,) = await connection.fetchrow(statement("now"))
            self._clock.set_server_time(now)
        except BaseException as error:
            connection.raw.terminate()
            if isinstance(error, Exception) and is_database_error(error):
                raise self._connector.explain(error) from error
            raise
        self.readers.add(connection)

    async def close(self) -> None:
        """Finish the queued commits, signal them, and close every connection."""
        await self.writer.close()
        await self.control.close()
        await self.entries.close()
        async with asyncio.TaskGroup() as closing:
            closing.create_task(self.leases.close())
            closing.create_task(self.readers.close())
        await self._connector.close()

    async def _entries(self, keys: Sequence[tuple[str, str]]) -> list[Entry | None]:
        return await self.readers.query(partial(reads.get, keys=keys))

    async def claim(
        self,
        holder: str,
        kind: str,
        limit: int,
        only: str | None,
        suspects: SuspectLimit | None,
    ) -> list[Lease]:
        """Lease due streams to a holder. Raises Lost, or Unknown if it may have got leases."""
        try:
            return await self.leases.claim(holder, kind, limit, only, suspects)
        except Lost:
            await self.control.release_liveness_lock(holder)
            raise
        except Unknown:  # the holder was removed, and its streams are free
            await self.control.release_liveness_lock(holder)
            self.control.signal_change()
            raise

    async def undo_claims(self, leases: Sequence[Lease]) -> None:
        """Free the streams that a commit without a reply has claimed, if it was written."""
        if leases:
            await self.leases.undo_claims(leases)
            self.control.signal_change()

    async def reap(self, now: int) -> None:
        """Free the leases of expired holders, and signal it if there were any."""
        if await self.leases.reap(now=now):
            self.control.signal_change()

    async def reap_dead(self, holders: Sequence[str]) -> None:
        """Free the leases of these holders, whose processes have ended, and of expired ones."""
        await self.leases.reap(holders)

    async def join(self, holder: str, ttl_ms: int) -> int:
        """Create the holder's row. Raises Lost if the name is taken."""
        was_own = self.control.has_liveness_lock(holder)
        lock = await self.control.take_liveness_lock(holder)
        try:
            return await self.leases.join(holder, ttl_ms, lock)
        except StoreError:
            if not was_own:
                await self.control.release_liveness_lock(holder)
            raise

    async def renew(self, holder: str, ttl_ms: int) -> int:
        """Extend the holder's row. Raises Lost if it does not exist."""
        try:
            return await self.leases.renew(holder, ttl_ms)
        except Lost:
            await self.control.release_liveness_lock(holder)
            raise

    async def leave(self, holder: str, ttl_ms: int) -> int:
        """Free the holder's streams and remove its row. Raises Lost if it does not exist."""
        try:
            until = await self.leases.leave(holder, ttl_ms)
        finally:
            await self.control.release_liveness_lock(holder)
        self.control.signal_change()
        return until
