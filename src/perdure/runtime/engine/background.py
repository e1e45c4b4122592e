"""The runtime's one background task: it renews leases, reads the feed and exchanges deltas.

It starts with the first drive and ends with the runtime. It is a bare asyncio task, because a
runtime may be closed by another task than the one that opened it, which a task group does not
allow.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from perdure import host
from perdure.errors import StoreError
from perdure.runtime.engine.feed import FeedReader
from perdure.runtime.engine.watchdog import Watchdog
from perdure.runtime.resources import Resources
from perdure.runtime.streaming import ANNOUNCE_S
from perdure.user_code import contain_tasks

logger = logging.getLogger("perdure")

RETRY_S: Final = 1.0  # after a failure of the store
CANCEL_AGAIN_S: Final = 1.0  # a loop may have missed that it was cancelled

Work = Callable[[], Coroutine[Any, Any, None]]


class EngineTask:
    """Runs loops beside the drives, until the runtime closes.

    At a close it awaits `drain` while the loops still run, and `cancel` after they have ended.
    """

    def __init__(self, resources: Resources, heartbeat: Work, drain: Work, cancel: Work) -> None:
        self.feed = FeedReader(resources.store, resources.cache)
        self.is_running = False
        self.is_watched = host.is_loop_watched()
        self.is_closing = True  # or closed, or not open yet
        self._bus = resources.bus
        self._watchdog = Watchdog()
        self._heartbeat = heartbeat
        self._drain = drain
        self._cancel = cancel
        self._main: asyncio.Task[None] | None = None
        self._loops: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._stop = asyncio.Event()

    def open(self) -> None:
        """Allow a start, also after a close."""
        self.is_closing = False
        self._failure = None
        self._stop = asyncio.Event()  # a new one: an event belongs to one event loop
        self.feed.reset()

    def start(self) -> None:
        """Start the loops, once. Raises StoreError unless open, and after a failure."""
        if self.is_running:
            return
        if self.is_closing:
            raise StoreError(
                "the runtime is not open", hint="open it first: async with Runtime(…) as rt"
            )
        if self._main is not None:
            raise StoreError("the runtime's background task has failed")
        self.is_running = True
        contain_tasks(asyncio.get_running_loop())
        if self.is_watched:
            self._watchdog.start()
        for loop in (self._read_feed, self._heartbeat, self._exchange_deltas):
            self._spawn(loop)
        self._main = asyncio.get_running_loop().create_task(self._run())

    def end_error(self) -> StoreError:
        """Return why nothing is driven any more."""
        if self.is_closing:
            return StoreError("the runtime is closed")
        return StoreError("the runtime's background task has failed")

    def run_beside(self, work: Work) -> asyncio.Task[None]:
        """Run something beside the drives, until the runtime closes. Raises StoreError."""
        self.start()
        return self._spawn(work)

    def fail(self, error: BaseException) -> None:
        """Stop everything because of an error that a drive or loop cannot survive."""
        self._failure = error
        self._stop.set()

    async def close(self) -> None:
        """Let the drives park for a moment, then stop them and the loops."""
        self.is_closing = True
        self._stop.set()
        main = self._main
        if main is None:
            return
        await asyncio.wait([main])
        self._main = None
        self.is_running = False  # a task that is cancelled before its first step cannot reset it
        error = self._failure or (None if main.cancelled() else main.exception())
        if isinstance(error, Exception):
            logger.error("the runtime's background task had failed", exc_info=error)

    async def _run(self) -> None:
        try:
            await self._stop.wait()
            # `close` logs a failure. Raised here, a SystemExit would stop the event loop again.
            if self._failure is None:
                await self._drain()
        finally:
            await self._end_loops()
            self.is_running = False  # not before: a loop that is still running may start another
            await self._cancel()
            self._watchdog.stop()

    async def _end_loops(self) -> None:
        await asyncio.sleep(0)  # a task that is cancelled before its first step never cleans up
        while self._loops:
            for task in self._loops:
                task.cancel()
            await asyncio.wait([*self._loops], timeout=CANCEL_AGAIN_S)

    def _spawn(self, work: Work) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work())
        self._loops.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._loops.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)

    async def _read_feed(self) -> None:
        while True:
            try:
                await self.feed.run()
            except StoreError as error:
                logger.warning("the feed cannot be read: %s", error.message)
                await asyncio.sleep(RETRY_S)

    async def _exchange_deltas(self) -> None:
        with self._bus.connect():
            while True:
                await asyncio.sleep(ANNOUNCE_S)
                self._bus.announce_readers()
