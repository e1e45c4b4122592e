"""Crashes inside one process: a store that fails after some commits as if killed."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress

import anyio

from perdure.app import around_store
from perdure.store.base import (
    Census,
    Check,
    Entry,
    Feed,
    Growth,
    Heads,
    Lease,
    Lost,
    Order,
    Page,
    Put,
    Slice,
    Store,
    StreamState,
    Write,
)


class Crashed(BaseException):
    """The process counts as killed. Not an `Exception`, so that no handler survives it."""


class Crash:
    """Simulated end of the process: after so many commits, or never (None)."""

    def __init__(self, commits: int | None) -> None:
        self.commits: list[str] = []  # the record types of each commit, in order
        self.is_over = False
        self._after = commits
        self._stores: list[CrashingStore] = []
        self._turn = anyio.Lock()

    def wrap(self, store: Store) -> Store:
        """Return the store as the crashing process sees it."""
        crashing = CrashingStore(store, self)
        self._stores.append(crashing)
        return crashing

    def check_alive(self) -> None:
        """Raise Crashed after the crash."""
        if self.is_over:
            raise Crashed(f"the process was killed after commit {self._after}")

    async def commit(
        self, store: Store, writes: Sequence[Write], puts: Sequence[Put], checks: Sequence[Check]
    ) -> Heads:
        """Commit, one at a time, so that no other commit is in flight when the last one ends."""
        async with self._turn:
            self.check_alive()
            heads = await store.commit(writes, puts, checks)
            types = [record.type for write in writes for record in write.records]
            self.commits.append(", ".join(types) or "no record")
            if len(self.commits) == self._after:
                await self._die()
            return heads

    async def _die(self) -> None:
        self.is_over = True
        # The leases would expire anyway; a test need not wait for that.
        with anyio.CancelScope(shield=True):
            for store in self._stores:
                await store.expire_leases()
        self.check_alive()


class CrashingStore:
    """Store that raises Crashed once its process has crashed."""

    def __init__(self, store: Store, crash: Crash) -> None:
        self._store = store
        self._crash = crash
        self._holders: set[str] = set()

    async def expire_leases(self) -> None:
        """Expire the leases of the crashed process at once."""
        for holder in self._holders:
            with suppress(Lost):
                await self._store.renew(holder, 0)

    def now(self) -> int:
        return self._store.now()

    async def open(self) -> None:
        self._crash.check_alive()
        await self._store.open()

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        return await self._crash.commit(self._store, writes, puts, checks)

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        self._crash.check_alive()
        return await self._store.read(stream, after, limit)

    async def get(self, kind: str, key: str) -> Entry | None:
        self._crash.check_alive()
        return await self._store.get(kind, key)

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
        self._crash.check_alive()
        return await self._store.find(
            kind, state=state, stream=stream, due_before=due_before, after=after, limit=limit
        )

    async def find_listed(
        self,
        kind: str,
        listing: str,
        *,
        order: Order = "oldest",
        after: str | None = None,
        limit: int = 100,
    ) -> Page:
        self._crash.check_alive()
        return await self._store.find_listed(kind, listing, order=order, after=after, limit=limit)

    async def entries_of(self, stream: str) -> Sequence[Entry]:
        self._crash.check_alive()
        return await self._store.entries_of(stream)

    async def streams(self, after: str = "", limit: int = 500) -> Sequence[StreamState]:
        self._crash.check_alive()
        return await self._store.streams(after, limit)

    async def claim(
        self, holder: str, kind: str, limit: int, *, only: str | None = None
    ) -> list[Lease]:
        self._crash.check_alive()
        return await self._store.claim(holder, kind, limit, only=only)

    async def reap(self, now: int) -> None:
        self._crash.check_alive()
        await self._store.reap(now)

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        self._crash.check_alive()
        self._holders.add(holder)
        return await self._store.renew(holder, ttl_ms, join=join)

    async def tail(self, cursor: str, limit: int = 500) -> Feed:
        self._crash.check_alive()
        return await self._store.tail(cursor, limit)

    async def growth(self, cursor: str, limit: int = 500) -> Growth:
        self._crash.check_alive()
        return await self._store.growth(cursor, limit)

    async def census(self, kinds: Collection[str]) -> Census:
        self._crash.check_alive()
        return await self._store.census(kinds)

    async def changed(self, timeout_s: float) -> None:
        self._crash.check_alive()
        await self._store.changed(timeout_s)
        self._crash.check_alive()

    def broadcast(self, topic: str, data: bytes) -> None:
        if not self._crash.is_over:
            self._store.broadcast(topic, data)

    def subscribe(self, callback: Callable[[str, bytes], None]) -> AbstractContextManager[None]:
        return self._store.subscribe(callback)

    async def close(self) -> None:
        await self._store.close()  # as the kernel closes the files of a killed process


@contextmanager
def crash_after(*, commits: int | None) -> Iterator[Crash]:
    """Crash all runtimes of this block together after so many commits, as by kill -9.

    Every await then raises Crashed, nothing more is written, not even the release of a lease, and
    the next Runtime on the same data takes over at once. None never crashes, and counts commits.
    """
    if commits is not None and commits < 1:
        raise ValueError(f"commits must be 1 or more, not {commits}")
    crash = Crash(commits)
    token = around_store.set(crash.wrap)
    try:
        yield crash
    finally:
        around_store.reset(token)
