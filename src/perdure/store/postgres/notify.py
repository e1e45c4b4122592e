"""The control connection of a PostgreSQL store: signals, broadcasts and liveness locks.

Nothing here is needed for correctness. Signals are sent by NOTIFY, many in one statement; without
LISTEN the server is polled instead. The liveness lock of a holder is an advisory lock, which ends
with its connection: so a dead worker is detected before its lease expires.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from perdure.store.postgres.connection import Connector, PooledConnection
from perdure.store.postgres.sql import pack_text, statement, unpack_text
from perdure.store.shared.signal import BroadcastCallback, Signal

logger = logging.getLogger("perdure")

POLL_S: Final = 1.0  # with LISTEN, for signals that got lost
CHECK_S: Final = 0.2  # without LISTEN, and for liveness locks
CERTAIN_S: Final = 0.35  # after which a holder without its lock counts as dead
PATIENCE_S: Final = 2.0  # after our own reconnect: the others may have been disconnected too
_NOTIFY_PAUSE_S: Final = 0.01  # between two NOTIFYs, so that many go out as one
_CHANGE: Final = ""  # the payload of a signal
_LARGEST: Final = 7900  # bytes of a payload; PostgreSQL allows fewer than 8000
_MOST_BROADCASTS: Final = 1000

Reap = Callable[[list[str]], Awaitable[None]]


class ControlConnection:
    """Connection that listens for signals and keeps the liveness locks of this process."""

    def __init__(
        self, connector: Connector, signal: Signal, on_broadcast: BroadcastCallback, reap: Reap
    ) -> None:
        self._connector = connector
        self._on_broadcast = on_broadcast
        self._signal = signal
        self._reap = reap
        self._channel = f"perdure_{connector.address.schema}"
        self._connection: PooledConnection | None = None
        self._using = asyncio.Lock()
        self._wakeup = asyncio.Event()  # set when there is something to send
        self._has_change = False
        self._broadcasts: list[str] = []
        self._waiters = 0
        self._locks: dict[str, int] = {}
        self._missed: dict[str, float] = {}  # holders without their lock, and since when
        self._next_check = 0.0  # like the others, by the monotonic clock
        self._patient_until = 0.0
        self._was_disconnected = False
        self._snapshot = ""
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    # --- for the store ---

    def signal_change(self) -> None:
        """Signal a change that this process has made."""
        self._signal.notify()
        if self._connector.address.listen:
            self._has_change = True
            self._send()

    def broadcast(self, topic: str, data: bytes) -> None:
        """Send a message to the other processes; it may get lost."""
        if not self._connector.address.listen or len(self._broadcasts) >= _MOST_BROADCASTS:
            return
        text = pack_text(f"{topic}\n{data.decode(errors='replace')}")
        payload = text.encode(errors="replace")
        if len(payload) <= _LARGEST:
            self._broadcasts.append(payload.decode())
            with suppress(RuntimeError):  # called outside the event loop
                self._send()

    def listen(self) -> None:
        """Connect, to receive the broadcasts of other processes."""
        if self._connector.address.listen:
            self._start()

    async def changed(self, timeout_s: float) -> None:
        """Return when something may have changed, here or in another process."""
        self._start()
        self._waiters += 1
        try:
            await self._signal.wait(timeout_s)
        finally:
            self._waiters -= 1

    def has_liveness_lock(self, holder: str) -> bool:
        """Return whether this process keeps the lock of a holder."""
        return holder in self._locks

    async def take_liveness_lock(self, holder: str) -> int | None:
        """Take the lock of a new holder and return its key; None: it lives without a lock."""
        if not self._connector.address.advisory or holder in self._locks:
            return self._locks.get(holder)
        number = int.from_bytes(hashlib.sha256(holder.encode()).digest()[:8], signed=True)
        self._start()
        try:
            async with self._using:
                is_locked = await _take_lock(await self._connect(), number)
        except Exception as error:  # noqa: BLE001 - the lock is optional; the join reports the error
            self._disconnect(error)
            return None
        if is_locked:
            self._locks[holder] = number
        return number if is_locked else None

    async def release_liveness_lock(self, holder: str) -> None:
        """Release the lock of a holder that was removed."""
        number = self._locks.pop(holder, None)
        if number is None:
            return
        with suppress(Exception):
            async with self._using:
                if self._connection is not None:
                    await self._connection.fetch(statement("release_liveness_lock"), number)

    async def close(self) -> None:
        """Send the queued messages, and end."""
        self._closing = True
        self._wakeup.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._connection is not None:
            await self._connection.close()

    # --- the task ---

    def _send(self) -> None:
        self._wakeup.set()
        self._start()

    def _start(self) -> None:
        if self._task is None and not self._closing:
            # It outlives its caller: it serves all callers of the store.
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while not self._closing or self._has_messages:
            try:
                async with self._using:
                    connection = await self._connect()
                    await self._send_queued(connection)
                    dead = await self._check(connection)
                if dead:
                    await self._reap(dead)
                    self.signal_change()
            except Exception as error:  # noqa: BLE001 - the next caller of the store gets the same error
                self._disconnect(error)
            if self._closing:
                return
            await self._pause()

    async def _pause(self) -> None:
        """Wait until there is something to send, or the next check is due."""
        if self._connection is None:  # reconnect at intervals
            await asyncio.sleep(CHECK_S)
            return
        is_checking = self._locks or not self._connector.address.listen
        await asyncio.sleep(_NOTIFY_PAUSE_S)
        # Not wait_for: before Python 3.12 it can swallow the cancellation of this task.
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK_S if is_checking else POLL_S):
                await self._wakeup.wait()

    @property
    def _has_messages(self) -> bool:
        return self._has_change or bool(self._broadcasts)

    async def _connect(self) -> PooledConnection:
        if self._connection is not None and self._connection.raw.is_closed():
            self._disconnect(ConnectionError("it was closed"))
        if self._connection is None:
            self._connection = await self._prepare(await self._connector.connect(synced=False))
            self._missed.clear()
            if self._was_disconnected:
                self._patient_until, self._was_disconnected = time.monotonic() + PATIENCE_S, False
            self._signal.notify()  # signals sent meanwhile were missed
        return self._connection

    async def _prepare(self, connection: PooledConnection) -> PooledConnection:
        """Make a connection listen, and take the locks of our holders with it."""
        try:
            # It reconnects at once: until then our holders look dead.
            connection.raw.add_termination_listener(lambda _: self._wakeup.set())
            if self._connector.address.listen:
                receive = partial(self._receive, connection.raw.get_server_pid())
                await connection.raw.add_listener(self._channel, receive)
            for number in self._locks.values():
                await _take_lock(connection, number)
        except BaseException:
            connection.raw.terminate()
            raise
        return connection

    async def _send_queued(self, connection: PooledConnection) -> None:
        self._wakeup.clear()
        payloads, self._broadcasts = self._broadcasts, []
        if self._has_change:
            self._has_change = False
            payloads.append(_CHANGE)
        if payloads:
            await connection.fetch(statement("notify"), self._channel, payloads)

    async def _check(self, connection: PooledConnection) -> list[str]:
        """Return the holders that have certainly died; signals a change by others."""
        now = time.monotonic()
        if now < self._next_check:  # called as often as there is something to send
            return []
        self._next_check = now + CHECK_S
        if self._waiters:
            (snapshot,) = await connection.fetchrow(statement("snapshot"))
            if snapshot != self._snapshot:
                self._snapshot = snapshot
                self._signal.notify()
        return await self._dead(connection, now) if self._locks else []

    async def _dead(self, connection: PooledConnection, now: float) -> list[str]:
        """Return the holders without their lock for so long that they did not just reconnect."""
        missing = {
            unpack_text(name)
            for (name,) in await connection.fetch(statement("holders_without_lock"))
        }
        for holder in missing & self._locks.keys():
            # Our former connection still had the lock when this one was opened.
            await _take_lock(connection, self._locks[holder])
        self._missed = {
            holder: self._missed.get(holder, now) for holder in missing - self._locks.keys()
        }
        if now < self._patient_until:
            return []
        return sorted(name for name, since in self._missed.items() if now - since >= CERTAIN_S)

    def _disconnect(self, error: Exception) -> None:
        connection, self._connection, self._was_disconnected = self._connection, None, True
        if connection is not None:
            connection.raw.terminate()
        logger.debug("the control connection to %s: %s", self._connector.address.where, error)

    def _receive(
        self, own_pid: int, _connection: Any, pid: int, _channel: str, payload: str
    ) -> None:
        """Handle a signal or broadcast, perhaps after its connection was closed."""
        if pid == own_pid:
            return
        if payload == _CHANGE:
            self._signal.notify()
            return
        topic, _, text = unpack_text(payload).partition("\n")
        self._on_broadcast(topic, text.encode())


async def _take_lock(connection: PooledConnection, number: int) -> bool:
    (is_locked,) = await connection.fetchrow(statement("take_liveness_lock"), number)
    return bool(is_locked)
