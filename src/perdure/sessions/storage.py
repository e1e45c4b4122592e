"""Storages of session events: none, in memory, or in files."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary

from perdure.errors import StoreError
from perdure.sessions.event_values import event_value
from perdure.store.files.sessions import SessionLogs

T = TypeVar("T")


@runtime_checkable
class SessionStorage(Protocol):
    """Storage of events by session. One that buffers events may also have `async flush()`."""

    async def append_event(self, session_id: str, event: Any) -> None:
        """Append an event to a session's log."""
        ...

    async def read_events(self, session_id: str) -> list[Any]:
        """Return all events of a session in their order; [] if there is none."""
        ...

    async def session_exists(self, session_id: str) -> bool:
        """Report whether the session has at least one event."""
        ...


class NoOpStorage:
    """Stores nothing."""

    async def append_event(self, session_id: str, event: Any) -> None:
        """Discard the event."""

    async def read_events(self, session_id: str) -> list[Any]:  # noqa: ARG002 - as the protocol
        """Return no events."""
        return []

    async def session_exists(self, session_id: str) -> bool:  # noqa: ARG002
        """Return False."""
        return False


class InMemoryStorage:
    """Stores copies of events for as long as the process lives."""

    def __init__(self) -> None:
        self._events: dict[str, list[Any]] = {}

    async def append_event(self, session_id: str, event: Any) -> None:
        """Append an event; a value that is not JSON is stored as the nearest JSON value."""
        self._events.setdefault(session_id, []).append(deepcopy(event_value(event)))

    async def read_events(self, session_id: str) -> list[Any]:
        """Return copies of the events of a session."""
        return deepcopy(self._events.get(session_id, []))

    async def session_exists(self, session_id: str) -> bool:
        """Report whether the session has at least one event."""
        return bool(self._events.get(session_id))

    def clear(self) -> None:
        """Remove every session."""
        self._events.clear()

    def clear_session(self, session_id: str) -> None:
        """Remove one session."""
        self._events.pop(session_id, None)

    def get_session_ids(self) -> list[str]:
        """Return the ids of the sessions that have events."""
        return list(self._events)

    def get_session_count(self) -> int:
        """Return the number of sessions that have events."""
        return len(self._events)


class FilesystemStorage:
    """Stores each session as `{base}/{session}/events.jsonl`, one event per line, unchanged.

    An event is on the disk when `append_event` returns. Other programs may write the same files.
    """

    def __init__(self, base: str | Path = ".agent-sessions") -> None:
        self._logs = SessionLogs(Path(base))
        # Keep events in the order of the calls. One per event loop, which may end within a call.
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
        self._turns = WeakKeyDictionary()

    @property
    def base(self) -> Path:
        """The folder of the sessions."""
        return self._logs.base

    async def append_event(self, session_id: str, event: Any) -> None:
        """Append an event; a value that is not JSON is written as the nearest JSON value."""
        line = event_value(event)
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            await self._do(lambda: self._logs.add(session_id, line))

    async def read_events(self, session_id: str) -> list[Any]:
        """Return all events of a session; unreadable lines are skipped, with a warning."""
        return await self._do(lambda: self._logs.read(session_id))

    async def session_exists(self, session_id: str) -> bool:
        """Report whether the session has at least one event."""
        return await self._do(lambda: self._logs.has_events(session_id))

    async def delete_session(self, session_id: str) -> None:
        """Remove a session; it is not an error if there is none."""
        await self._do(lambda: self._logs.delete(session_id))

    async def list_sessions(self) -> list[str]:
        """Return the ids of all sessions."""
        return await self._do(self._logs.ids)

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await _in_thread(work)
        except OSError as error:
            raise StoreError(
                f"{self._logs.base} cannot be used: {error.strerror}",
                hint="check the permissions of the folder, and whether the disk is full",
            ) from error


async def _in_thread(work: Callable[[], T]) -> T:
    """Run work in a thread; a caller that is cancelled still waits for its end.

    Otherwise the work would be under way while the caller believes that it never happened.
    """
    if not threading.main_thread().is_alive():
        return work()  # the interpreter exits: it starts no more threads, and nothing else waits
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        raise
