"""Who is told when a stream gets records: one reader of the feed for everybody in the process."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import anyio

from holdfast.store.base import Record, Store
from holdfast.store.cursors import END

POLL_S: Final = 1.0
PAGE: Final = 500


Heard = Callable[[int], None]
Taken = Callable[[Sequence[Record]], None]


class Watch:
    """Tells listeners the newest seq of their stream. A hint: late or missing is harmless."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listeners: dict[str, list[Heard]] = {}
        self._readers: list[Taken] = []
        self._cursor = END

    @contextmanager
    def reading(self, taken: Taken) -> Iterator[None]:
        """Be handed every record that comes, in the order of the feed."""
        self._readers.append(taken)
        try:
            yield
        finally:
            self._readers.remove(taken)

    @contextmanager
    def listening(self, stream: str, heard: Heard) -> Iterator[None]:
        """Be told of one stream."""
        self._listeners.setdefault(stream, []).append(heard)
        try:
            yield
        finally:
            self._listeners[stream].remove(heard)
            if not self._listeners[stream]:
                del self._listeners[stream]

    async def run(self) -> None:
        """Read the feed from now on, or from where a failure ended that, for ever."""
        if self._cursor == END:
            self._cursor = (await self._store.tail(END, 0)).cursor
        while True:
            await self._store.changed(POLL_S)
            more = True
            while more:
                feed = await self._store.tail(self._cursor, PAGE)
                more, self._cursor = len(feed.records) == PAGE, feed.cursor
                for taken in tuple(self._readers):
                    taken(feed.records)
                for record in feed.records:
                    for heard in tuple(self._listeners.get(record.stream, ())):
                        heard(record.seq)


async def wait_for(event: anyio.Event, timeout_s: float) -> None:
    """Wait until it is set, at most that long."""
    with anyio.move_on_after(timeout_s):
        await event.wait()
