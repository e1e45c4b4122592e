"""Where the events of sessions are kept: nowhere, in memory, or in files."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import anyio
from anyio import to_thread

from perdure.core.conversation.repair.json_values import plain
from perdure.errors import StoreError
from perdure.store.files.sessions import SessionLogs

T = TypeVar("T")


@runtime_checkable
class SessionStorage(Protocol):
    """What a storage does. One that holds events back may also have `async flush()`."""

    async def append_event(self, session_id: str, event: Any) -> None:
        """Add an event to a session's log."""
        ...

    async def read_events(self, session_id: str) -> list[Any]:
        """All events of a session in the order in which they were added; [] if there is none."""
        ...

    async def session_exists(self, session_id: str) -> bool:
        """Whether the session has at least one event."""
        ...


class NoOpStorage:
    """Keeps nothing."""

    async def append_event(self, session_id: str, event: Any) -> None:
        """Forget it."""

    async def read_events(self, session_id: str) -> list[Any]:  # noqa: ARG002 - as the protocol
        """Nothing."""
        return []

    async def session_exists(self, session_id: str) -> bool:  # noqa: ARG002
        """Never."""
        return False


class InMemoryStorage:
    """Keeps events for as long as the process lives. Nobody can alter them from outside."""

    def __init__(self) -> None:
        self._events: dict[str, list[Any]] = {}

    async def append_event(self, session_id: str, event: Any) -> None:
        """Add an event; of what is no JSON the nearest is kept."""
        self._events.setdefault(session_id, []).append(deepcopy(plain(event)))

    async def read_events(self, session_id: str) -> list[Any]:
        """Copies of the events of a session."""
        return deepcopy(self._events.get(session_id, []))

    async def session_exists(self, session_id: str) -> bool:
        """Whether the session has at least one event."""
        return bool(self._events.get(session_id))

    def clear(self) -> None:
        """Forget every session."""
        self._events.clear()

    def clear_session(self, session_id: str) -> None:
        """Forget one session."""
        self._events.pop(session_id, None)

    def get_session_ids(self) -> list[str]:
        """The sessions that have events."""
        return list(self._events)

    def get_session_count(self) -> int:
        """How many sessions have events."""
        return len(self._events)


class FilesystemStorage:
    """Keeps each session as `{base}/{session}/events.jsonl`, one event per line, just as given.

    An event is on the disk when `append_event` returns. Other programs may write the same files.
    """

    def __init__(self, base: str | Path = ".agent-sessions") -> None:
        self._logs = SessionLogs(Path(base))
        self._turn = anyio.Lock()  # so that events stand in the order in which they were given

    @property
    def base(self) -> Path:
        """The folder with the sessions."""
        return self._logs.base

    async def append_event(self, session_id: str, event: Any) -> None:
        """Add an event; of what is no JSON the nearest is written. Raises StoreError."""
        line = plain(event)
        async with self._turn:
            await self._do(lambda: self._logs.add(session_id, line))

    async def read_events(self, session_id: str) -> list[Any]:
        """All events of a session; lines that cannot be read are skipped, with a warning."""
        return await self._do(lambda: self._logs.read(session_id))

    async def session_exists(self, session_id: str) -> bool:
        """Whether the session has at least one event."""
        return await self._do(lambda: self._logs.exists(session_id))

    async def delete_session(self, session_id: str) -> None:
        """Remove a session; an unknown one is no error."""
        await self._do(lambda: self._logs.delete(session_id))

    async def list_sessions(self) -> list[str]:
        """The ids of all sessions."""
        return await self._do(self._logs.ids)

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await to_thread.run_sync(work)
        except OSError as error:
            raise StoreError(
                f"{self._logs.base} cannot be used: {error.strerror}",
                hint="check who may write there, and whether the disk is full",
            ) from error
