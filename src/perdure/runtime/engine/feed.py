"""Reader of the feed: it notifies listeners here of what any process has recorded."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from perdure.runtime.records.cache import HeadListener, SessionCache
from perdure.store.base import Record, Store
from perdure.store.shared.paging import END

POLL_S: Final = 1.0
PAGE: Final = 500
# Commits of this process are notified at once; those of others are worth gathering, and the more
# so the more streams grow: each of them is reported once.
GATHER_S: Final = 0.02
BUSY_GATHER_S: Final = 0.1
BUSY_STREAMS: Final = 32  # that grew since the last look

# Gets the position after which the records follow, and the records.
RecordsListener = Callable[[int, Sequence[Record]], None]


class FeedReader:
    """Notifies listeners of the newest seq of their stream: a hint, late or missing is harmless."""

    def __init__(self, store: Store, cache: SessionCache) -> None:
        self._store = store
        self._cache = cache
        self._listeners: list[RecordsListener] = []
        self._cursor = END
        self._is_busy = False  # many streams grew since the last look

    @contextmanager
    def subscribe_records(self, listener: RecordsListener) -> Iterator[None]:
        """Call the listener with every new record, in the order of the feed."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def subscribe(self, stream: str, listener: HeadListener) -> AbstractContextManager[None]:
        """Return a context in which the listener gets the newest seq of one stream."""
        return self._cache.subscribe(stream, listener)

    def reset(self) -> None:
        """Read from the end again: after a close, the same URL may lead to another store."""
        self._cursor = END

    async def fix_cursor(self) -> None:
        """Fix where the feed is read from: listeners get all that is recorded after this."""
        if self._cursor == END:
            now = (await self._store.tail(END, 0)).cursor
            if self._cursor == END:  # unless another caller has fixed it in the meantime
                self._cursor = now

    async def run(self) -> None:
        """Read the feed for ever, from now on or from where a failure stopped it."""
        await self.fix_cursor()
        self._cache.notify_all()  # of what was recorded before the cursor
        while True:
            await self._store.changed(POLL_S)
            if not self._listeners:
                await asyncio.sleep(BUSY_GATHER_S if self._is_busy else GATHER_S)
            while await (self._read_records() if self._listeners else self._read_heads()):
                pass

    async def _read_records(self) -> bool:
        """Pass the next records to the listeners; return whether there may be more."""
        after = int(self._cursor)
        feed = await self._store.tail(self._cursor, PAGE)
        self._cursor = feed.cursor
        for listener in tuple(self._listeners):
            listener(after, feed.records)
        for stream, seq in {record.stream: record.seq for record in feed.records}.items():
            self._cache.notify(stream, seq)
        return len(feed.records) == PAGE

    async def _read_heads(self) -> bool:
        """Notify of the streams that have grown; return whether there may be more."""
        growth = await self._store.growth(self._cursor, PAGE)
        self._cursor = growth.cursor
        self._is_busy = len(growth.heads) >= BUSY_STREAMS
        for stream, seq in growth.heads.items():
            self._cache.notify(stream, seq)
        return growth.more
