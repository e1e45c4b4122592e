"""Wrapper of a store, for stores that change only some of the operations of another one."""

from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar, Unpack

from perdure.store.base import (
    Census,
    Check,
    Entry,
    Feed,
    FindOptions,
    Growth,
    Heads,
    Lease,
    ListingOptions,
    Page,
    Put,
    Slice,
    Store,
    StreamState,
    SuspectLimit,
    Write,
)

T = TypeVar("T")


class StoreWrapper:
    """A store in front of another one; every operation that waits passes through `perform`."""

    def __init__(self, primary: Store) -> None:
        self.primary = primary

    async def perform(self, operation: partial[Coroutine[Any, Any, T]]) -> T:
        """Perform an operation of the other store."""
        return await operation()

    def now(self) -> int:
        """Return the store's time, in ms since the epoch."""
        return self.primary.now()

    async def open(self) -> None:
        """Open the store."""
        await self.perform(partial(self.primary.open))

    async def close(self) -> None:
        """Close the store."""
        await self.primary.close()

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        """Commit to the store."""
        return await self.perform(partial(self.primary.commit, writes, puts, checks))

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        """Read from the store."""
        return await self.perform(partial(self.primary.read, stream, after, limit))

    async def get(self, kind: str, key: str) -> Entry | None:
        """Get from the store."""
        return await self.perform(partial(self.primary.get, kind, key))

    async def find(self, kind: str, **options: Unpack[FindOptions]) -> Page:
        """Find in the store."""
        return await self.perform(partial(self.primary.find, kind, **options))

    async def find_listed(self, kind: str, listing: str, **options: Unpack[ListingOptions]) -> Page:
        """Return the entries of a listing, from the store."""
        return await self.perform(partial(self.primary.find_listed, kind, listing, **options))

    async def entries_of(self, stream: str) -> Sequence[Entry]:
        """Return every entry of a stream, from the store."""
        return await self.perform(partial(self.primary.entries_of, stream))

    async def streams(self, after: str = "", limit: int = 500) -> Sequence[StreamState]:
        """Return streams by id, from the store."""
        return await self.perform(partial(self.primary.streams, after, limit))

    async def claim(
        self,
        holder: str,
        kind: str,
        limit: int,
        *,
        only: str | None = None,
        suspects: SuspectLimit | None = None,
    ) -> list[Lease]:
        """Claim from the store."""
        claim = partial(self.primary.claim, holder, kind, limit, only=only, suspects=suspects)
        return await self.perform(claim)

    async def reap(self, now: int) -> None:
        """Reap dead holders of the store."""
        await self.perform(partial(self.primary.reap, now))

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        """Renew the holder's row in the store."""
        return await self.perform(partial(self.primary.renew, holder, ttl_ms, join=join))

    async def tail(self, cursor: str, limit: int = 500) -> Feed:
        """Return the store's feed after the cursor."""
        return await self.perform(partial(self.primary.tail, cursor, limit))

    async def growth(self, cursor: str, limit: int = 500) -> Growth:
        """Return the streams that have grown since the cursor."""
        return await self.perform(partial(self.primary.growth, cursor, limit))

    async def census(self, kinds: Collection[str]) -> Census:
        """Count what exists in the store."""
        return await self.perform(partial(self.primary.census, kinds))

    async def changed(self, timeout_s: float) -> None:
        """Wait for a change of the store."""
        await self.primary.changed(timeout_s)

    def broadcast(self, topic: str, data: bytes) -> None:
        """Broadcast through the store."""
        self.primary.broadcast(topic, data)

    def subscribe(self, callback: Callable[[str, bytes], None]) -> AbstractContextManager[None]:
        """Subscribe to the store's broadcasts."""
        return self.primary.subscribe(callback)
