"""The SQLite store: one file, any number of processes, every acknowledged commit on the disk."""

import os
import sqlite3
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import cast

import anyio
from anyio import to_thread

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
    Unavailable,
    WallClock,
    Write,
)
from perdure.store.judge import checked
from perdure.store.shared.file_lock import WriteLock
from perdure.store.shared.paging import END, position_of
from perdure.store.shared.signal import Signal, Subscribers
from perdure.store.sqlite import reads, streams
from perdure.store.sqlite.commands import Claim, Renew
from perdure.store.sqlite.connections import Running
from perdure.store.sqlite.open import (
    Connect,
    check_ours,
    check_place,
    explained,
    is_database_error,
    migrate,
    python_connect,
    settled,
)


class SqliteStore:
    """A store in one SQLite file; it belongs to the event loop that opened it.

    `connect` makes the connections, for another SQLite than Python's own: it takes the path and
    answers what `sqlite3.connect` would, in autocommit and for use by any thread. Of that are used:
    `execute`, `executemany`, `close`, `in_transaction`, `Error`; of cursors `fetchone`, `fetchall`.
    """

    lock_wait_s = 30.0  # how long a write waits for another process before it is Unavailable

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        connect: Connect | None = None,
    ) -> None:
        if os.fspath(path) in {"", ":memory:"}:
            raise ValueError("a SQLite store needs a file; MemoryStore needs none")
        self._path = Path(path).absolute()
        self._clock = clock or WallClock()
        self._new_connection = connect or python_connect
        # the machine's clock, in ms since the epoch; itself, since a drive asks it thirty times
        self.now = self._clock.now
        self._signal = Signal()
        self._listeners = Subscribers()
        self._opening = anyio.Lock()
        self._running: Running | None = None
        self._commits = 0

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._path

    async def open(self) -> None:
        """Create the file or bring its schema up to date, and start the writer."""
        async with self._opening:
            if self._running is None:
                lock = await to_thread.run_sync(self._prepare)
                running = Running(
                    self._path, self._clock, lock, self._connect, self._signal, self.lock_wait_s
                )
                running.overheard = self._listeners.tell
                running.start()
                self._running = running

    async def close(self) -> None:
        """Finish what was queued, stop the threads and close the file."""
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
        heads = await self._ready().write(checked(writes, puts, checks))
        self._commits += 1
        return cast("dict[str, int]", heads)

    async def claim(
        self, holder: str, kind: str, limit: int, *, only: str | None = None
    ) -> list[Lease]:
        """Take up to `limit` due streams, oldest first, after reaping dead holders."""
        self._signal.look()
        return cast("list[Lease]", await self._ready().write(Claim(holder, kind, limit, only)))

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        """Extend the holder's row and answer until when; ttl 0 leaves."""
        return cast("int", await self._ready().write(Renew(holder, ttl_ms, join)))

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        """The records after `after`, oldest first; raises NoStream or Gone."""
        return await self._ready().ask(partial(reads.read, stream=stream, after=after, limit=limit))

    async def get(self, kind: str, key: str) -> Entry | None:
        """One entry by its key, or None."""
        return await self._ready().ask(partial(reads.get, kind=kind, key=key))

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
        conditions = {"kind": kind, "state": state, "stream": stream, "due_before": due_before}
        return await self._ready().ask(
            partial(reads.find, conditions=conditions, after=after, limit=limit)
        )

    async def entries_of(self, stream: str) -> Sequence[Entry]:
        """Every entry of a stream, by (kind, key)."""
        return await self._ready().ask(partial(streams.entries_of, stream=stream))

    async def streams(self, after: str = "", limit: int = 500) -> Sequence[StreamState]:
        """Streams by their ids, gone ones too."""
        return await self._ready().ask(partial(streams.states, after=after, limit=limit))

    async def tail(self, cursor: str, limit: int = 500) -> Feed:
        """Records of all streams after the cursor, each exactly once."""
        if cursor == END:
            return await self._ready().ask(reads.end)
        return await self._ready().ask(
            partial(reads.tail, position=position_of(cursor), limit=limit)
        )

    async def census(self, kinds: Collection[str]) -> Census:
        """What there is at this moment, counted in indexes."""
        return await self._ready().ask(
            partial(reads.census, kinds=sorted(set(kinds)), now=self.now(), commits=self._commits)
        )

    async def changed(self, timeout_s: float) -> None:
        """Return when something may have changed, here or in another process."""
        self._ready()
        await self._signal.wait(timeout_s)

    def broadcast(self, topic: str, data: bytes) -> None:
        """Tell whoever overhears now, here or in another process on this machine."""
        if self._running is not None and self._running.process == os.getpid():
            self._running.broadcast(topic, data)
        self._listeners.tell(topic, data)

    def subscribe(self, heard: Callable[[str, bytes], None]) -> AbstractContextManager[None]:
        """Be handed what is whispered meanwhile."""
        return self._listeners.listening(heard)

    def _ready(self) -> Running:
        running = self._running
        if running is None:
            raise StoreError(
                f"the store on {self._path} is not open",
                hint="open it first: async with Runtime(…) as rt",
            )
        if running.process != os.getpid():
            raise StoreError(
                f"the store on {self._path} was opened by another process",
                hint="open a store of its own after a fork",
            )
        return running

    def _prepare(self) -> WriteLock:
        """Make the file ready for use, and the lock beside it."""
        check_place(self._path)
        lock = WriteLock(f"{self._path}.lock")
        try:
            lock.open()
            self._migrate(lock)
        except BaseException as error:
            lock.close()
            if isinstance(error, OSError):
                raise StoreError(
                    f"{self._path.parent} cannot be written: {error.strerror}",
                    hint="the database needs files beside it; check who may write there",
                ) from error
            raise
        return lock

    def _migrate(self, lock: WriteLock) -> None:
        if not lock.acquire_within(self.lock_wait_s):
            raise Unavailable(
                f"process {lock.holder()} keeps {self._path} locked",
                hint=f"it may be stopped or hang: look at process {lock.holder()}",
            )
        try:
            connection = self._new_connection(str(self._path))
            try:
                migrate(settled(connection), self._path)
            finally:
                connection.close()
        except Exception as error:
            if is_database_error(error):
                raise explained(error, self._path) from error
            raise
        finally:
            lock.release()

    def _connect(self, *, reader: bool) -> sqlite3.Connection:
        connection = settled(self._new_connection(str(self._path)), reader=reader)
        check_ours(connection, self._path, new=False)
        return connection
