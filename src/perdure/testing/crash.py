"""Crashes inside one process: a store that fails after some commits as if killed."""

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import anyio

from perdure.app import around_store
from perdure.store.base import Lost, Store, Write
from perdure.testing.facade import StoreFacade

T = TypeVar("T")


class Crashed(BaseException):
    """The process counts as killed. Not an `Exception`, so that no handler survives it."""


class Crash:
    """Simulated end of the process: after so many commits, or never (None)."""

    def __init__(self, commits: int | None) -> None:
        self.commits: list[str] = []  # the record types of each commit, in order
        self.is_over = False
        self._after = commits
        self._connections: list[_CrashingConnection] = []
        self._turn = anyio.Lock()

    def wrap(self, store: Store) -> Store:
        """Return the store as the crashing process sees it."""
        connection = _CrashingConnection(store, self)
        self._connections.append(connection)
        locks = getattr(store, "has_liveness_locks", True)
        return StoreFacade(store, connection, has_liveness_locks=locks)

    def check_alive(self) -> None:
        """Raise Crashed after the crash."""
        if self.is_over:
            raise Crashed(f"the process was killed after commit {self._after}")

    async def commit(self, operation: partial[Coroutine[Any, Any, T]]) -> T:
        """Commit, one at a time, so that no other commit is in flight when the last one ends."""
        async with self._turn:
            self.check_alive()
            heads = await operation()
            writes: Sequence[Write] = operation.args[0]
            types = [record.type for write in writes for record in write.records]
            self.commits.append(", ".join(types) or "no record")
            if len(self.commits) == self._after:
                await self._die()
            return heads

    async def _die(self) -> None:
        self.is_over = True
        # The leases would expire anyway; a test need not wait for that.
        with anyio.CancelScope(shield=True):
            for connection in self._connections:
                await connection.expire_leases()
        self.check_alive()


class _CrashingConnection:
    """Connection that raises Crashed once its process has crashed."""

    def __init__(self, store: Store, crash: Crash) -> None:
        self._store = store
        self._crash = crash
        self._holders: set[str] = set()
        self.now = store.now
        self.subscribe = store.subscribe
        self.close = store.close  # as the kernel closes the files of a killed process

    async def expire_leases(self) -> None:
        """Expire the leases of the crashed process at once."""
        for holder in self._holders:
            with suppress(Lost):
                await self._store.renew(holder, 0)

    async def perform(self, operation: partial[Coroutine[Any, Any, T]]) -> T:
        if operation.func == self._store.commit:
            return await self._crash.commit(operation)
        self._crash.check_alive()
        if operation.func == self._store.renew:
            self._holders.add(operation.args[0])
        return await operation()

    async def changed(self, timeout_s: float) -> None:
        self._crash.check_alive()
        await self._store.changed(timeout_s)
        self._crash.check_alive()

    def broadcast(self, topic: str, data: bytes) -> None:
        if not self._crash.is_over:
            self._store.broadcast(topic, data)


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
