"""The reader of the feed: tells those who listen here what other processes write, too."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import anyio

from perdure.runtime.records.cache import Heard, SessionCache
from perdure.store.base import Record, Store
from perdure.store.shared.paging import END

POLL_S: Final = 1.0
PAGE: Final = 500
# What is written here is told at once; for the rest it is worth waiting for some more of it.
GATHER_S: Final = 0.02

Taken = Callable[[Sequence[Record]], None]


class FeedReader:
    """Tells listeners the newest seq of their stream. A hint: late or missing is harmless."""

    def __init__(self, store: Store, near: SessionCache | None = None) -> None:
        self._store = store
        self._near = near or SessionCache()
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

    def listening(self, stream: str, heard: Heard) -> AbstractContextManager[None]:
        """Be told of one stream."""
        return self._near.listening(stream, heard)

    def start_over(self) -> None:
        """Read from now on: the store was closed, and what is behind its name may be another."""
        self._cursor = END

    async def begin(self) -> None:
        """Fix from where on the feed is read: all that is recorded after this, readers get."""
        if self._cursor == END:
            now = (await self._store.tail(END, 0)).cursor
            if self._cursor == END:  # not where somebody has fixed it meanwhile
                self._cursor = now

    async def run(self) -> None:
        """Read the feed from now on, or from where a failure ended that, for ever."""
        await self.begin()
        self._near.tell_all()  # what was recorded before that nobody is told of later
        while True:
            await self._store.changed(POLL_S)
            if not self._readers:
                await anyio.sleep(GATHER_S)
            more = True
            while more:
                feed = await self._store.tail(self._cursor, PAGE)
                more, self._cursor = len(feed.records) == PAGE, feed.cursor
                for taken in tuple(self._readers):
                    taken(feed.records)
                newest = {record.stream: record.seq for record in feed.records}
                for stream, seq in newest.items():
                    self._near.tell(stream, seq)


async def wait_for(event: anyio.Event, timeout_s: float) -> None:
    """Wait until it is set, at most that long."""
    with anyio.move_on_after(timeout_s):
        await event.wait()
