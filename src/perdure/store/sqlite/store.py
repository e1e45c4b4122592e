"""The SQLite backend: one file, any number of processes, every acknowledged commit on disk."""

import os
import shutil
import sqlite3
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Unpack, cast

import anyio
from anyio import to_thread

from perdure.errors import Corrupt, StoreError
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
    Unavailable,
    WallClock,
    Write,
)
from perdure.store.judge import check_commit
from perdure.store.shared.file_lock import WriteLock
from perdure.store.shared.paging import (
    END,
    feed_position,
    growth_of,
)
from perdure.store.shared.private_files import create_file, mode_beside
from perdure.store.shared.queries import EntryQuery, ListingQuery
from perdure.store.shared.signal import Signal, Subscribers
from perdure.store.sqlite import reads
from perdure.store.sqlite.commands import Claim, Reap, Renew
from perdure.store.sqlite.connections import CommitFollower, SqliteConnections, forks
from perdure.store.sqlite.listings import entries_of, find_listed, stream_states
from perdure.store.sqlite.open import (
    Connect,
    apply_settings,
    check_database,
    check_not_emptied,
    check_path,
    explain_error,
    is_database_error,
    migrate,
    python_connect,
)
from perdure.store.sqlite.salvage import Salvage


class SqliteStore:
    """Store in one SQLite file; it belongs to the event loop that opened it.

    `connect` opens connections of another SQLite than Python's own: it takes the path and returns
    what `sqlite3.connect` would, in autocommit mode and usable by any thread. The store uses
    `execute`, `executemany`, `close`, `in_transaction` and `Error` of a connection, and `fetchone`
    and `fetchall` of a cursor. `follower` learns of each commit of this process.
    """

    lock_wait_s = 30.0  # after which a write that waits for another process is Unavailable

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        connect: Connect | None = None,
        follower: CommitFollower | None = None,
    ) -> None:
        if os.fspath(path) in {"", ":memory:"}:
            raise ValueError("a SQLite store needs a file; use MemoryStore for a store in memory")
        self._path = Path(path).absolute()
        self._clock = clock or WallClock()
        self._new_connection = connect or python_connect
        self.follower = follower
        # The clock's own method: a drive calls it thirty times, and a wrapper would cost.
        self.now = self._clock.now
        self._signal = Signal()
        self._subscribers = Subscribers()
        self._opening = anyio.Lock()
        self._connections: SqliteConnections | None = None
        self._commits = 0

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._path

    @property
    def identity(self) -> str:
        """Name of the data: equal in all processes of a machine that use them."""
        return f"sqlite:{self._path.resolve()}"

    def free_bytes(self) -> int:
        """Return the free space of its disk."""
        return shutil.disk_usage(self._path.parent).free

    async def open(self) -> None:
        """Create the file or bring its schema up to date, and start the writer."""
        async with self._opening:
            if self._connections is None:
                lock = await to_thread.run_sync(self._prepare)
                connections = SqliteConnections(
                    self._path, self._clock, lock, self._connect, self._signal, self.lock_wait_s
                )
                connections.on_broadcast = self._subscribers.publish
                connections.follower = self.follower
                connections.start()
                self._connections = connections

    async def close(self) -> None:
        """Finish the queued commands, stop the threads and close the file."""
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
        heads: Any = await self._ready().write(check_commit(writes, puts, checks))
        self._commits += 1
        if self.follower is not None and any(write.erase for write in writes):
            await to_thread.run_sync(self.follower.write_now)  # so that nothing of it is left
        return heads  # type: ignore[no-any-return]

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
        claim = Claim(holder, kind, limit, only, suspects)
        return cast("list[Lease]", await self._ready().write(claim))

    async def reap(self, now: int) -> None:
        """Free the leases of expired holders, and of those whose process has ended."""
        await self._ready().write(Reap(now))

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        """Extend the holder's row and return its new end; ttl 0 removes the row."""
        return cast("int", await self._ready().write(Renew(holder, ttl_ms, join)))

    def renew_in_thread(self, holder: str, ttl_ms: int) -> int:
        """Extend the holder's row for a thread, without the event loop."""
        return cast("int", self._ready().renew_in_thread(Renew(holder, ttl_ms, join=False)))

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        """Return the records after `after`, oldest first. Raises NoStream or Gone."""
        return await self._ready().query(
            partial(reads.read, stream=stream, after=after, limit=limit)
        )

    async def get(self, kind: str, key: str) -> Entry | None:
        """Return the entry with this key, or None."""
        return await self._ready().query(partial(reads.get, kind=kind, key=key))

    async def find(self, kind: str, **options: Unpack[FindOptions]) -> Page:
        """Return entries of a kind by key; with `due_before` those due by then, by (due, key)."""
        query = EntryQuery.of(kind, options)
        try:
            return await self._ready().query(partial(reads.find, query=query))
        except Corrupt:  # a damaged page: a list has at least the other entries
            return (await self._salvage()).find(query)

    async def find_listed(self, kind: str, listing: str, **options: Unpack[ListingOptions]) -> Page:
        """Return the entries of a listing in an order, by an index."""
        query = ListingQuery.of(kind, listing, options)
        try:
            return await self._ready().query(partial(find_listed, query=query))
        except Corrupt:
            return (await self._salvage()).find_listed(query)

    async def _salvage(self) -> Salvage:
        return await to_thread.run_sync(partial(Salvage.load, self._path, records=False))

    async def entries_of(self, stream: str) -> Sequence[Entry]:
        """Return every entry of a stream by (kind, key)."""
        return await self._ready().query(partial(entries_of, stream=stream))

    async def streams(self, after: str = "", limit: int = 500) -> Sequence[StreamState]:
        """Return streams by id, gone ones too."""
        return await self._ready().query(partial(stream_states, after=after, limit=limit))

    async def tail(self, cursor: str, limit: int = 500) -> Feed:
        """Return records of all streams after the cursor, each exactly once."""
        if cursor == END:
            return await self._ready().query(reads.end)
        return await self._ready().query(
            partial(reads.tail, position=feed_position(cursor), limit=limit)
        )

    async def growth(self, cursor: str, limit: int = 500) -> Growth:
        """Return the streams that have grown since the cursor, without reading the records."""
        if cursor == END:
            return growth_of(await self.tail(END), 0)
        return await self._ready().query(
            partial(reads.growth, position=feed_position(cursor), limit=limit)
        )

    async def census(self, kinds: Collection[str]) -> Census:
        """Count what exists at this moment, by indexes."""
        return await self._ready().query(
            partial(reads.census, kinds=sorted(set(kinds)), now=self.now(), commits=self._commits)
        )

    async def changed(self, timeout_s: float) -> None:
        """Return when something may have changed, here or in another process."""
        self._ready()
        await self._signal.wait(timeout_s)

    def broadcast(self, topic: str, data: bytes) -> None:
        """Send a message to the present subscribers, here and in other processes of the machine."""
        if self._connections is not None and self._connections.fork_count == forks.count:
            self._connections.broadcast(topic, data)
        self._subscribers.publish(topic, data)

    def subscribe(self, callback: Callable[[str, bytes], None]) -> AbstractContextManager[None]:
        """Call the callback with each broadcast."""
        return self._subscribers.subscribe(callback)

    def _ready(self) -> SqliteConnections:
        connections = self._connections
        if connections is None:
            raise StoreError(
                f"the store on {self._path} is not open",
                hint="open it first: async with Runtime(…) as rt",
            )
        if connections.fork_count != forks.count:
            raise StoreError(
                f"the store on {self._path} was opened by another process",
                hint="open a new store in the child process after a fork",
            )
        return connections

    def _prepare(self) -> WriteLock:
        """Create or migrate the file, and return the lock beside it."""
        if self.follower is not None:
            self.follower.prepare()
        check_path(self._path)
        lock = WriteLock(f"{self._path}.lock", mode_beside(self._path))
        try:
            lock.open()
            self._migrate(lock)
        except BaseException as error:
            lock.close()
            if isinstance(error, OSError):
                raise StoreError(
                    f"{self._path.parent} cannot be written: {error.strerror}",
                    hint="the database needs files beside it: check the directory's permissions",
                ) from error
            raise
        return lock

    def _migrate(self, lock: WriteLock) -> None:
        if not lock.acquire_within(self.lock_wait_s):
            raise Unavailable(
                f"{lock.holder()} keeps {lock.path} locked",
                hint=f"it may be stopped or hung: check {lock.holder()}",
            )
        try:
            check_not_emptied(self._path)
            create_file(self._path)  # SQLite gives the files beside it the same mode
            connection = self._new_connection(str(self._path))
            try:
                migrate(apply_settings(connection), self._path)
            finally:
                connection.close()
            lock.mark()
        except Exception as error:
            if is_database_error(error):
                raise explain_error(error, self._path) from error
            raise
        finally:
            lock.release()

    def _connect(self, *, reader: bool) -> sqlite3.Connection:
        connection = apply_settings(self._new_connection(str(self._path)), reader=reader)
        check_database(connection, self._path, new=False)
        return connection
