"""What runs while a SQLite store is open: writer, readers, and the watch for other processes."""

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import anyio
from anyio import to_thread
from anyio.lowlevel import checkpoint

from perdure.store.base import Clock, StoreRefusal
from perdure.store.shared.file_lock import WriteLock
from perdure.store.shared.signal import Overheard, Signal
from perdure.store.sqlite.commands import Answer, Renew, Work
from perdure.store.sqlite.open import explained, is_database_error
from perdure.store.sqlite.reads import Query, Readers
from perdure.store.sqlite.side_files import LivenessLock, WakeSocket
from perdure.store.sqlite.writer import Job, Outcome, Writer

T = TypeVar("T")

_READERS = 4
_IN_A_ROW = 8
_POLL_S = 0.25


class OpenConnection(Protocol):
    """Makes a connection with our settings, to a file that is known to be ours."""

    def __call__(self, *, reader: bool) -> sqlite3.Connection:
        """A connection that may write, or only read."""
        ...


class Running:
    """The threads and connections of one open store, and the way from them to its event loop."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        lock: WriteLock,
        connect: OpenConnection,
        signal: Signal,
        lock_wait_s: float,
    ) -> None:
        self.process = os.getpid()
        self._path = path
        self._lock = lock
        self._lock_wait_s = lock_wait_s
        self._connect = connect
        self._signal = signal
        self._loop = asyncio.get_running_loop()
        self.overheard: Overheard | None = None  # called in the event loop
        self._doorbell = WakeSocket(path.with_name(f"{path.name}.bell"), self._hand_on)
        self._readers = Readers(lambda: connect(reader=True))
        self._asked = 0
        self._asking = 0
        self._nobody_asks = anyio.Event()
        self._reading = anyio.CapacityLimiter(_READERS)
        self._pulse = LivenessLock(path.with_name(f"{path.name}.alive"))
        write = partial(connect, reader=False)
        self._writer = Writer(path, clock, lock, self._pulse, write, self._deliver)
        self._watch = threading.Thread(target=self._run_watch, name="perdure-watch", daemon=True)
        self._closing = False

    def start(self) -> None:
        """Start the threads."""
        self._doorbell.open()
        self._writer.start()
        self._watch.start()

    async def close(self) -> None:
        """Finish what is queued or being read, then stop.

        Connections are closed one after the other: two that close at the same moment each take the
        other for the last one, and leave the log and its index lying beside the file.
        """
        while self._asking:
            self._nobody_asks = anyio.Event()
            await self._nobody_asks.wait()
        await to_thread.run_sync(self._stop)

    def _stop(self) -> None:
        self._writer.stop(self._lock_wait_s)
        self._closing = True
        self._doorbell.stop()
        self._watch.join()
        self._doorbell.close()
        self._pulse.close()
        self._readers.close()
        self._writer.disconnect()
        self._lock.close()

    def write(self, work: Work) -> asyncio.Future[Answer]:
        """The answer to a piece of work, to be had once it is durable; an error is raised."""
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._writer.submit((work, answer))
        return answer

    async def ask(self, query: Query[T]) -> T:
        """The answer to a question: at once if it is a small one, else from a thread."""
        self._asking += 1
        try:
            self._asked += 1
            if self._asked % _IN_A_ROW == 0:  # who only asks must still let the others run
                await checkpoint()
            self._signal.look()
            try:
                return self._readers.at_once(query)
            except StoreRefusal:
                raise
            except Exception:  # noqa: BLE001 - whatever it is, a thread has the time to find out
                return await to_thread.run_sync(self._answer, query, limiter=self._reading)
        finally:
            self._asking -= 1
            if not self._asking:
                self._nobody_asks.set()

    def broadcast(self, topic: str, data: bytes) -> None:
        """Tell the other processes; it may get lost."""
        self._doorbell.broadcast(topic, data)

    def _answer(self, query: Query[T]) -> T:
        try:
            return self._readers.run(query)
        except Exception as error:
            if is_database_error(error):
                raise explained(error, self._path) from error
            raise

    # --- in the writer's thread ---

    def _deliver(self, jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> None:
        is_news = any(map(_is_news, jobs, outcomes))
        # First what lets other threads in: once the loop is awake, both would want the interpreter.
        if is_news:
            self._doorbell.ring()
        with contextlib.suppress(RuntimeError):  # the event loop is gone, and who waited with it
            self._loop.call_soon_threadsafe(self._settle, jobs, outcomes, is_news)

    def _settle(self, jobs: Sequence[Job], outcomes: Sequence[Outcome], is_news: bool) -> None:
        for (_, answer), outcome in zip(jobs, outcomes, strict=True):
            if answer.done():  # its task was cancelled; the work was done all the same
                continue
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)
        if is_news:
            self._signal.ring()

    # --- in the watch's thread ---

    def _run_watch(self) -> None:
        seen: int | None = None
        connection: sqlite3.Connection | None = None
        while not self._closing:
            rang = self._doorbell.wait(_POLL_S)
            self._writer.give_up_after(self._lock_wait_s)
            try:
                connection = connection or self._connect(reader=True)
                (version,) = connection.execute("PRAGMA data_version").fetchone()
            except Exception:  # noqa: BLE001 - whoever uses the store meets it, and is told
                version = seen
            if rang or version != seen:
                seen = version
                self._tell_the_loop()
        if connection is not None:
            connection.close()

    def _hand_on(self, topic: str, data: bytes) -> None:
        if self.overheard is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.overheard, topic, data)

    def _tell_the_loop(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._signal.ring)


def _is_news(job: Job, outcome: Outcome) -> bool:
    """Whether others may want to look: something was committed, or somebody left."""
    work, _ = job
    if isinstance(work, Renew):
        return work.ttl_ms <= 0
    return isinstance(outcome, dict)
