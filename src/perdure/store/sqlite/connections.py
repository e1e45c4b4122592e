"""Threads and connections of an open SQLite store: the writer, the readers, and the watcher."""

import asyncio
import concurrent.futures
import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import anyio
from anyio import to_thread

from perdure.store.base import Clock, Heads, StoreRefusal, Unavailable
from perdure.store.judge import Commit
from perdure.store.shared.file_lock import WriteLock
from perdure.store.shared.private_files import mode_beside
from perdure.store.shared.signal import BroadcastCallback, Signal
from perdure.store.sqlite.commands import Command, CommandResult, Reap, Renew
from perdure.store.sqlite.open import explain_error, is_database_error
from perdure.store.sqlite.queued_queries import QueuedQueries, resolve
from perdure.store.sqlite.reads import Query, Readers
from perdure.store.sqlite.side_files import LivenessLock, WakeSocket
from perdure.store.sqlite.writer import Job, Outcome, SqliteWriter, ThreadFuture, WriterFiles

T = TypeVar("T")

_READERS = 4
_IN_A_ROW = 8
_POLL_S = 0.25


class OpenConnection(Protocol):
    """Opens a connection with our settings to a file that was checked to be ours."""

    def __call__(self, *, reader: bool) -> sqlite3.Connection:
        """Return a connection; one for a reader cannot write."""
        ...


class CommitFollower(Protocol):
    """Object that learns of each commit of this process once it is durable."""

    def prepare(self) -> None:
        """Prepare or check what is beside the file, before it is opened. Raises StoreError."""
        ...

    def start(self, connect: OpenConnection) -> None:
        """Start; connections can be opened now."""
        ...

    def add(self, commits: Sequence[tuple[Commit, Heads]]) -> None:
        """Take over commits, in the writer's thread, before their callers get a reply."""
        ...

    def write_now(self) -> None:
        """Return when everything that was committed before has been followed."""
        ...

    def stop(self) -> None:
        """Finish, and close all connections; no commit is under way."""
        ...


class _Forks:
    """Number of forks between this process and the one that imported this module."""

    count = 0

    def add(self) -> None:
        """Count a fork, in the child."""
        self.count += 1


forks = _Forks()
os.register_at_fork(after_in_child=forks.add)


class SqliteConnections:
    """Threads and connections of one open store, which report to its event loop."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        lock: WriteLock,
        connect: OpenConnection,
        signal: Signal,
        lock_wait_s: float,
    ) -> None:
        self.fork_count = forks.count
        self._path = path
        self._lock = lock
        self._lock_wait_s = lock_wait_s
        self._connect = connect
        self._signal = signal
        self._loop = asyncio.get_running_loop()
        self.follower: CommitFollower | None = None
        self.on_broadcast: BroadcastCallback | None = None  # called in the event loop
        mode = mode_beside(path)
        self._wake_socket = WakeSocket(
            path.with_name(f"{path.name}.bell"), self._forward_broadcast, mode
        )
        self._readers = Readers(lambda: connect(reader=True))
        self._query_count = 0
        self._running_queries = 0
        self._is_idle = asyncio.Event()
        self._reader_limit = anyio.CapacityLimiter(_READERS)
        self._liveness = LivenessLock(path.with_name(f"{path.name}.alive"), mode)
        write = partial(connect, reader=False)
        self._queued = QueuedQueries(self._loop, self._readers)
        files = WriterFiles(path, lock, self._liveness)
        self._writer = SqliteWriter(files, clock, write, self._deliver, self._queued)
        self._watcher = threading.Thread(
            target=self._run_watcher, name="perdure-watch", daemon=True
        )
        self._closing = False
        self._is_wake_due = False

    def start(self) -> None:
        """Start the threads."""
        self._wake_socket.open()
        self._writer.start()
        self._watcher.start()
        if self.follower is not None:
            self.follower.start(self._connect)

    async def close(self) -> None:
        """Finish the queued commands and the running queries, then stop.

        Connections are closed one after the other: of two that close at the same moment, neither
        is the last one, and the write-ahead log with its index is left beside the file.
        """
        while self._running_queries:
            self._is_idle = asyncio.Event()
            await self._is_idle.wait()
        await to_thread.run_sync(self._stop)

    def _stop(self) -> None:
        self._writer.stop(self._lock_wait_s)
        if self.follower is not None:
            self.follower.stop()
        self._closing = True
        self._wake_socket.stop()
        self._watcher.join()
        self._wake_socket.close()
        self._liveness.close()
        self._readers.close()
        self._writer.disconnect()
        self._lock.close()

    def write(self, command: Command) -> asyncio.Future[CommandResult]:
        """Submit a command; the future has its result, or its error, once it is durable."""
        result: asyncio.Future[CommandResult] = self._loop.create_future()
        self._writer.queue((command, result))
        if not self._is_wake_due:
            # After this round of the loop: what its other tasks submit shares the sync.
            self._is_wake_due = True
            self._loop.call_soon(self._wake_writer)
        return result

    def renew_in_thread(self, renew: Renew) -> CommandResult:
        """Renew a holder's row for a thread, which waits for it as long as the lease lasts."""
        result: ThreadFuture = concurrent.futures.Future()
        self._writer.queue((renew, result))
        self._writer.wake()
        try:
            return result.result(renew.ttl_ms / 1000)
        except concurrent.futures.TimeoutError:
            raise Unavailable(f"{self._path} could not be written in time") from None

    def _wake_writer(self) -> None:
        self._is_wake_due = False
        self._writer.wake()

    async def query(self, query: Query[T]) -> T:
        """Run a query: if it is small in the event loop, or by the writer; else in a thread."""
        self._running_queries += 1
        try:
            self._query_count += 1
            if self._query_count % _IN_A_ROW == 0:  # a task that only reads must let others run
                await asyncio.sleep(0)
            self._signal.mark_seen()
            try:
                queued = self._queued.submit(query)
                return self._readers.run_small(query) if queued is None else await queued
            except StoreRefusal:
                raise
            except Exception:  # noqa: BLE001 - TooLarge or any other: a thread has the time to retry
                return await to_thread.run_sync(self._run_query, query, limiter=self._reader_limit)
        finally:
            self._running_queries -= 1
            if not self._running_queries:
                self._is_idle.set()

    def broadcast(self, topic: str, data: bytes) -> None:
        """Send a message to the other processes; it may get lost."""
        self._wake_socket.broadcast(topic, data)

    def _run_query(self, query: Query[T]) -> T:
        try:
            return self._readers.run(query)
        except Exception as error:
            if is_database_error(error):
                raise explain_error(error, self._path) from error
            raise

    # --- in the writer's thread ---

    def _deliver(self, jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> None:
        is_news = any(map(_is_news, jobs, outcomes))
        if is_news and self.follower is not None:
            self.follower.add([*_commits(jobs, outcomes)])
        # The socket first, which releases the interpreter: once the loop is awake, both compete.
        if is_news:
            self._wake_socket.wake()
        if any(isinstance(result, concurrent.futures.Future) for _, result in jobs):
            jobs, outcomes = _settle_in_threads(jobs, outcomes)
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and the callers with it
            self._loop.call_soon_threadsafe(self._settle, jobs, outcomes, is_news)

    def _settle(self, jobs: Sequence[Job], outcomes: Sequence[Outcome], is_news: bool) -> None:
        resolve([result for _, result in jobs], outcomes)
        if is_news:
            self._signal.notify()

    # --- in the watcher's thread ---

    def _run_watcher(self) -> None:
        last_version: int | None = None
        connection: sqlite3.Connection | None = None
        while not self._closing:
            was_woken = self._wake_socket.wait(_POLL_S)
            self._writer.fail_waiting_jobs(self._lock_wait_s)
            try:
                connection = connection or self._connect(reader=True)
                (version,) = connection.execute("PRAGMA data_version").fetchone()
            except Exception:  # noqa: BLE001 - the next caller of the store gets the same error
                version = last_version
            if was_woken or version != last_version:
                last_version = version
                self._notify_loop()
        if connection is not None:
            connection.close()

    def _forward_broadcast(self, topic: str, data: bytes) -> None:
        if self.on_broadcast is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.on_broadcast, topic, data)

    def _notify_loop(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._signal.notify)


def _settle_in_threads(
    jobs: Sequence[Job], outcomes: Sequence[Outcome]
) -> tuple[Sequence[Job], Sequence[Outcome]]:
    """Settle the jobs of threads, which must not wait for the event loop; return the others."""
    rest: list[tuple[Job, Outcome]] = []
    for job, outcome in zip(jobs, outcomes, strict=True):
        if isinstance(job[1], concurrent.futures.Future):
            resolve([job[1]], [outcome])
        else:
            rest.append((job, outcome))
    return [job for job, _ in rest], [outcome for _, outcome in rest]


def _commits(jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> Iterator[tuple[Commit, Heads]]:
    """Yield the commits that were written."""
    for (command, _), outcome in zip(jobs, outcomes, strict=True):
        if isinstance(command, Commit) and isinstance(outcome, Heads):
            yield command, outcome


def _is_news(job: Job, outcome: Outcome) -> bool:
    """Return whether other processes should read: a commit was written, or a holder removed."""
    command, _ = job
    if isinstance(command, Renew):
        return command.ttl_ms <= 0
    if isinstance(command, Reap):
        return isinstance(outcome, int) and outcome > 0
    return isinstance(outcome, dict)
