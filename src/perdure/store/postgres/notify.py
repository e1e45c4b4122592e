"""What makes a PostgreSQL store quick, on a connection of its own: hints and signs of life.

Nothing here is needed for correctness. Hints are NOTIFY, each in a transaction of its own and many
in one; without LISTEN the server is looked at instead. A holder's sign of life is an advisory lock,
which ends with its connection: so a worker that died is seen before its lease is over.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import anyio

from perdure.store.postgres.connection import Connector, PooledConnection
from perdure.store.postgres.sql import packed, statement, unpacked
from perdure.store.shared.signal import Overheard, Signal

logger = logging.getLogger("perdure")

POLL_S: Final = 1.0  # beside LISTEN, for hints that got lost
LOOK_S: Final = 0.2  # without it, and for signs of life
CERTAIN_S: Final = 0.35  # for so long nobody has seen a sign of life of who is called dead
PATIENCE_S: Final = 2.0  # with the others, after we were cut off ourselves: perhaps they were, too
_BREATH_S: Final = 0.01  # between two NOTIFYs: the first of many goes out at once
_NEWS: Final = ""
_LARGEST: Final = 7900  # bytes of a payload; PostgreSQL takes less than 8000
_MOST_WHISPERS: Final = 1000

Reap = Callable[[list[str]], Awaitable[None]]


class Control:
    """The one connection that listens and shows that its holders are alive."""

    def __init__(self, dial: Connector, signal: Signal, overheard: Overheard, reap: Reap) -> None:
        self._dial = dial
        self._overheard = overheard
        self._signal = signal
        self._reap = reap
        self._channel = f"perdure_{dial.address.schema}"
        self._line: PooledConnection | None = None
        self._using = asyncio.Lock()
        self._wanted = asyncio.Event()  # something is to be sent
        self._news = False
        self._whispers: list[str] = []
        self._waiting = 0
        self._pulses: dict[str, int] = {}
        self._missed: dict[str, float] = {}  # holders without a sign of life, and since when
        self._next_look = 0.0  # all of these by the monotonic clock
        self._patient_until = 0.0
        self._was_cut = False
        self._snapshot = ""
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    # --- for the store ---

    def tell(self) -> None:
        """Something was committed here."""
        self._signal.ring()
        if self._dial.address.listen:
            self._news = True
            self._send()

    def broadcast(self, topic: str, data: bytes) -> None:
        """Say something to the other processes that may get lost."""
        if not self._dial.address.listen or len(self._whispers) >= _MOST_WHISPERS:
            return
        said = packed(f"{topic}\n{data.decode(errors='replace')}").encode(errors="replace")
        if len(said) <= _LARGEST:
            self._whispers.append(said.decode())
            with suppress(RuntimeError):  # no event loop runs here
                self._send()

    def listen(self) -> None:
        """Somebody wants to hear what other processes whisper."""
        if self._dial.address.listen:
            self._start()

    async def changed(self, timeout_s: float) -> None:
        """Return when something may have changed, here or in another process."""
        self._start()
        self._waiting += 1
        try:
            await self._signal.wait(timeout_s)
        finally:
            self._waiting -= 1

    def shows(self, holder: str) -> bool:
        """Whether this holder's sign of life is here."""
        return holder in self._pulses

    async def begin_pulse(self, holder: str) -> int | None:
        """From now on this holder is seen to be alive; None: only its lease can tell."""
        if not self._dial.address.advisory or holder in self._pulses:
            return self._pulses.get(holder)
        number = int.from_bytes(hashlib.sha256(holder.encode()).digest()[:8], signed=True)
        self._start()
        try:
            async with self._using:
                kept = await self._keep(await self._connected(), number)
        except Exception as error:  # noqa: BLE001 - it lives without; the join itself meets it too
            self._broke(error)
            return None
        if kept:
            self._pulses[holder] = number
        return number if kept else None

    async def end_pulse(self, holder: str) -> None:
        """The holder has left."""
        number = self._pulses.pop(holder, None)
        if number is None:
            return
        with suppress(Exception):
            async with self._using:
                if self._line is not None:
                    await self._line.fetch(statement("end_pulse"), number)

    async def close(self) -> None:
        """Send what is to be sent, and end."""
        self._closing = True
        self._wanted.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._line is not None:
            await self._line.close()

    # --- the task ---

    def _send(self) -> None:
        self._wanted.set()
        self._start()

    def _start(self) -> None:
        if self._task is None and not self._closing:
            # A task of nobody's: it serves everybody who uses the store.
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while not self._closing or self._has_to_send:
            try:
                async with self._using:
                    line = await self._connected()
                    await self._say(line)
                    dead = await self._look(line)
                if dead:
                    await self._reap(dead)
                    self.tell()
            except Exception as error:  # noqa: BLE001 - whoever needs the database meets it, and is told
                self._broke(error)
            if self._closing:
                return
            await self._rest()

    async def _rest(self) -> None:
        """Until something is to be sent or it is time to look."""
        if self._line is None:  # what is to be sent waits too
            await asyncio.sleep(LOOK_S)
            return
        looks_often = self._pulses or not self._dial.address.listen
        await asyncio.sleep(_BREATH_S)
        # Not wait_for: before Python 3.12 it can swallow that this task is called off.
        with anyio.move_on_after(LOOK_S if looks_often else POLL_S):
            await self._wanted.wait()

    @property
    def _has_to_send(self) -> bool:
        return self._news or bool(self._whispers)

    async def _connected(self) -> PooledConnection:
        if self._line is not None and self._line.connection.is_closed():
            self._broke(ConnectionError("it was cut"))
        if self._line is None:
            self._line = await self._prepared(await self._dial.line(synced=False))
            self._missed.clear()
            if self._was_cut:
                self._patient_until, self._was_cut = time.monotonic() + PATIENCE_S, False
            self._signal.ring()  # whatever was said meanwhile was not heard
        return self._line

    async def _prepared(self, line: PooledConnection) -> PooledConnection:
        """A connection that listens, and shows that our holders are alive."""
        try:
            # It is made again at once: until then our holders look dead.
            line.connection.add_termination_listener(lambda _: self._wanted.set())
            if self._dial.address.listen:
                await line.connection.add_listener(self._channel, self._heard)
            for number in self._pulses.values():
                await self._keep(line, number)
        except BaseException:
            line.connection.terminate()
            raise
        return line

    async def _keep(self, line: PooledConnection, number: int) -> bool:
        (kept,) = await line.fetchrow(statement("keep_pulse"), number)
        return bool(kept)

    async def _say(self, line: PooledConnection) -> None:
        self._wanted.clear()
        said, self._whispers = self._whispers, []
        if self._news:
            self._news = False
            said.append(_NEWS)
        if said:
            await line.fetch(statement("notify"), self._channel, said)

    async def _look(self, line: PooledConnection) -> list[str]:
        """The holders that have certainly died; rings if something has happened."""
        now = time.monotonic()
        if now < self._next_look:  # it is asked as often as there is something to send
            return []
        self._next_look = now + LOOK_S
        if self._waiting:
            (snapshot,) = await line.fetchrow(statement("snapshot"))
            if snapshot != self._snapshot:
                self._snapshot = snapshot
                self._signal.ring()
        return await self._dead(line, now) if self._pulses else []

    async def _dead(self, line: PooledConnection, now: float) -> list[str]:
        """Those who showed no sign of life for so long that they were not just cut off."""
        missing = {unpacked(name) for (name,) in await line.fetch(statement("without_pulse"))}
        for holder in missing & self._pulses.keys():
            # Our last connection had the lock when this one was made, and has ended since.
            await self._keep(line, self._pulses[holder])
        self._missed = {
            holder: self._missed.get(holder, now) for holder in missing - self._pulses.keys()
        }
        if now < self._patient_until:
            return []
        return sorted(name for name, since in self._missed.items() if now - since >= CERTAIN_S)

    def _broke(self, error: Exception) -> None:
        line, self._line, self._was_cut = self._line, None, True
        if line is not None:
            line.connection.terminate()
        logger.debug("the control connection to %s: %s", self._dial.address.where, error)

    def _heard(self, connection: Any, pid: int, _channel: str, said: str) -> None:
        if pid == connection.get_server_pid():
            return
        if said == _NEWS:
            self._signal.ring()
            return
        topic, _, text = unpacked(said).partition("\n")
        self._overheard(topic, text.encode())
