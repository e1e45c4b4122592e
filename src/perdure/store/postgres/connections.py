"""What runs while a PostgreSQL store is open: its connections, each kind for one use."""

import os
from collections.abc import Sequence
from functools import partial
from typing import Final

import anyio

from perdure.errors import StoreError
from perdure.store.base import Entry, Lease, Lost, Unknown
from perdure.store.postgres import reads
from perdure.store.postgres.clock import ServerClock
from perdure.store.postgres.connection import Connector, Pool
from perdure.store.postgres.errors import is_of_one, pooler
from perdure.store.postgres.feed import Follower
from perdure.store.postgres.gather import Gather
from perdure.store.postgres.leases import Leases
from perdure.store.postgres.notify import Control
from perdure.store.postgres.schema import Schema
from perdure.store.postgres.sql import statement
from perdure.store.postgres.url import Address
from perdure.store.postgres.writer import Writer
from perdure.store.shared.signal import Overheard, Signal

OLDEST: Final = 130_000  # version of the server
_READERS: Final = 4


def check_server(address: Address, version: int, encoding: str, path: str) -> None:
    """Raises StoreError for a server that we cannot work on."""
    if version < OLDEST:
        raise StoreError(
            f"{address.where} is PostgreSQL {version // 10_000}, and must be 13 or newer",
            code="STORE_TOO_OLD",
            hint="upgrade the server",
        )
    if encoding != "UTF8":
        raise StoreError(
            f"{address.where} has the encoding {encoding}, and must have UTF8",
            hint="create the database with ENCODING 'UTF8' TEMPLATE template0",
        )
    if path != address.schema:
        raise pooler(address.where)


class Running:
    """The connections of one open store; each is opened when it is first needed."""

    def __init__(
        self,
        dial: Connector,
        clock: ServerClock,
        signal: Signal,
        overheard: Overheard,
        program: int,
    ) -> None:
        self.process = os.getpid()
        self._dial = dial
        self._clock = clock
        self.readers = Pool(dial, _READERS)
        self.entries = Gather(self._entries, dial.explained, is_of_one)
        self.feed = Follower(self.readers)
        self.leases = Leases(dial, clock, program)
        self.control = Control(dial, signal, overheard, self.leases.reap)
        self.writer = Writer(dial, clock.now, self.control.tell)

    async def start(self, schema: Schema) -> None:
        """Connect and make the schema; raises StoreError."""
        line = await self._dial.line()
        try:
            check_server(self._dial.address, *await line.fetchrow(statement("server")))
            await schema.make(line)
            (now,) = await line.fetchrow(statement("now"))
            self._clock.heard(now)
        except BaseException:
            line.connection.terminate()
            raise
        self.readers.keep(line)

    async def close(self) -> None:
        """Finish what is queued, say so, and close every connection."""
        await self.writer.close()
        await self.control.close()
        await self.entries.close()
        async with anyio.create_task_group() as closing:
            closing.start_soon(self.leases.close)
            closing.start_soon(self.readers.close)

    async def _entries(self, asked: Sequence[tuple[str, str]]) -> list[Entry | None]:
        return await self.readers.ask(partial(reads.get, asked=asked))

    async def claim(self, holder: str, kind: str, limit: int, only: str | None) -> list[Lease]:
        """The due streams that the holder gets; raises Lost, or Unknown if it may hold more."""
        try:
            return await self.leases.claim(holder, kind, limit, only)
        except Lost:
            await self.control.end_pulse(holder)
            raise
        except Unknown:  # its name is given up, and what it had is free for others
            await self.control.end_pulse(holder)
            self.control.tell()
            raise

    async def join(self, holder: str, ttl_ms: int) -> int:
        """Make the holder's row; raises Lost if the name is taken."""
        was_ours = self.control.shows(holder)
        pulse = await self.control.begin_pulse(holder)
        try:
            return await self.leases.join(holder, ttl_ms, pulse)
        except StoreError:
            if not was_ours:
                await self.control.end_pulse(holder)
            raise

    async def renew(self, holder: str, ttl_ms: int) -> int:
        """Extend the holder's row; raises Lost if there is none."""
        try:
            return await self.leases.renew(holder, ttl_ms)
        except Lost:
            await self.control.end_pulse(holder)
            raise

    async def leave(self, holder: str, ttl_ms: int) -> int:
        """Give everything back and remove the row; raises Lost if there is none."""
        try:
            until = await self.leases.leave(holder, ttl_ms)
        finally:
            await self.control.end_pulse(holder)
        self.control.tell()
        return until
