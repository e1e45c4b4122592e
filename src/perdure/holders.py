"""Holders: the names of processes in the store, and the renewals of their rows.

The event loop renews every third of a lease. A thread renews in its place once half of the lease is
over: fan-out to many readers, or a tool that blocks the loop, must not end leases of a process that
works. It stops for a loop that runs nothing for three leases: that process may be hung for good,
and others must be able to take over.
"""

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from perdure import host
from perdure.errors import StoreError
from perdure.store.base import Lost, RenewsInThreads, Store

logger = logging.getLogger("perdure")

LATE: Final = 0.5  # of a lease: less than this is left, so the loop has missed its renewal
SILENT_LEASES: Final = 3  # without a sign of the event loop, after which the thread stops
_LOOKS: Final = 12  # of the thread in one lease


async def live_holders(store: Store) -> frozenset[str]:
    """Return the names of the holders that are alive, after those that are not were reaped."""
    await store.reap(store.now())
    return frozenset((await store.census(())).alive)


class _Row(NamedTuple):
    """The row of a holder, and until when it is valid by the local monotonic clock."""

    holder: str = ""
    until: float = 0.0


class Renewals:
    """Validity of one holder's row, which the event loop and a thread renew."""

    def __init__(self, store: Store, lease_ms: int) -> None:
        self._store = store
        self._lease_ms = lease_ms
        self._lease_s = lease_ms / 1000
        self._guard = threading.Lock()
        self._row = _Row()
        self._loop_seen_at = 0.0
        self._is_loop_asked = False

    def is_valid(self, holder: str) -> bool:
        """Return whether the row of this holder is still valid by our own clock."""
        row = self._row
        return row.holder == holder and host.elapsed() < row.until

    async def join(self, holder: str) -> None:
        """Create the row of a holder and keep it. Raises Lost, StoreError."""
        sent_at = host.elapsed()
        await self._store.renew(holder, self._lease_ms, join=True)
        with self._guard:
            self._row = _Row(holder, sent_at + self._lease_s)

    def end(self) -> None:
        """Keep no row any more."""
        with self._guard:
            self._row = _Row()

    async def renew(self, holder: str) -> None:
        """Renew the row from the event loop. Raises Lost, StoreError."""
        sent_at = host.elapsed()
        await self._store.renew(holder, self._lease_ms)
        self._extend(holder, sent_at)

    def _extend(self, holder: str, sent_at: float) -> None:
        with self._guard:
            if self._row.holder == holder:  # else it has left meanwhile
                until = max(self._row.until, sent_at + self._lease_s)
                self._row = _Row(holder, until)

    @contextmanager
    def in_thread(self) -> Iterator[None]:
        """Renew in a thread too, if the store can, while the running event loop is late."""
        if not isinstance(self._store, RenewsInThreads):
            yield
            return
        stop = threading.Event()
        self._see_loop()
        threading.Thread(
            target=self._run,
            args=(self._store, asyncio.get_running_loop(), stop),
            name="perdure-heartbeat",
            daemon=True,
        ).start()
        try:
            yield
        finally:
            stop.set()  # the thread ends on its own: a renewal after the end changes nothing

    def _see_loop(self) -> None:
        self._loop_seen_at = host.elapsed()
        self._is_loop_asked = False

    # --- the thread ---

    def _run(
        self, store: RenewsInThreads, loop: asyncio.AbstractEventLoop, stop: threading.Event
    ) -> None:
        while not stop.wait(self._lease_s / _LOOKS):
            if not self._is_loop_asked:
                self._is_loop_asked = True
                try:
                    loop.call_soon_threadsafe(self._see_loop)
                except RuntimeError:  # the event loop is closed
                    return
            row, now = self._row, host.elapsed()
            is_late = row.until - now < self._lease_s * LATE
            is_silent = now - self._loop_seen_at > self._lease_s * SILENT_LEASES
            if row.holder and is_late and not is_silent:
                self._renew_late(store, row.holder, now)

    def _renew_late(self, store: RenewsInThreads, holder: str, now: float) -> None:
        try:
            store.renew_in_thread(holder, self._lease_ms)
        except Lost:  # the event loop learns of it by its own renewal
            logger.debug("the heartbeat of %s is over", holder)
        except StoreError as error:
            logger.warning("the heartbeat failed: %s", error.message)
        except Exception:
            logger.exception("the heartbeat of %s failed", holder)
        else:
            self._extend(holder, now)
