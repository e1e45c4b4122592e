"""Store as one process sees it: each operation passes through a connection, which may fail."""

from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, TypeVar

from perdure.store.base import (
    Census,
    Check,
    Entry,
    Feed,
    Growth,
    Heads,
    Lease,
    Order,
    Page,
    Put,
    Slice,
    Store,
    StreamState,
    SuspectLimit,
    Write,
)

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


class StoreFacade:
    """A store behind a connection. A dead process is noticed by its lease only."""

    def __init__(
        self, store: Store, connection: Connection, *, has_liveness_locks: bool = True
    ) -> None:
        self.has_liveness_locks = has_liveness_locks
        self._store = store
        self._connection = connection
        self._perform = connection.perform
        self.now = connection.now
        self.changed = connection.changed
        self.broadcast = connection.broadcast
        self.subscribe = connection.subscribe
        self.close = connection.close

    async def open(self) -> None:
        await self._perform(partial(self._store.open))

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        return await self._perform(partial(self._store.commit, writes, puts, checks))

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        return await self._perform(partial(self._store.read, stream, after, limit))

    async def get(self, kind: str, key: str) -> Entry | None:
        return await self._perform(partial(self._store.get, kind, key))

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
        options: dict[str, Any] = {"state": state, "stream": stream, "due_before": due_before}
        find = partial(self._store.find, kind, **options, after=after, limit=limit)
        return await self._perform(find)

    async def find_listed(
        self,
        kind: str,
        listing: str,
        *,
        order: Order = "oldest",
        after: str | None = None,
        limit: int = 100,
    ) -> Page:
        find = partial(self._store.find_listed, kind, listing, order=order, after=after)
        return await self._perform(partial(find, limit=limit))

    async def entries_of(self, stream: str) -> Sequence[Entry]:
        return await self._perform(partial(self._store.entries_of, stream))

    async def streams(self, after: str = "", limit: int = 500) -> Sequence[StreamState]:
        return await self._perform(partial(self._store.streams, after, limit))

    async def claim(
        self,
        holder: str,
        kind: str,
        limit: int,
        *,
        only: str | None = None,
        suspects: SuspectLimit | None = None,
    ) -> list[Lease]:
        claim = partial(self._store.claim, holder, kind, limit, only=only, suspects=suspects)
        return await self._perform(claim)

    async def reap(self, now: int) -> None:
        await self._perform(partial(self._store.reap, now))

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        return await self._perform(partial(self._store.renew, holder, ttl_ms, join=join))

    async def tail(self, cursor: str, limit: int = 500) -> Feed:
        return await self._perform(partial(self._store.tail, cursor, limit))

    async def growth(self, cursor: str, limit: int = 500) -> Growth:
        return await self._perform(partial(self._store.growth, cursor, limit))

    async def census(self, kinds: Collection[str]) -> Census:
        return await self._perform(partial(self._store.census, kinds))
