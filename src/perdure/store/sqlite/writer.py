"""The one thread that writes a SQLite file: group commit, results, WAL checkpoints.

The commands that queued up during one fsync form the next transaction. No caller gets a result
before COMMIT.
"""

import asyncio
import concurrent.futures
import contextlib
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from perdure.errors import StoreError
from perdure.store.base import Clock, Heads, Lease, Unavailable, Unknown
from perdure.store.judge import Commit
from perdure.store.shared.file_lock import REPORT_S, WriteLock
from perdure.store.sqlite.commands import (
    Claim,
    Command,
    CommandExecutor,
    CommandResult,
    Reap,
    Renew,
)
from perdure.store.sqlite.open import (
    WAL_LIMIT_BYTES,
    explain_error,
    is_commit_undone,
    is_database_error,
)
from perdure.store.sqlite.queued_queries import QueuedQueries
from perdure.store.sqlite.side_files import LivenessLock

_LARGEST_BATCH = 1000
_MANY_RECORDS = 10_000  # of a batch: about 0.1 s
_FEW_RECORDS = 1_000  # of a batch for which a query of the event loop can wait
_IDLE_S = 1.0


ThreadFuture = concurrent.futures.Future[CommandResult]
Job = tuple[Command, asyncio.Future[CommandResult] | ThreadFuture]  # with the caller's future
Outcome = CommandResult | Exception
Deliver = Callable[[Sequence[Job], Sequence[Outcome]], None]


class WriterFiles(NamedTuple):
    """The database of a writer, and the locks beside it."""

    path: Path
    lock: WriteLock
    liveness: LivenessLock


class SqliteWriter:
    """Executes commands from the event loop and delivers their results once they are durable."""

    def __init__(
        self,
        files: WriterFiles,
        clock: Clock,
        connect: Callable[[], sqlite3.Connection],
        deliver: Deliver,
        queued: QueuedQueries,
    ) -> None:
        self._path, self._lock, self._liveness = files
        self._wal = f"{files.path}-wal"
        self._clock = clock
        self._connect = connect
        self._deliver = deliver
        self._queued = queued
        self._connection: sqlite3.Connection | None = None
        self._commands: CommandExecutor | None = None
        self._jobs: deque[Job] = deque()
        # Released when jobs are queued, acquired by the thread: the cheapest wake-up of a thread.
        self._no_jobs = threading.Lock()
        self._no_jobs.acquire()
        self._stopping = False
        self._syncs = True
        self._checkpoint_above = WAL_LIMIT_BYTES
        self._wrote = False  # since the last WAL checkpoint
        # Rises with each connection: while none was open, others may have written unnoticed. It
        # begins at another number each time: no commit relies on what was known before a close.
        self._foreign_writes = time.time_ns()
        self._reported_wait: float | None = None  # the last wait for the lock that was logged
        self._unknown_leases: list[Lease] = []  # of commits without a reply, to be undone
        # A daemon, so that a process that never closes the store can still end.
        self._thread = threading.Thread(target=self._run, name="perdure-sqlite", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def queue(self, job: Job) -> None:
        """Queue a job, which `wake` lets the writer take.

        Heartbeats are first: long commits before them could take longer than a lease.
        """
        if _is_heartbeat(job[0]):
            self._jobs.appendleft(job)
        else:
            self._jobs.append(job)

    def wake(self) -> None:
        """Let the writer take the queued jobs."""
        if self._no_jobs.locked():
            with contextlib.suppress(RuntimeError):  # another thread has just done it
                self._no_jobs.release()

    def stop(self, timeout_s: float) -> None:
        """Finish the queued jobs and end the thread; jobs that take longer fail."""
        self._stopping = True
        with contextlib.suppress(RuntimeError):  # jobs are queued already
            self._no_jobs.release()
        self._thread.join(timeout_s)
        rest = self._take_all()
        self._deliver(rest, [StoreError("the store is closed") for _ in rest])

    def fail_waiting_jobs(self, wait_s: float) -> None:
        """Fail the queued jobs if another process has kept the lock for this long.

        A wait of some seconds is logged, once.
        """
        since = self._lock.waiting_since
        waited_s = 0.0 if since is None else time.monotonic() - since
        if waited_s > REPORT_S and since != self._reported_wait:
            self._reported_wait = since
            self._lock.report_wait()
        if since is None or waited_s < wait_s:
            return
        # No job starts before the lock is taken, so none of these has written anything.
        jobs = self._take_all()
        holder = self._lock.holder()
        text = f"{holder} has kept {self._lock.path} locked for {wait_s:.0f} s"
        hint = f"it may be stopped or hung: check {holder}"
        self._deliver(jobs, [Unavailable(text, hint=hint) for _ in jobs])

    # --- the thread ---

    def _run(self) -> None:
        while not self._stopping or self._jobs:
            # Acquired before the jobs are taken: a later job releases it again.
            if not self._no_jobs.acquire(timeout=_IDLE_S if self._wrote else -1):
                self._checkpoint_when_idle()
                continue
            while self._has_writes():
                self._write()

    def _has_writes(self) -> bool:
        """Return whether a queued command needs the write lock.

        Claims and reaps that would change nothing are completed here by reading only, so that idle
        polling never writes; not those behind a commit, which may make streams due.
        """
        completed: list[Job] = []
        try:
            while job := self._next():
                if not self._is_idle(job[0]):
                    self._jobs.appendleft(job)
                    return True
                completed.append(job)
        finally:
            if completed:
                self._deliver(completed, [[] for _ in completed])
        return False

    def _next(self) -> Job | None:
        try:
            return self._jobs.popleft()
        except IndexError:  # empty, perhaps because another thread took the last one
            return None

    def _is_idle(self, command: Command) -> bool:
        if self._unknown_leases or not isinstance(command, Claim | Reap):
            return False
        try:
            return self._executor().has_nothing_for(command, self._clock.now())
        except Exception:  # noqa: BLE001 - the write that follows raises and reports it
            return False

    def _write(self) -> None:
        try:
            self._lock.acquire()
        except OSError as error:  # no job starts without the lock
            jobs, text = self._take_all(), f"{self._path}.lock cannot be locked: {error.strerror}"
            self._deliver(jobs, [Unavailable(text) for _ in jobs])
            return
        try:
            batch, records = self._take()
            is_short = records <= _FEW_RECORDS and not any(_has_erase(job[0]) for job in batch)
            outcomes = self._transaction(batch, is_short=is_short)
        finally:
            self._lock.release()
        self._wrote = True
        size = self._wal_size()
        self._deliver(batch, outcomes)
        self._checkpoint_when_large(size)

    def _take(self) -> tuple[list[Job], int]:
        """Take the jobs of a transaction: not a long commit with others that wait for it.

        A heartbeat is alone: it need not wait until the commits behind it are written and synced.
        Returns the number of their records too.
        """
        batch: list[Job] = []
        records = 0
        while len(batch) < _LARGEST_BATCH and (job := self._next()):
            if _is_heartbeat(job[0]):
                if batch:  # it was queued meanwhile
                    self._jobs.appendleft(job)
                    break
                return [job], 0
            added = _count_records(job[0])
            if batch and records + added > _MANY_RECORDS:
                self._jobs.appendleft(job)
                break
            batch.append(job)
            records += added
        return batch, records

    def _take_all(self) -> list[Job]:
        jobs: list[Job] = []
        while job := self._next():
            jobs.append(job)
        return jobs

    def _transaction(self, batch: Sequence[Job], *, is_short: bool = False) -> list[Outcome]:
        """Execute the jobs of a batch; queries of the event loop wait for a short one."""
        try:
            commands = self._executor()
            self._sync_at_commit(needed=any(_is_synced(command) for command, _ in batch))
            self._execute("BEGIN IMMEDIATE")  # which may wait for another program
            if is_short:
                self._queued.open()
            commands.begin()
            now = self._clock.now()
            commands.undo_claims(self._unknown_leases, now)
            commands.load([command for command, _ in batch])
            outcomes: list[Outcome] = [commands.execute(command, now) for command, _ in batch]
            commands.flush()
        except Exception as error:  # noqa: BLE001 - no job may end this thread
            return self._after_failure(batch, error)
        self._queued.close()
        try:
            self._execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - no job may end this thread
            return self._after_failed_commit(outcomes, error)
        self._unknown_leases.clear()
        return outcomes

    def _after_failed_commit(self, batch: Sequence[Outcome], error: Exception) -> list[Outcome]:
        self.disconnect()  # which rolls back
        explanation = explain_error(error, self._path)
        if is_commit_undone(error):
            text, hint = explanation.message, explanation.hint
            return [Unavailable(text, hint=hint) for _ in batch]
        for outcome in batch:
            if isinstance(outcome, Heads):
                self._unknown_leases += outcome.leases.values()
        text = f"it is unknown whether the commit was written: {explanation.message}"
        return [Unknown(text, hint="read before writing again") for _ in batch]

    def _sync_at_commit(self, *, needed: bool) -> None:
        """Sync only commits: claims and heartbeats are worthless once their process has ended.

        The next commit of a driver makes its claim durable too, since a sync covers all of the log.
        """
        if needed != self._syncs:
            self._execute(f"PRAGMA synchronous = {'FULL' if needed else 'NORMAL'}")
            self._syncs = needed

    def _after_failure(self, batch: Sequence[Job], error: Exception) -> list[Outcome]:
        """Roll back, and retry the jobs one by one: a bad job must not fail its neighbors."""
        self._queued.close()
        explanation = self._explain(error)
        if isinstance(explanation, Unavailable):
            self.disconnect()
            return [self._explain(error) for _ in batch]
        self._roll_back()
        if len(batch) == 1:
            return [explanation]
        return [self._transaction([job])[0] for job in batch]

    def _explain(self, error: Exception) -> Exception:
        if isinstance(error, StoreError):
            return type(error)(error.message, hint=error.hint)
        return explain_error(error, self._path) if is_database_error(error) else error

    # --- the connection ---

    def _executor(self) -> CommandExecutor:
        if self._commands is None:
            self._connection = self._connect()
            self._syncs = True
            self._foreign_writes += 1
            self._commands = CommandExecutor(self._connection, self._liveness, self._foreign_writes)
        return self._commands

    def _execute(self, sql: str) -> sqlite3.Cursor:
        if self._connection is None:
            raise StoreError("the writer is not connected")
        return self._connection.execute(sql)

    def _roll_back(self) -> None:
        if self._commands is not None:
            self._commands.forget()
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._execute("ROLLBACK")
        except Exception:  # noqa: BLE001 - a connection that cannot roll back is useless
            self.disconnect()

    def disconnect(self) -> None:
        """Close the connection; the next write opens another."""
        if self._commands is not None:
            self._foreign_writes = self._commands.foreign_writes
        connection, self._connection, self._commands = self._connection, None, None
        if connection is None:
            return
        # Closing the last connection is a WAL checkpoint; with the lock taken this is not the last.
        is_taken = not self._lock.is_held and self._lock.try_acquire()
        with contextlib.suppress(Exception):
            connection.close()
        if is_taken:
            self._lock.release()

    # --- WAL checkpoints: only here, only under the lock, never while a caller waits ---

    def _checkpoint_when_large(self, size: int) -> None:
        if size > self._checkpoint_above:
            with contextlib.suppress(OSError):
                self._lock.acquire()
                self._checkpoint()
            # A reader may have kept the log from restarting: then let it grow some more.
            self._checkpoint_above = max(size + WAL_LIMIT_BYTES // 4, WAL_LIMIT_BYTES)
        elif size <= WAL_LIMIT_BYTES:
            self._checkpoint_above = WAL_LIMIT_BYTES

    def _checkpoint_when_idle(self) -> None:
        with contextlib.suppress(OSError):
            if self._wrote and self._lock.try_acquire():
                self._checkpoint()

    def _checkpoint(self) -> None:
        """Copy the log into the database, and release the lock that the caller has taken."""
        try:
            if self._connection is not None:
                self._execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._wrote = False
        except Exception:  # noqa: BLE001 - the log is intact; the next write reports the error
            self.disconnect()
        finally:
            self._lock.release()

    def _wal_size(self) -> int:
        try:
            return os.stat(self._wal).st_size  # noqa: PTH116 - after every commit; Path takes twice as long
        except OSError:
            return 0


def _is_heartbeat(command: Command) -> bool:
    """Return whether leases depend on a command; none does on the first one of a holder yet."""
    return isinstance(command, Renew) and command.ttl_ms > 0 and not command.join


def _is_synced(command: Command) -> bool:
    return isinstance(command, Commit) and command.is_synced


def _count_records(command: Command) -> int:
    writes = command.writes if isinstance(command, Commit) else ()
    return sum(len(write.records) for write in writes)


def _has_erase(command: Command) -> bool:
    return isinstance(command, Commit) and any(write.erase for write in command.writes)
