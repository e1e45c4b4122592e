"""Store as one process sees it: each operation passes through a connection, which may fail."""

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, TypeVar

from perdure.store.base import (
    Store,
)
from perdure.store.shared.wrapper import StoreWrapper

T = TypeVar("T")


class Connection(Protocol):
    """Connection of one process to a store."""

    def now(self) -> int:
        """Return the store's time as the process sees it."""
        ...

    async def perform(self, operation: partial[Coroutine[Any, Any, T]]) -> T:
        """Perform an operation of the store."""
        ...

    async def changed(self, timeout_s: float) -> None:
        """Wait as `Store.changed` does."""
        ...

    def broadcast(self, topic: str, data: bytes) -> None:
        """Send a message as `Store.broadcast` does."""
        ...

    def subscribe(self, callback: Callable[[str, bytes], None]) -> AbstractContextManager[None]:
        """Receive messages as `Store.subscribe` does."""
        ...

    async def close(self) -> None:
        """End the connection."""
        ...


class StoreFacade(StoreWrapper):
    """A store behind a connection. A dead process is noticed by its lease only."""

    def __init__(
        self, store: Store, connection: Connection, *, has_liveness_locks: bool = True
    ) -> None:
        super().__init__(store)
        self.has_liveness_locks = has_liveness_locks
        self._connection = connection

    async def perform(self, operation: partial[Coroutine[Any, Any, T]]) -> T:
        """Perform an operation through the connection."""
        return await self._connection.perform(operation)

    def now(self) -> int:
        """Return the time as the process sees it."""
        return self._connection.now()

    async def close(self) -> None:
        """End the connection."""
        await self._connection.close()

    async def changed(self, timeout_s: float) -> None:
        """Wait for a change that the process gets to know of."""
        await self._connection.changed(timeout_s)

    def broadcast(self, topic: str, data: bytes) -> None:
        """Broadcast through the connection."""
        self._connection.broadcast(topic, data)

    def subscribe(self, callback: Callable[[str, bytes], None]) -> AbstractContextManager[None]:
        """Subscribe through the connection."""
        return self._connection.subscribe(callback)
