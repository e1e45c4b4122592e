"""Crashes inside one process: a store that after some commits behaves as if we had been killed."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress

import anyio

from perdure.app import around_store
from perdure.store.base import (
    Census,
    Check,
    Entry,
    Feed,
    Lease,
    Lost,
    Page,
    Put,
    Slice,
    Store,
    StreamState,
    Write,
)


class Crashed(BaseException):
    """The process is as if killed. No `Exception`, so that no tool and no handler survives it."""


class Crash:
    """When the process of this test dies: after so many commits, or never (None)."""

    def __init__(self, commits: int | None) -> None:
        self.written: list[str] = []  # what each commit recorded, in order
        self.is_over = False
        self._after = commits
        self._stores: list[MortalStore] = []
        self._turn = anyio.Lock()

    def around(self, store: Store) -> Store:
        """The store as a process has it that will die."""
        mortal = MortalStore(store, self)
        self._stores.append(mortal)
        return mortal

    def look(self) -> None:
        """Raise Crashed if it has happened."""
        if self.is_over:
            raise Crashed(f"the process was killed after commit {self._after}")

    async def commit(
        self, store: Store, writes: Sequence[Write], puts: Sequence[Put], checks: Sequence[Check]
    ) -> dict[str, int]:
        """One commit at a time, so that none is under way when the last one is through."""
        async with self._turn:
            self.look()
            heads = await store.commit(writes, puts, checks)
            types = [record.type for write in writes for record in write.records]
            self.written.append(", ".join(types) or "no record")
            if len(self.written) == self._after:
                await self._die()
            return heads

    async def _die(self) -> None:
        self.is_over = True
        # Dead leases run out; a test need not wait for that.
        with anyio.CancelScope(shield=True):
            for store in self._stores:
                await store.expire()
        self.look()


class MortalStore:
    """A store that nobody can use any more once its process has crashed."""

    def __init__(self, store: Store, crash: Crash) -> None:
        self._store = store
        self._crash = crash
        self._holders: set[str] = set()

    async def expire(self) -> None:
        """End the leases of the dead process at once."""
        for holder in self._holders:
            with suppress(Lost):
                await self._store.renew(holder, 0)

    def now(self) -> int:
        return self._store.now()

    async def open(self) -> None:
        self._crash.look()
        await self._store.open()

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> dict[str, int]:
        return await self._crash.commit(self._store, writes, puts, checks)

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        self._crash.look()
        return await self._store.read(stream, after, limit)

    async def get(self, kind: str, key: str) -> Entry | None:
        self._crash.look()
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
        self._crash.look()
        return await self._store.find(
            kind, state=state, stream=stream, due_before=due_before, after=after, limit=limit
        )

    async def entries_of(self, stream: str) -> Sequence[Entry]:
        self._crash.look()
        return await self._store.entries_of(stream)

    async def streams(self, after: str = "", limit: int = 500) -> Sequence[StreamState]:
        self._crash.look()
        return await self._store.streams(after, limit)

    async def claim(
        self, holder: str, kind: str, limit: int, *, only: str | None = None
    ) -> list[Lease]:
        self._crash.look()
        return await self._store.claim(holder, kind, limit, only=only)

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        self._crash.look()
        self._holders.add(holder)
        return await self._store.renew(holder, ttl_ms, join=join)

    async def tail(self, cursor: str, limit: int = 500) -> Feed:
        self._crash.look()
        return await self._store.tail(cursor, limit)

    async def census(self, kinds: Collection[str]) -> Census:
        self._crash.look()
        return await self._store.census(kinds)

    async def changed(self, timeout_s: float) -> None:
        self._crash.look()
        await self._store.changed(timeout_s)
        self._crash.look()

    def broadcast(self, topic: str, data: bytes) -> None:
        if not self._crash.is_over:
            self._store.broadcast(topic, data)

    def subscribe(self, heard: Callable[[str, bytes], None]) -> AbstractContextManager[None]:
        return self._store.subscribe(heard)

    async def close(self) -> None:
        await self._store.close()  # as the kernel closes the files of a killed process


@contextmanager
def crash_after(*, commits: int | None) -> Iterator[Crash]:
    """Runtimes made in this block die together after so many commits, as by kill -9.

    Whatever then awaits raises Crashed, nothing later is written, not even the end of a lease,
    and the next Runtime on the same data takes over at once. None never crashes, and counts.
    """
    if commits is not None and commits < 1:
        raise ValueError(f"a crash comes after 1 commit or more, not after {commits}")
    crash = Crash(commits)
    token = around_store.set(crash.around)
    try:
        yield crash
    finally:
        around_store.reset(token)
