"""The one thread that writes a SQLite file: group commit, answers, checkpoints.

What queued up during the last fsync is the next transaction. Nobody is answered before COMMIT.
"""

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from perdure.errors import StoreError
from perdure.store.base import Clock, Unavailable, Unknown
from perdure.store.judge import Commit
from perdure.store.shared.file_lock import WriteLock
from perdure.store.sqlite.commands import Answer, Claim, Work, WriteRows
from perdure.store.sqlite.open import WAL_LIMIT_BYTES, explained, is_database_error
from perdure.store.sqlite.side_files import LivenessLock

_LARGEST_BATCH = 1000
_IDLE_S = 1.0


Job = tuple[Work, asyncio.Future[Answer]]  # a piece of work and who waits for it
Outcome = Answer | Exception
Deliver = Callable[[Sequence[Job], Sequence[Outcome]], None]


class Writer:
    """Takes work from the event loop, and answers once it is durable."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        lock: WriteLock,
        pulse: LivenessLock,
        connect: Callable[[], sqlite3.Connection],
        deliver: Deliver,
    ) -> None:
        self._path = path
        self._wal = f"{path}-wal"
        self._clock = clock
        self._lock = lock
        self._pulse = pulse
        self._connect = connect
        self._deliver = deliver
        self._connection: sqlite3.Connection | None = None
        self._rows: WriteRows | None = None
        self._jobs: deque[Job] = deque()
        # Released when there is work, taken by who does it: the cheapest wake-up of a thread.
        self._no_work = threading.Lock()
        self._no_work.acquire()
        self._stopping = False
        self._syncs = True
        self._checkpoint_above = WAL_LIMIT_BYTES
        self._wrote = False  # since the last checkpoint
        # A daemon: a process that forgets to close the store can still end.
        self._thread = threading.Thread(target=self._run, name="perdure-sqlite", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job; from the event loop's thread."""
        self._jobs.append(job)
        if self._no_work.locked():
            self._no_work.release()

    def stop(self, timeout_s: float) -> None:
        """Finish what is queued and end the thread; answers the rest if that takes too long."""
        self._stopping = True
        with contextlib.suppress(RuntimeError):  # there is work already
            self._no_work.release()
        self._thread.join(timeout_s)
        left = self._take()
        self._deliver(left, [StoreError("the store is closed") for _ in left])

    def give_up_after(self, wait_s: float) -> None:
        """Tell everybody who waits for a lock that somebody else has kept for so long."""
        since = self._lock.waiting_since
        if since is None or time.monotonic() - since < wait_s:
            return
        # Nothing is begun before the lock is there, so all of this leaves the queue untouched.
        jobs = self._take()
        holder = self._lock.holder()
        text = f"process {holder} has been writing {self._path} for {wait_s:.0f} s"
        hint = f"it may be stopped or hang: look at process {holder}"
        self._deliver(jobs, [Unavailable(text, hint=hint) for _ in jobs])

    # --- the thread ---

    def _run(self) -> None:
        while not self._stopping or self._jobs:
            # Taken before the jobs are: what comes later releases it again.
            if not self._no_work.acquire(timeout=_IDLE_S if self._wrote else -1):
                self._checkpoint_when_idle()
                continue
            while self._must_write():
                self._write()

    def _must_write(self) -> bool:
        """Whether something waits that needs the lock.

        Claims that would get nothing are answered here, by looking only, so that idle polling
        never writes. Not those behind a commit: they must see what that commit made due.
        """
        answered: list[Job] = []
        try:
            while job := self._next():
                if not self._is_idle(job[0]):
                    self._jobs.appendleft(job)
                    return True
                answered.append(job)
        finally:
            if answered:
                self._deliver(answered, [[] for _ in answered])
        return False

    def _next(self) -> Job | None:
        try:
            return self._jobs.popleft()
        except IndexError:  # empty, perhaps by another thread's doing
            return None

    def _is_idle(self, work: Work) -> bool:
        if not isinstance(work, Claim):
            return False
        try:
            return self._connected().has_nothing_for(work, self._clock.now())
        except Exception:  # noqa: BLE001 - the write that follows meets it again, and tells
            return False

    def _write(self) -> None:
        try:
            self._lock.acquire()
        except OSError as error:  # nothing is begun without it
            jobs, text = self._take(), f"{self._path}.lock cannot be locked: {error.strerror}"
            self._deliver(jobs, [Unavailable(text) for _ in jobs])
            return
        try:
            batch = self._take()
            outcomes = self._transaction(batch)
        finally:
            self._lock.release()
        self._wrote = True
        size = self._wal_size()
        self._deliver(batch, outcomes)
        self._checkpoint_when_large(size)

    def _take(self) -> list[Job]:
        batch: list[Job] = []
        while len(batch) < _LARGEST_BATCH and (job := self._next()):
            batch.append(job)
        return batch

    def _transaction(self, batch: Sequence[Job]) -> list[Outcome]:
        try:
            rows = self._connected()
            self._sync_at_commit(needed=any(isinstance(work, Commit) for work, _ in batch))
            self._execute("BEGIN IMMEDIATE")
            rows.begin()
            now = self._clock.now()
            outcomes: list[Outcome] = [rows.perform(work, now) for work, _ in batch]
            rows.flush()
        except Exception as error:  # noqa: BLE001 - no job may end this thread
            return self._after_failure(batch, error)
        try:
            self._execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - whatever it is, the commit may survive
            self.disconnect()
            reason = f"whether it was written is not known: {explained(error, self._path).message}"
            return [Unknown(reason, hint="read before writing again") for _ in batch]
        return outcomes

    def _sync_at_commit(self, *, needed: bool) -> None:
        """Claims and heartbeats are forgotten with their process, so they need not reach the disk.

        What a driver then writes takes them along: one sync is for all of the log before it.
        """
        if needed != self._syncs:
            self._execute(f"PRAGMA synchronous = {'FULL' if needed else 'NORMAL'}")
            self._syncs = needed

    def _after_failure(self, batch: Sequence[Job], error: Exception) -> list[Outcome]:
        """Nothing was written. A job that cannot be done must not take the others with it."""
        told = self._explained(error)
        if isinstance(told, Unavailable):
            self.disconnect()
            return [self._explained(error) for _ in batch]
        self._roll_back()
        if len(batch) == 1:
            return [told]
        return [self._transaction([job])[0] for job in batch]

    def _explained(self, error: Exception) -> Exception:
        if isinstance(error, StoreError):
            return type(error)(error.message, hint=error.hint)
        return explained(error, self._path) if is_database_error(error) else error

    # --- the connection ---

    def _connected(self) -> WriteRows:
        if self._rows is None:
            self._connection = self._connect()
            self._syncs = True
            self._rows = WriteRows(self._connection, self._pulse)
        return self._rows

    def _execute(self, sql: str) -> sqlite3.Cursor:
        if self._connection is None:
            raise StoreError("the writer is not connected")
        return self._connection.execute(sql)

    def _roll_back(self) -> None:
        if self._rows is not None:
            self._rows.forget()
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._execute("ROLLBACK")
        except Exception:  # noqa: BLE001 - a connection that cannot do this is of no use
            self.disconnect()

    def disconnect(self) -> None:
        """Close the connection; the next write opens another."""
        connection, self._connection, self._rows = self._connection, None, None
        if connection is None:
            return
        # The last connection's close is a checkpoint. Who finds the lock taken is not the last.
        locked = self._lock.try_acquire()
        with contextlib.suppress(Exception):
            connection.close()
        if locked:
            self._lock.release()

    # --- checkpoints: only here, only under the lock, never while somebody waits for an answer ---

    def _checkpoint_when_large(self, size: int) -> None:
        if size > self._checkpoint_above:
            with contextlib.suppress(OSError):
                self._lock.acquire()
                self._checkpoint()
            # A reader may have kept it from going back to the start: then wait for some more.
            self._checkpoint_above = max(size + WAL_LIMIT_BYTES // 4, WAL_LIMIT_BYTES)
        elif size <= WAL_LIMIT_BYTES:
            self._checkpoint_above = WAL_LIMIT_BYTES

    def _checkpoint_when_idle(self) -> None:
        with contextlib.suppress(OSError):
            if self._wrote and self._lock.try_acquire():
                self._checkpoint()

    def _checkpoint(self) -> None:
        """Copy the log into the database; the caller has taken the lock, this gives it back."""
        try:
            if self._connection is not None:
                self._execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._wrote = False
        except Exception:  # noqa: BLE001 - the log is whole; the next write meets it too
            self.disconnect()
        finally:
            self._lock.release()

    def _wal_size(self) -> int:
        try:
            return os.stat(self._wal).st_size  # noqa: PTH116 - after every commit: half the time
        except OSError:
            return 0
