"""An index in Redis in front of a store: lookups of pending calls read the store by id only.

The store stays the truth. The index follows the store's feed, and nothing is written to it on the
way of a commit, so no crash can leave it behind unnoticed: every lookup first reads what the feed
has beyond the index. What it then finds is answered only if each entry, read by its id, is at the
very version that the index knows; else the store answers, and the index is mended. Redis away, or
wrong: the store answers.
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
    Lease,
    Page,
    Put,
    Record,
    Slice,
    Store,
    StreamState,
    Write,
)
from perdure.store.redis.index import (
    DEADLINES,
    Anchor,
    Item,
    Names,
    RedisIndex,
    Seen,
    TooMany,
    items_of,
)
from perdure.store.shared.paging import END, Place, cursor_of, place_of

logger = logging.getLogger("perdure")

KIND: Final = "pending"
WAIT_S: Final = 1.0  # for an answer of Redis
PAUSE_S: Final = 5.0  # before it is asked again after it failed
_FEED: Final = 500
_PAGES: Final = 20  # of the feed; an index further behind is made anew
_ROUNDS: Final = 2  # of catching up, while others write


@dataclass(frozen=True, slots=True)
class _Asked:
    """One question to `find`."""

    state: str | None
    stream: str | None
    due_before: int | None
    after: Place | None
    limit: int

    def keys(self, names: Names) -> list[str]:
        """Where the index has its answer; nowhere for all calls there are."""
        if self.stream is not None:
            return [f"pending:by-session:{names.session(self.stream)}"]
        if self.due_before is not None:
            return [DEADLINES]
        if self.state is not None:
            return [f"pending:by-status:{status}" for status in names.statuses(self.state)]
        return []

    def belongs(self, item: Item, names: Names) -> bool:
        """Whether it has any business where it was found."""
        if self.stream is not None:
            return item.session == names.session(self.stream)
        if self.due_before is not None:
            return item.due is not None and int(item.due) <= self.due_before
        return self.state is not None and item.status in names.statuses(self.state)

    def place(self, item: Item) -> Place:
        """Where it stands in the answer."""
        return item.place if self.due_before is not None else (0, item.id)

    def wants(self, item: Item) -> bool:
        """Whether it is in the answer, on this page or a later one."""
        due = None if item.due is None else int(item.due)
        return (
            self.state in (None, item.state)
            and self.stream in (None, item.stream)
            and (self.due_before is None or (due is not None and due <= self.due_before))
            and (self.after is None or self.place(item) > self.after)
        )


class IndexedStore:
    """A store with an index in Redis. Everything but lookups of pending calls is the store's."""

    def __init__(self, primary: Store, url: str, names: Names) -> None:
        self.primary = primary
        self._url = url
        self._names = names
        self._index: RedisIndex | None = None
        self._asleep_until = 0.0
        self._is_unsure = False  # whether something was written that the index was not told of

    def now(self) -> int:
        """The store's clock, in ms since the epoch."""
        return self.primary.now()

    async def open(self) -> None:
        """Open the store; Redis is looked for by the first lookup."""
        await self.primary.open()
        if self._index is None:
            client = Redis.from_url(
                self._url,
                socket_timeout=WAIT_S,
                socket_connect_timeout=WAIT_S,
                retry=Retry(NoBackoff(), 0),  # the store answers sooner than a second try
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

    # --- lookups ------------------------------------------------------------------------------

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
        """Entries of a kind; pending calls through the index, if it has all of them."""
        asked = _Asked(state, stream, due_before, place_of(after), max(limit, 0))
        keys = asked.keys(self._names) if kind == KIND else []
        index = self._awake() if keys else None
        if index is not None:
            page = await self._looked_up(index, asked, keys)
            if page is not None:
                return page
        return await self.primary.find(
            kind, state=state, stream=stream, due_before=due_before, after=after, limit=limit
        )

    async def _looked_up(self, index: RedisIndex, asked: _Asked, keys: list[str]) -> Page | None:
        """The answer of the index, if Redis is there and it has one."""
        try:
            try:
                return await self._indexed(index, asked, keys)
            except TooMany:
                return None
            except ResponseError:  # what is there cannot be ours
                await self._rebuild(index)
        except (RedisError, OSError, TimeoutError) as error:
            self._sleep(error)
        return None

    async def _indexed(self, index: RedisIndex, asked: _Asked, keys: list[str]) -> Page | None:
        """The answer, if the index has it exactly; None: let the store answer."""
        if self._is_unsure:
            await index.drop()
            self._is_unsure = False
        for _ in range(_ROUNDS):
            seen = await index.look(keys, asked.due_before)
            news = None
            if seen is not None and all(asked.belongs(item, self._names) for item in seen.items):
                news = await self._news(seen.anchor)
            if seen is None or news is None:
                await self._rebuild(index)
                return None
            if not news:
                return await self._checked(index, asked, seen)
            await self._follow(index, seen.anchor, news)
        return None

    async def _news(self, anchor: Anchor) -> list[Record] | None:
        """The records beyond the anchor; None if it lies too far back, or nowhere in the feed."""
        cursor = anchor.cursor
        news: list[Record] = []
        for _ in range(_PAGES):
            try:
                feed = await self.primary.tail(cursor, _FEED)
            except ValueError:  # not a place of this store
                return None
            news += feed.records
            cursor = feed.cursor
            if len(feed.records) < _FEED:
                return _beyond(anchor, news)
        return None

    async def _follow(self, index: RedisIndex, anchor: Anchor, news: Sequence[Record]) -> None:
        """Bring the index to what these records came with."""
        entries = [
            entry
            for stream in dict.fromkeys(record.stream for record in news)
            for entry in await self.primary.entries_of(stream)
            if entry.kind == KIND
        ]
        await index.apply(items_of(entries, self._names), anchor, _anchor_at(news))

    async def _checked(self, index: RedisIndex, asked: _Asked, seen: Seen) -> Page | None:
        """The page of what was seen, each entry read by its id; None if one has changed."""
        wanted = sorted(filter(asked.wants, seen.items), key=asked.place)
        chosen = wanted[: asked.limit]
        entries = [await self.primary.get(KIND, item.id) for item in chosen]
        wrong = [
            item
            for item, entry in zip(chosen, entries, strict=True)
            if entry is None or items_of([entry], self._names) != [item]
        ]
        if wrong:
            await self._mend(index, wrong)
            return None
        is_more = bool(chosen) and len(wanted) > len(chosen)
        following = cursor_of(asked.place(chosen[-1])) if is_more else None
        return Page(tuple(entry for entry in entries if entry is not None), following)

    async def _mend(self, index: RedisIndex, wrong: Sequence[Item]) -> None:
        """Bring the index to what these are now."""
        for item in wrong:
            entry = await self.primary.get(KIND, item.id)
            await index.apply([Item(item.id)])
            if entry is not None:
                await index.apply(items_of([entry], self._names))

    async def _rebuild(self, index: RedisIndex) -> None:
        """Make the index anew, unless somebody else is doing that."""
        token = secrets.token_hex(8)
        if not await index.begin(token):
            return
        anchor = Anchor((await self.primary.tail(END)).cursor)  # first: what comes later is news
        after: str | None = None
        while True:
            page = await self.primary.find(KIND, after=after, limit=_FEED)
            await index.apply(items_of(page.entries, self._names))
            if page.next is None:
                break
            after = page.next
        await index.end(token, anchor)
        logger.info("the index in Redis was made anew")

    # --- Redis away ---------------------------------------------------------------------------

    def _awake(self) -> RedisIndex | None:
        """The index, unless it failed a moment ago."""
        return self._index if time.monotonic() >= self._asleep_until else None

    def _sleep(self, error: Exception) -> None:
        self._asleep_until = time.monotonic() + PAUSE_S
        logger.warning("Redis does not answer (%s): the store does, slower", type(error).__name__)

    async def _tell(self, writes: Sequence[Write], puts: Sequence[Put]) -> None:
        """Tell the index what no record in the feed will: entries put without one."""
        silent = {write.stream for write in writes if not write.records}
        told = [put for put in puts if put.kind == KIND and put.stream in silent]
        if not told:
            return
        index = self._awake()
        if index is None:
            self._is_unsure = True
            return
        try:
            for put in told:
                await index.apply([_put_item(put, self._names)])
        except (RedisError, OSError, TimeoutError) as error:
            self._is_unsure = True
            self._sleep(error)

    # --- what the store does ------------------------------------------------------------------

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> dict[str, int]:
        """As the store does it; the index follows by itself."""
        heads = await self.primary.commit(writes, puts, checks)
        if puts:
            await self._tell(writes, puts)
        return heads

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Slice:
        """As the store reads it."""
        return await self.primary.read(stream, after, limit)

    async def get(self, kind: str, key: str) -> Entry | None:
        """As the store has it."""
        return await self.primary.get(kind, key)

    async def entries_of(self, stream: str) -> Sequence[Entry]:
        """As the store has them."""
        return await self.primary.entries_of(stream)

    async def streams(self, after: str = "", limit: int = 500) -> Sequence[StreamState]:
        """As the store has them."""
        return await self.primary.streams(after, limit)

    async def claim(
        self, holder: str, kind: str, limit: int, *, only: str | None = None
    ) -> list[Lease]:
        """As the store does it."""
        return await self.primary.claim(holder, kind, limit, only=only)

    async def renew(self, holder: str, ttl_ms: int, *, join: bool = False) -> int:
        """As the store does it."""
        return await self.primary.renew(holder, ttl_ms, join=join)

    async def tail(self, cursor: str, limit: int = 500) -> Feed:
        """As the store has it."""
        return await self.primary.tail(cursor, limit)

    async def census(self, kinds: Collection[str]) -> Census:
        """As the store counts it."""
        return await self.primary.census(kinds)

    async def changed(self, timeout_s: float) -> None:
        """As the store hears of it."""
        await self.primary.changed(timeout_s)

    def broadcast(self, topic: str, data: bytes) -> None:
        """As the store does it."""
        self.primary.broadcast(topic, data)

    def subscribe(self, heard: Callable[[str, bytes], None]) -> AbstractContextManager[None]:
        """As the store does it."""
        return self.primary.subscribe(heard)


def _beyond(anchor: Anchor, found: list[Record]) -> list[Record] | None:
    if anchor.record is None:
        return found
    if not found or _named(found[0]) != anchor.record:
        return None
    return found[1:]


def _anchor_at(news: Sequence[Record]) -> Anchor:
    """Where the index stands after these.

    The last of them is the one to find again, unless there is a hole before it: how a store shows
    a hole depends on the moment.
    """
    last = news[-1]
    if len(news) > 1 and news[-2].pos == last.pos - 1:
        return Anchor(str(news[-2].pos), _named(last))
    return Anchor(str(last.pos))


def _named(record: Record) -> tuple[str, int, int]:
    return record.stream, record.seq, record.at


def _put_item(put: Put, names: Names) -> Item:
    if not isinstance(put.data, bytes):
        return Item(put.key)
    version = put.expect + 1
    entry = Entry(put.kind, put.key, put.stream, version, put.state, put.due, put.data)
    return items_of([entry], names)[0]
