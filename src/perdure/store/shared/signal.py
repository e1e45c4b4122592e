"""Tells tasks of one event loop that the store may have changed."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import anyio
from anyio.lowlevel import checkpoint

# What this task last looked at: which signal, and how often that had rung by then. A change that
# comes between looking and waiting must end the wait at once, not after the time-out.
_LOOKED: ContextVar[tuple[int, int]] = ContextVar("perdure_store_looked", default=(0, 0))


class Signal:
    """A bell for the tasks of one event loop."""

    def __init__(self) -> None:
        self._rung = 0
        self._next: asyncio.Event | None = None  # if somebody waits for it

    def look(self) -> None:
        """Remember that this task sees everything up to here."""
        _LOOKED.set((id(self), self._rung))

    def ring(self) -> None:
        """Wake everybody who waits; for the event loop's own thread."""
        self._rung += 1
        rung, self._next = self._next, None
        if rung is not None:
            rung.set()

    async def wait(self, timeout_s: float) -> None:
        """Return when it has rung since this task last looked, or after the timeout."""
        signal, seen = _LOOKED.get()
        if signal != id(self):
            seen = self._rung
        with anyio.move_on_after(timeout_s):
            if seen == self._rung:
                if self._next is None:
                    self._next = asyncio.Event()
                await self._next.wait()
        self.look()
        await checkpoint()


logger = logging.getLogger("perdure")

Overheard = Callable[[str, bytes], None]  # topic, data


class Subscribers:
    """Those who listen at this moment; nothing is kept for who comes later."""

    def __init__(self) -> None:
        self._all: list[Overheard] = []

    def tell(self, topic: str, data: bytes) -> None:
        """Hand on what was whispered; one who fails harms neither the others nor the speaker."""
        for heard in tuple(self._all):
            try:
                heard(topic, data)
            except Exception:
                logger.exception("a whisper about %s could not be taken", topic)

    @contextmanager
    def listening(self, heard: Overheard) -> Iterator[None]:
        """Be handed everything that is whispered meanwhile."""
        self._all.append(heard)
        try:
            yield
        finally:
            self._all.remove(heard)
