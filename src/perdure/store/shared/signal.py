"""Wake-ups and broadcasts within one event loop: the store may have changed, a message came."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

# The signal that this task last read, and its count then. A change between reading and waiting
# must end the wait at once, not after the timeout.
_LAST_READ: ContextVar[tuple[int, int]] = ContextVar("perdure_store_last_read", default=(0, 0))


class Signal:
    """Wake-up for the tasks of one event loop that wait for a change."""

    def __init__(self) -> None:
        self._count = 0
        self._next: asyncio.Event | None = None  # only while a task waits

    def mark_seen(self) -> None:
        """Remember that this task is about to read everything up to now."""
        _LAST_READ.set((id(self), self._count))

    def notify(self) -> None:
        """Wake all waiting tasks; call it in the event loop's thread."""
        self._count += 1
        event, self._next = self._next, None
        if event is not None:
            event.set()

    async def wait(self, timeout_s: float) -> None:
        """Return after a `notify` since this task last read, or after the timeout."""
        signal, last_read = _LAST_READ.get()
        if signal != id(self):
            last_read = self._count
        if last_read == self._count:
            if self._next is None:
                self._next = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._next.wait()
        self.mark_seen()
        await asyncio.sleep(0)


logger = logging.getLogger("perdure")

BroadcastCallback = Callable[[str, bytes], None]  # topic, data


class Subscribers:
    """Present subscribers to broadcasts; messages are not kept for later ones."""

    def __init__(self) -> None:
        self._callbacks: list[BroadcastCallback] = []

    def publish(self, topic: str, data: bytes) -> None:
        """Call every subscriber; the failure of one does not reach the others or the sender."""
        for callback in tuple(self._callbacks):
            try:
                callback(topic, data)
            except Exception:
                logger.exception("a subscriber failed on a broadcast about %s", topic)

    @contextmanager
    def subscribe(self, callback: BroadcastCallback) -> Iterator[None]:
        """Call the callback with every broadcast until the context ends."""
        self._callbacks.append(callback)
        try:
            yield
        finally:
            self._callbacks.remove(callback)
