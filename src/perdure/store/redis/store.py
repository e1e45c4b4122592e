"""An index in Redis in front of a store: lookups of pending calls read the store by id only.

The store stays authoritative. The index follows the store's feed instead of the commits, so a crash
cannot leave it behind unnoticed: every lookup first reads the records that the feed has beyond the
index. Its result is used only if each entry, read by its id, has the version that the index has;
else the store answers and the index is corrected. The store also answers if Redis is unreachable.
"""

import logging
import secrets
import time
from collections.abc import Sequence
from typing import Final, Unpack

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from perdure.store.base import (
    Check,
    Entry,
    FindOptions,
    Heads,
    ListingOptions,
    Page,
    Put,
    Record,
    Store,
    Write,
)
from perdure.store.redis.index import (
    DEADLINES,
    Anchor,
    EntryNames,
    IndexLookup,
    Item,
    RedisIndex,
    TooMany,
    index_items,
)
from perdure.store.shared.paging import END
from perdure.store.shared.queries import EntryQuery
from perdure.store.shared.wrapper import StoreWrapper

logger = logging.getLogger("perdure")

KIND: Final = "pending"
WAIT_S: Final = 1.0  # for a reply of Redis
PAUSE_S: Final = 5.0  # after a failure, before Redis is used again
_FEED: Final = 500
_PAGES: Final = 20  # of the feed; an index further behind is rebuilt
_ROUNDS: Final = 2  # of catching up, while other processes write


_NOTHING: Final = EntryQuery(KIND, None, None, None, None, 0)  # only lets the index catch up


class IndexedStore(StoreWrapper):
    """Store with an index in Redis. All but lookups of pending calls goes to the store itself."""

    def __init__(self, primary: Store, url: str, names: EntryNames) -> None:
        super().__init__(primary)
        # None counts as missing: a store without it is renewed by the event loop only.
        self.renew_in_thread = getattr(primary, "renew_in_thread", None)
        self._url = url
        self._names = names
        self._index: RedisIndex | None = None
        self._paused_until = 0.0
        self._is_stale = False  # after an entry was put without a record, and Redis was unreachable

    async def open(self) -> None:
        """Open the store; the first lookup connects to Redis."""
        await self.primary.open()
        if self._index is None:
            client = Redis.from_url(
                self._url,
                socket_timeout=WAIT_S,
                socket_connect_timeout=WAIT_S,
                retry=Retry(NoBackoff(), 0),  # the store is faster than a second try
                decode_responses=True,
            )
            self._index = RedisIndex(client)

    async def close(self) -> None:
        """Close the store, then the connections to Redis."""
        index, self._index = self._index, None
        try:
            await self.primary.close()
        finally:
            if index is not None:
                await index.close()

    # --- lookups --------------------------------------------------------------------------------

    async def find(self, kind: str, **options: Unpack[FindOptions]) -> Page:
        """Return entries of a kind by key; pending calls through the index, if it is complete."""
        query = EntryQuery.of(kind, options)
        keys = _keys(query, self._names) if kind == KIND and not query.skip else []
        index = self._available_index() if keys else None
        if index is not None:
            page = await self._find_indexed(index, query, keys)
            if page is not None:
                return page
        return await super().find(kind, **options)

    async def find_listed(self, kind: str, listing: str, **options: Unpack[ListingOptions]) -> Page:
        """Return the entries of a listing: the store has them in order. The index catches up."""
        index = self._available_index() if kind == KIND else None
        if index is not None:
            await self._find_indexed(index, _NOTHING, [])
        return await super().find_listed(kind, listing, **options)

    async def _find_indexed(
        self, index: RedisIndex, query: EntryQuery, keys: list[str]
    ) -> Page | None:
        """Return the page of the index; None if Redis fails or the index cannot answer."""
        try:
            try:
                return await self._lookup(index, query, keys)
            except TooMany:
                return None
            except ResponseError:  # another program's data is under our keys
                await self._rebuild(index)
        except (RedisError, OSError, TimeoutError) as error:
            self._pause(error)
        return None

    async def _lookup(self, index: RedisIndex, query: EntryQuery, keys: list[str]) -> Page | None:
        """Catch up with the feed and look up the page; None: the store must answer."""
        if self._is_stale:
            await index.drop()
            self._is_stale = False
        for _ in range(_ROUNDS):
            lookup = await index.lookup(keys, query.due_before)
            records = None
            if lookup and all(_is_member(query, item, self._names) for item in lookup.items):
                records = await self._records_beyond(lookup.anchor)
            if lookup is None or records is None:
                await self._rebuild(index)
                return None
            if not records:
                return await self._verified_page(index, query, lookup)
            await self._follow(index, lookup.anchor, records)
        return None

    async def _records_beyond(self, anchor: Anchor) -> list[Record] | None:
        """Return the records after the anchor; None if it is too far back or not in the feed."""
        cursor = anchor.cursor
        records: list[Record] = []
        for _ in range(_PAGES):
            try:
                feed = await self.primary.tail(cursor, _FEED)
            except ValueError:  # not a cursor of this store
                return None
            records += feed.records
            cursor = feed.cursor
            if len(feed.records) < _FEED:
                return _after_anchor(anchor, records)
        return None

    async def _follow(self, index: RedisIndex, anchor: Anchor, records: Sequence[Record]) -> None:
        """Update the index from the streams of these records."""
        entries = [
            entry
            for stream in dict.fromkeys(record.stream for record in records)
            for entry in await self.primary.entries_of(stream)
            if entry.kind == KIND
        ]
        await index.apply(index_items(entries, self._names), anchor, _anchor_at(records))

    async def _verified_page(
        self, index: RedisIndex, query: EntryQuery, lookup: IndexLookup
    ) -> Page | None:
        """Return the page of a lookup, each entry read by its id; None if one has changed."""
        matches = sorted(
            (
                item
                for item in lookup.items
                if query.has(item.id, item.state, item.stream, item.due_at)
            ),
            key=lambda item: query.position(item.id, item.due_at),
        )
        items = matches[: query.limit]
        entries = [await self.primary.get(KIND, item.id) for item in items]
        wrong = [
            item
            for item, entry in zip(items, entries, strict=True)
            if entry is None or index_items([entry], self._names) != [item]
        ]
        if wrong:
            await self._correct(index, wrong)
            return None
        present = tuple(entry for entry in entries if entry is not None)
        return query.page(present, has_more=len(matches) > len(items))

    async def _correct(self, index: RedisIndex, wrong: Sequence[Item]) -> None:
        """Replace items that differ from the store."""
        for item in wrong:
            entry = await self.primary.get(KIND, item.id)
            await index.apply([Item(item.id)])
            if entry is not None:
                await index.apply(index_items([entry], self._names))

    async def _rebuild(self, index: RedisIndex) -> None:
        """Rebuild the index, unless another process is doing that."""
        token = secrets.token_hex(8)
        if not await index.begin_rebuild(token):
            return
        anchor = Anchor((await self.primary.tail(END)).cursor)  # first: later records are caught up
        after: str | None = None
        while True:
            page = await self.primary.find(KIND, after=after, limit=_FEED)
            await index.apply(index_items(page.entries, self._names))
            if page.next is None:
                break
            after = page.next
        await index.finish_rebuild(token, anchor)
        logger.info("the index in Redis was rebuilt")

    # --- failures of Redis ----------------------------------------------------------------------

    def _available_index(self) -> RedisIndex | None:
        """Return the index, unless Redis has just failed."""
        return self._index if time.monotonic() >= self._paused_until else None

    def _pause(self, error: Exception) -> None:
        self._paused_until = time.monotonic() + PAUSE_S
        logger.warning("Redis failed (%s): lookups use the store, slower", type(error).__name__)

    async def _apply_puts(self, writes: Sequence[Write], puts: Sequence[Put]) -> None:
        """Apply entries to the index that are put without a record, so the feed lacks them."""
        streams = {write.stream for write in writes if not write.records}
        silent_puts = [put for put in puts if put.kind == KIND and put.stream in streams]
        if not silent_puts:
            return
        index = self._available_index()
        if index is None:
            self._is_stale = True
            return
        try:
            for put in silent_puts:
                await index.apply([_put_item(put, self._names)])
        except (RedisError, OSError, TimeoutError) as error:
            self._is_stale = True
            self._pause(error)

    # --- commits --------------------------------------------------------------------

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        """Commit to the store; the index follows the feed."""
        heads = await super().commit(writes, puts, checks)
        if puts:
            await self._apply_puts(writes, puts)
        return heads


def _keys(query: EntryQuery, names: EntryNames) -> list[str]:
    """Return the keys that have the result; none for a query of all calls."""
    if query.stream is not None:
        return [f"pending:by-session:{names.session(query.stream)}"]
    if query.due_before is not None:
        return [DEADLINES]
    if query.state is not None:
        return [f"pending:by-status:{status}" for status in names.statuses(query.state)]
    return []


def _is_member(query: EntryQuery, item: Item, names: EntryNames) -> bool:
    """Return whether an item belongs to the keys that it was read from."""
    if query.stream is not None:
        return item.session == names.session(query.stream)
    if query.due_before is not None:
        return item.due_at is not None and item.due_at <= query.due_before
    return query.state is not None and item.status in names.statuses(query.state)


def _after_anchor(anchor: Anchor, records: list[Record]) -> list[Record] | None:
    if anchor.record is None:
        return records
    if not records or _identity(records[0]) != anchor.record:
        return None
    return records[1:]


def _anchor_at(records: Sequence[Record]) -> Anchor:
    """Return the anchor after these records.

    It names the last record, unless there is a gap before it: whether a feed returns a record
    behind a gap depends on the moment.
    """
    last = records[-1]
    if len(records) > 1 and records[-2].pos == last.pos - 1:
        return Anchor(str(records[-2].pos), _identity(last))
    return Anchor(str(last.pos))


def _identity(record: Record) -> tuple[str, int, int]:
    return record.stream, record.seq, record.at


def _put_item(put: Put, names: EntryNames) -> Item:
    if not isinstance(put.data, bytes):
        return Item(put.key)
    version = put.expect + 1
    entry = Entry(put.kind, put.key, put.stream, version, put.state, put.due, put.data)
    return index_items([entry], names)[0]
