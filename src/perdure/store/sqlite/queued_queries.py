"""Small queries that the event loop leaves to the writer's thread while that executes statements.

Every statement releases Python's lock. If both threads execute some, they pass the lock back and
forth, which costs many times what a small query takes. So the event loop runs one itself only while
the writer is idle, or waits for the disk or for another process.
"""

import asyncio
import concurrent.futures
import contextlib
from collections import deque
from collections.abc import Iterable
from typing import Any, TypeVar

from perdure.store.sqlite.reads import Query, Readers

T = TypeVar("T")

_Job = tuple[Query[Any], asyncio.Future[Any]]


class QueuedQueries:
    """Queue from the event loop to the writer's thread, which is open while that executes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, readers: Readers) -> None:
        self._loop = loop
        self._readers = readers
        self._jobs: deque[_Job] = deque()
        self._is_open = False

    def submit(self, query: Query[T]) -> asyncio.Future[T] | None:
        """Queue a query; None if the caller has to run it itself. Call it in the event loop."""
        if not self._is_open:
            return None
        result: asyncio.Future[T] = self._loop.create_future()
        job = (query, result)
        self._jobs.append(job)
        # The writer closes the queue before it empties it: a job that it missed is still here.
        if not self._is_open:
            with contextlib.suppress(ValueError):  # it did not miss it
                self._jobs.remove(job)
                return None
        return result

    # --- in the writer's thread ---

    def open(self) -> None:
        """Accept queries from now on: statements are about to be executed."""
        self._is_open = True

    def close(self) -> None:
        """Accept no more queries, and run those that came."""
        self._is_open = False
        jobs: list[_Job] = []
        while self._jobs:
            with contextlib.suppress(IndexError):  # the event loop has taken it back
                jobs.append(self._jobs.popleft())
        if jobs:
            outcomes = self._readers.run_together([query for query, _ in jobs])
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(resolve, [result for _, result in jobs], outcomes)


def resolve(
    results: Iterable[asyncio.Future[Any] | concurrent.futures.Future[Any]], outcomes: Iterable[Any]
) -> None:
    """Give each future its result or error; call it in the event loop for futures of asyncio."""
    for result, outcome in zip(results, outcomes, strict=True):
        if result.done():  # its task was cancelled; what it waited for was done all the same
            continue
        if isinstance(outcome, Exception):
            result.set_exception(outcome)
        else:
            result.set_result(outcome)
