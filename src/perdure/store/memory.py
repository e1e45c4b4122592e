"""The reference backend: the contract on plain dictionaries, for tests and work that may be lost.

Nothing is awaited inside an operation, so each operation is atomic within its event loop. Only a
recorder is awaited, and then the operations that could contradict its commit wait for it.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Unpack

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
    Lost,
    Page,
    Put,
    Record,
    Slice,
    StoreRefusal,
    StreamState,
    SuspectLimit,
    WallClock,
    Write,
)
from perdure.store.judge import Changes, Commit, check_commit, judge
from perdure.store.shared.paging import END, feed_position, growth_of
from perdure.store.shared.queries import EntryQuery, ListingQuery
from perdure.store.shared.signal import Signal, Subscribers
from perdure.store.shared.tables import LeaseChanges, Tables

Recorder = Callable[[Changes], Awaitable[None]]  # stores the records of a commit elsewhere


class MemoryStore:
    """Store that ends with its process."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or WallClock()
        self._signal = Signal()
        self._subscribers = Subscribers()
        self._closed = True
        self._tables = Tables()
        self._records: dict[str, list[Record]] = {}
        self._feed: list[Record] = []
        self._positions = count(1)
        self._last_position = 0
        self._commits = 0
        self._recorders: dict[str, Recorder] = {}
        self._turn = anyio.Lock()  # of commits with a recorder, and of changes of leases
        self._tasks: set[asyncio.Task[Heads]] = set()

    @property
    def identity(self) -> str:
        """Name of the data: a process that looks for them knows only the folder they belong to."""
        return f"memory:{Path.cwd()}"

    def set_recorder(self, name: str, recorder: Recorder | None) -> None:
        """Await this recorder with the changes of every commit before they are made.

        If it raises, the commit fails and changes nothing. None removes it.
        """
        self._recorders.pop(name, None)
        if recorder is not None:
            self._recorders[name] = recorder

    def now(self) -> int:
        """Return the store's time, in ms since the epoch."""
        return self._clock.now()

    async def open(self) -> None:
        """Open the store; after `close`, again with the same content."""
        self._closed = False

    async def close(self) -> None:
        """Refuse every operation until the next `open`."""
        self._closed = True
        self._signal.notify()

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        """Write everything and return the new heads, or raise and write nothing."""
        commit = check_commit(writes, puts, checks)
        self._check_open()
        if not self._recorders:
            return self._commit(self._judge(commit))
        # In a task of its own: cancelling the caller must not leave a commit half recorded.
        task = asyncio.get_running_loop().create_task(self._record_and_commit(commit))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _record_and_commit(self, commit: Commit) -> Heads:
        async with self._turn:
            changes = self._judge(commit)
            for recorder in tuple(self._recorders.values()):
                await recorder(changes)
            return self._commit(changes)

    def _judge(self, commit: Commit) -> Changes:
        now, tables = self.now(), self._tables
        outcome = judge(commit, tables.rows(commit), now, tables.alive(commit.claimants(), now))
        if isinstance(outcome, StoreRefusal):
            raise outcome
        return outcome

    def _commit(self, changes: Changes) -> Heads:
        self._apply(changes)
        self._commits += 1
        self._signal.notify()
        return changes.heads()

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        """Return the records after `after`, oldest first. Raises NoStream or Gone."""
        self._check_open()
        row = self._tables.stream(stream)
        start = max(after, 0)
        end = None if limit is None else start + max(limit, 0)
        records = self._records.get(stream, [])[start:end]
        return Slice(tuple(records), row.head, row.holder, row.due, row.tries)

    async def get(self, kind: str, key: str) -> Entry | None:
        """Return the entry with this key, or None."""
        self._check_open()
        return self._tables.entry(kind, key)

    async def find(self, kind: str, **options: Unpack[FindOptions]) -> Page:
        """Return entries of a kind by key; with `due_before` those due by then, by (due, key)."""
        self._check_open()
        return self._tables.find(EntryQuery.of(kind, options))

    async def find_listed(self, kind: str, listing: str, **options: Unpack[ListingOptions]) -> Page:
        """Return the entries of a listing in an order, by an index."""
        self._check_open()
        return self._tables.find_listed(ListingQuery.of(kind, listing, options))

    async def entries_of(self, stream: str) -> Sequence[Entry]:
        """Return every entry of a stream by (kind, key)."""
        self._check_open()
        return self._tables.entries_of(stream)

    async def streams(self, after: str = "", limit: int = 500) -> Sequence[StreamState]:
        """Return streams by id, gone ones too."""
        self._check_open()
        return self._tables.stream_states(after, limit)

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
        self._check_open()
        async with self._exclusive():
            changes, leases = self._tables.claim(holder, kind, limit, only, suspects, self.now())
            self._apply_leases(changes)
        if isinstance(leases, Lost):
            raise leases
        return leases

    async def reap(self, now: int) -> None:
        """Free the leases of the holders whose rows have expired at `now`."""
        self._check_open()
        async with self._exclusive():
            self._apply_leases(self._tables.reap(now))

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        """Extend the holder's row and return its new end; ttl 0 removes the row."""
        self._check_open()
        # A heartbeat never waits for a recorder, however slow that is: it changes no stream.
        async with self._exclusive() if ttl_ms <= 0 else nullcontext():
            changes, until = self._tables.renew(holder, ttl_ms, join, self.now())
            self._apply_leases(changes)
        return until

    async def tail(self, cursor: str, limit: int = 500) -> Feed:
        """Return records of all streams after the cursor, each exactly once."""
        self._check_open()
        if cursor == END:
            return Feed((), str(self._feed[-1].pos if self._feed else 0))
        start = bisect_right(self._feed, feed_position(cursor), key=attrgetter("pos"))
        records = self._feed[start : start + max(limit, 0)]
        return Feed(tuple(records), str(records[-1].pos) if records else cursor)

    async def growth(self, cursor: str, limit: int = 500) -> Growth:
        """Return the streams that have grown since the cursor."""
        return growth_of(await self.tail(cursor, limit), limit)

    async def census(self, kinds: Collection[str]) -> Census:
        """Count what exists at this moment."""
        self._check_open()
        return self._tables.census(kinds, self.now(), self._last_position, self._commits)

    async def changed(self, timeout_s: float) -> None:
        """Return when something may have changed since this task last read."""
        await self._signal.wait(timeout_s)

    def broadcast(self, topic: str, data: bytes) -> None:
        """Send a message to the present subscribers."""
        self._subscribers.publish(topic, data)

    def subscribe(self, callback: Callable[[str, bytes], None]) -> AbstractContextManager[None]:
        """Call the callback with each broadcast."""
        return self._subscribers.subscribe(callback)

    def _exclusive(self) -> AbstractAsyncContextManager[None]:
        """Return a context without a commit that is being recorded."""
        return self._turn if self._recorders else nullcontext()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(
                "the store in memory is not open",
                hint="open it first: async with Runtime(…) as rt",
            )
        self._signal.mark_seen()

    def _apply(self, changes: Changes) -> None:
        self._tables.apply_commit(changes)
        for stream, seq, at, new in changes.records:
            self._last_position = next(self._positions)
            record = Record(new.type, new.data, at, seq, self._last_position, stream)
            self._records.setdefault(stream, []).append(record)
            self._feed.append(record)
        for stream in changes.erased:
            self._records[stream] = []
            self._feed = [record for record in self._feed if record.stream != stream]

    def _apply_leases(self, changes: LeaseChanges) -> None:
        self._tables.apply_leases(changes)
        if any(until is None for until in changes.holders.values()):
            self._signal.notify()
