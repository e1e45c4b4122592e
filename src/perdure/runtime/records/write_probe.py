"""Probe of a store: a small commit that shows whether it can be written."""

import asyncio
from contextlib import suppress
from typing import Final

from perdure import host
from perdure.errors import StoreError
from perdure.store.base import OnDisk, Put, Store, Unavailable, VersionMoved, Write

NAME: Final = "probe"  # of the stream and of its only entry
MIN_FREE: Final = 64 * 2**10  # bytes of the disk: with less, only the smallest commits succeed
INTERVAL_S: Final = 2.0  # a result is used for this long, so that callers cannot cause many commits


class WriteProbe:
    """Commits a change of one small entry, durably, as any other commit."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._checked_at = -INTERVAL_S  # monotonic
        self._error: StoreError | None = None

    async def check(self) -> None:
        """Raise StoreError if the store cannot be written."""
        async with self._lock:
            if host.elapsed() - self._checked_at >= INTERVAL_S:
                await self._commit()
        if self._error is not None:
            raise self._error

    async def _commit(self) -> None:
        try:
            self._check_space()
            entry = await self._store.get(NAME, NAME)
            version = 0 if entry is None else entry.version
            put = Put(NAME, NAME, version, NAME, "", None, b"%d" % self._store.now())
            with suppress(VersionMoved):  # another server has just written it
                await self._store.commit([Write(NAME, create=NAME)], [put])
            self._error = None
        except StoreError as error:
            self._error = error
        self._checked_at = host.elapsed()

    def _check_space(self) -> None:
        if isinstance(self._store, OnDisk) and self._store.free_bytes() < MIN_FREE:
            raise Unavailable("the disk of the store is full", hint="free some space")
