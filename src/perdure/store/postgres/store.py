"""The PostgreSQL store: one database, any number of processes and machines."""

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

import anyio

from perdure.errors import StoreError
from perdure.store.base import (
    Census,
    Check,
    Clock,
    Entry,
    Feed,
    Lease,
    Page,
    Put,
    Slice,
    StreamState,
    Write,
)
from perdure.store.judge import checked
from perdure.store.postgres import reads
from perdure.store.postgres.clock import ServerClock
from perdure.store.postgres.connection import Connector
from perdure.store.postgres.connections import Running
from perdure.store.postgres.schema import Schema, Step, known_steps
from perdure.store.postgres.url import Address, address_of
from perdure.store.shared.paging import END, place_of, position_of
from perdure.store.shared.signal import Signal, Subscribers

T = TypeVar("T")


class PostgresStore:
    """A store in a PostgreSQL database; it belongs to the event loop that opened it.

    `postgresql://user:password@host/database`, with `listen=off`, `advisory=off` or `schema=NAME`
    in the query; the rest of the query is PostgreSQL's own. With both off it works behind a pooler
    that gives each transaction another connection. `steps` are another program's, for tests.
    """

    def __init__(
        self, url: str, *, clock: Clock | None = None, steps: Sequence[Step] | None = None
    ) -> None:
        self._dial = Connector(address_of(url))
        self._clock = ServerClock(clock)
        self._schema = Schema(self._dial, steps or known_steps())
        # the server's clock, in ms since the epoch; itself, since a drive asks it thirty times
        self.now = self._clock.now
        self._signal = Signal()
        self._listeners = Subscribers()
        self._opening = anyio.Lock()
        self._running: Running | None = None
        self._commits = 0

    @property
    def address(self) -> Address:
        """Where the database is, password and all."""
        return self._dial.address

    @property
    def where(self) -> str:
        """Which database it is, without user and password."""
        return self._dial.address.where

    @property
    def sees_death(self) -> bool:
        """Whether a dead worker is noticed at once; else when its lease is over."""
        return self._dial.address.advisory

    async def open(self) -> None:
        """Connect, and take the steps of the schema that are missing and only add to it."""
        async with self._opening:
            if self._running is None:
                running = Running(
                    self._dial,
                    self._clock,
                    self._signal,
                    self._listeners.tell,
                    self._schema.newest,
                )
                await running.start(self._schema)
                self._running = running

    async def migrate(self) -> list[str]:
        """Take every step that is missing; answers their names. For a store that is not open.

        Raises Conflict if one takes something away that a living worker still needs.
        """
        line = await self._dial.line()
        try:
            return await self._schema.make(line, contract=True)
        finally:
            await line.close()

    async def close(self) -> None:
        """Finish what was queued and close the connections."""
        async with self._opening:
            running, self._running = self._running, None
            if running is not None:
                with anyio.CancelScope(shield=True):
                    await running.close()
                self._signal.ring()

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> dict[str, int]:
        """Write everything durably and answer the new heads, or raise and write nothing."""
        heads = await self._ready().writer.submit(checked(writes, puts, checks))
        self._commits += 1
        return heads

    async def claim(
        self, holder: str, kind: str, limit: int, *, only: str | None = None
    ) -> list[Lease]:
        """Take up to `limit` due streams, oldest first, after reaping dead holders."""
        self._signal.look()
        return await self._ready().claim(holder, kind, limit, only)

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        """Extend the holder's row and answer until when; ttl 0 leaves."""
        running = self._ready()
        if join:
            until = await running.join(holder, ttl_ms)
            if ttl_ms > 0:
                return until
        elif ttl_ms > 0:
            return await running.renew(holder, ttl_ms)
        return await running.leave(holder, ttl_ms)

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        """The records after `after`, oldest first; raises NoStream or Gone."""
        return await self._ask(partial(reads.read, stream=stream, after=after, limit=limit))

    async def get(self, kind: str, key: str) -> Entry | None:
        """One entry by its key, or None."""
        running = self._ready()
        self._signal.look()
        return await running.entries.answer((kind, key))

    async def find(
        self,
        kind: str,
        *,
        state: str | None = None,
        stream: str | None = None,
        due_before: int | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page:
        """Entries of a kind, by key; with `due_before` those due by then, by (due, key)."""
        place_of(after)
        conditions = {"kind": kind, "state": state, "stream": stream, "due_before": due_before}
        return await self._ask(partial(reads.find, conditions=conditions, after=after, limit=limit))

    async def entries_of(self, stream: str) -> Sequence[Entry]:
        """Every entry of a stream, by (kind, key)."""
        return await self._ask(partial(reads.entries_of, stream=stream))

    async def streams(self, after: str = "", limit: int = 500) -> Sequence[StreamState]:
        """Streams by their ids, gone ones too."""
        return await self._ask(partial(reads.streams, after=after, limit=limit))

    async def tail(self, cursor: str, limit: int = 500) -> Feed:
        """Records of all streams after the cursor, each exactly once."""
        position = 0 if cursor == END else position_of(cursor)
        running = self._ready()
        self._signal.look()
        if cursor == END:
            return await running.feed.end()
        return await running.feed.after(position, limit)

    async def census(self, kinds: Collection[str]) -> Census:
        """What there is at this moment, counted in indexes."""
        names = sorted(set(kinds))
        return await self._ask(
            partial(reads.census, kinds=names, now=self.now(), commits=self._commits)
        )

    async def changed(self, timeout_s: float) -> None:
        """Return when something may have changed, here or in another process."""
        await self._ready().control.changed(timeout_s)

    def broadcast(self, topic: str, data: bytes) -> None:
        """Tell whoever overhears now, here or, with LISTEN, in another process."""
        if self._running is not None and self._running.process == os.getpid():
            self._running.control.broadcast(topic, data)
        self._listeners.tell(topic, data)

    def subscribe(self, heard: Callable[[str, bytes], None]) -> AbstractContextManager[None]:
        """Be handed what is whispered meanwhile."""
        if self._running is not None:
            self._running.control.listen()
        return self._listeners.listening(heard)

    async def _ask(self, question: reads.Question[T]) -> T:
        running = self._ready()
        self._signal.look()
        return await running.readers.ask(question)

    def _ready(self) -> Running:
        running = self._running
        if running is None:
            raise StoreError(
                f"the store on {self.where} is not open",
                hint="open it first: async with Runtime(…) as rt",
            )
        if running.process != os.getpid():
            raise StoreError(
                f"the store on {self.where} was opened by another process",
                hint="open a store of its own after a fork",
            )
        return running
