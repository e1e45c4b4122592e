"""An index in Redis in front of a store: lookups of pending calls read the store by id only.

The store stays authoritative. The index follows the store's feed instead of the commits, so a crash
cannot leave it behind unnoticed: every lookup first reads the records that the feed has beyond the
index. Its result is used only if each entry, read by its id, has the version that the index has;
else the store answers and the index is corrected. The store also answers if Redis is unreachable.
"""

import logging
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from perdure.store.base import (
    Census,
    Check,
    Entry,
    Feed,
    Growth,
    Heads,
    Lease,
    Order,
    Page,
    Put,
    Record,
    Slice,
    Store,
    StreamState,
    SuspectLimit,
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
from perdure.store.shared.paging import END, PagePosition, page_cursor, page_position

logger = logging.getLogger("perdure")

KIND: Final = "pending"
WAIT_S: Final = 1.0  # for a reply of Redis
PAUSE_S: Final = 5.0  # after a failure, before Redis is used again
_FEED: Final = 500
_PAGES: Final = 20  # of the feed; an index further behind is rebuilt
_ROUNDS: Final = 2  # of catching up, while other processes write


@dataclass(frozen=True, slots=True)
class _Query:
    """Arguments of one call of `find`."""

    state: str | None
    stream: str | None
    due_before: int | None
    after: PagePosition | None
    limit: int

    def keys(self, names: EntryNames) -> list[str]:
        """Return the keys that have the result; none for a query of all calls."""
        if self.stream is not None:
            return [f"pending:by-session:{names.session(self.stream)}"]
        if self.due_before is not None:
            return [DEADLINES]
        if self.state is not None:
            return [f"pending:by-status:{status}" for status in names.statuses(self.state)]
        return []

    def is_member(self, item: Item, names: EntryNames) -> bool:
        """Return whether the item belongs to the keys that it was read from."""
        if self.stream is not None:
            return item.session == names.session(self.stream)
        if self.due_before is not None:
            return item.due is not None and int(item.due) <= self.due_before
        return self.state is not None and item.status in names.statuses(self.state)

    def position(self, item: Item) -> PagePosition:
        """Return the position of the item in the order of the result."""
        return item.due_position if self.due_before is not None else (0, item.id)

    def is_match(self, item: Item) -> bool:
        """Return whether the item is in the result, on this page or a later one."""
        due = None if item.due is None else int(item.due)
        return (
            self.state in (None, item.state)
            and self.stream in (None, item.stream)
            and (self.due_before is None or (due is not None and due <= self.due_before))
            and (self.after is None or self.position(item) > self.after)
        )


_NOTHING: Final = _Query(None, None, None, None, 0)  # only lets the index catch up


class IndexedStore:
    """Store with an index in Redis. All but lookups of pending calls goes to the store itself."""

    def __init__(self, primary: Store, url: str, names: EntryNames) -> None:
        self.primary = primary
        # None counts as missing: a store without it is renewed by the event loop only.
        self.renew_in_thread = getattr(primary, "renew_in_thread", None)
        self._url = url
        self._names = names
        self._index: RedisIndex | None = None
        self._paused_until = 0.0
        self._is_stale = False  # after an entry was put without a record, and Redis was unreachable

    def now(self) -> int:
        """Return the store's time, in ms since the epoch."""
        return self.primary.now()

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

    async def find(
        self,
        kind: str,
        *,
        state: str | None = None,
        stream: str | None = None,
        due_before: int | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page:
        """Return entries of a kind; pending calls through the index, if it is complete."""
        query = _Query(state, stream, due_before, page_position(after), max(limit, 0))
        keys = query.keys(self._names) if kind == KIND else []
        index = self._available_index() if keys else None
        if index is not None:
            page = await self._find_indexed(index, query, keys)
            if page is not None:
                return page
        return await self.primary.find(
            kind, state=state, stream=stream, due_before=due_before, after=after, limit=limit
        )

    async def find_listed(
        self,
        kind: str,
        listing: str,
        *,
        order: Order = "oldest",
        after: str | None = None,
        limit: int = 100,
    ) -> Page:
        """Return the entries of a listing: the store has them in order. The index catches up."""
        index = self._available_index() if kind == KIND else None
        if index is not None:
            await self._find_indexed(index, _NOTHING, [])
        return await self.primary.find_listed(kind, listing, order=order, after=after, limit=limit)

    async def _find_indexed(self, index: RedisIndex, query: _Query, keys: list[str]) -> Page | None:
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

    async def _lookup(self, index: RedisIndex, query: _Query, keys: list[str]) -> Page | None:
        """Catch up with the feed and look up the page; None: the store must answer."""
        if self._is_stale:
            await index.drop()
            self._is_stale = False
        for _ in range(_ROUNDS):
            lookup = await index.lookup(keys, query.due_before)
            records = None
            if lookup and all(query.is_member(item, self._names) for item in lookup.items):
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
        self, index: RedisIndex, query: _Query, lookup: IndexLookup
    ) -> Page | None:
        """Return the page of a lookup, each entry read by its id; None if one has changed."""
        matches = sorted(filter(query.is_match, lookup.items), key=query.position)
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
        has_more = bool(items) and len(matches) > len(items)
        cursor = page_cursor(query.position(items[-1])) if has_more else None
        return Page(tuple(entry for entry in entries if entry is not None), cursor)

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

    # --- passed to the store --------------------------------------------------------------------

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        """Commit to the store; the index follows the feed."""
        heads = await self.primary.commit(writes, puts, checks)
        if puts:
            await self._apply_puts(writes, puts)
        return heads

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        """Read from the store."""
        return await self.primary.read(stream, after, limit)

    async def get(self, kind: str, key: str) -> Entry | None:
        """Get from the store."""
        return await self.primary.get(kind, key)

    async def entries_of(self, stream: str) -> Sequence[Entry]:
        """Return every entry of a stream, from the store."""
        return await self.primary.entries_of(stream)

    async def streams(self, after: str = "", limit: int = 500) -> Sequence[StreamState]:
        """Return streams by id, from the store."""
        return await self.primary.streams(after, limit)

    async def claim(
        self,
        holder: str,
        kind: str,
        limit: int,
        *,
        only: str | None = None,
        suspects: SuspectLimit | None = None,
    ) -> list[Lease]:
        """Claim from the store."""
        return await self.primary.claim(holder, kind, limit, only=only, suspects=suspects)

    async def reap(self, now: int) -> None:
        """Reap dead holders of the store."""
        await self.primary.reap(now)

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        """Renew the holder's row in the store."""
        return await self.primary.renew(holder, ttl_ms, join=join)

    async def tail(self, cursor: str, limit: int = 500) -> Feed:
        """Return the store's feed after the cursor."""
        return await self.primary.tail(cursor, limit)

    async def growth(self, cursor: str, limit: int = 500) -> Growth:
        """Return the streams that have grown since the cursor."""
        return await self.primary.growth(cursor, limit)

    async def census(self, kinds: Collection[str]) -> Census:
        """Count what exists in the store."""
        return await self.primary.census(kinds)

    async def changed(self, timeout_s: float) -> None:
        """Wait for a change of the store."""
        await self.primary.changed(timeout_s)

    def broadcast(self, topic: str, data: bytes) -> None:
        """Broadcast through the store."""
        self.primary.broadcast(topic, data)

    def subscribe(self, callback: Callable[[str, bytes], None]) -> AbstractContextManager[None]:
        """Subscribe to the store's broadcasts."""
        return self.primary.subscribe(callback)


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
