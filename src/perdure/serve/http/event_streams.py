"""Following sessions: what is there is read from the store, what comes is handed over.

Nothing is missed and nothing doubled: a reader knows the place of the last event it sent, and
whenever its inbox cannot go on from there, the store can.
"""

import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import Any, Final

import anyio
import msgspec

from perdure.core.pending.notices import Followed, follow
from perdure.errors import Corrupt
from perdure.runtime.models.base import Delta
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.records.log import stamped
from perdure.runtime.sessions.service import Service
from perdure.runtime.streaming import DeltaChunk, DeltaReader
from perdure.serve.http.dependencies import RequestScope
from perdure.serve.http.sse import OPENING, Inbox, News, frame, keep_alive, news_of
from perdure.store.base import Gone, NoStream, Record, Unavailable

logger = logging.getLogger("perdure")

PAGE: Final = 200
AWAY_S: Final = 0.5  # between two looks into a store that is not there
MOST_FOLLOWED: Final = 256  # sessions whose state one watcher of calls keeps in mind

Frames = AsyncGenerator[bytes, None]


async def of_session(
    door: RequestScope, known: SessionEntry, after: int, *, deltas: bool
) -> Frames:
    """The events of one session after a seq, then as they come."""
    service, shared = door.service, door.shared
    record = known.record
    yield OPENING
    async with shared.hub.following(service, shared.closing, known.stream) as inbox:
        with ExitStack() as stack:
            if deltas:
                bus = service.desk.bus
                stack.enter_context(bus.listening(record.tenant, record.id, inbox.piece))
            reader = _OneReader(service, known, after)
            async with aclosing(_followed(inbox, reader)) as frames:
                async for one in frames:
                    yield one


async def _followed(inbox: Inbox, reader: "_OneReader | _AllReader") -> Frames:
    """Read until there is no more, then take what comes; a sign of life when nothing does."""
    while not inbox.is_closed and not reader.is_over:
        try:
            async for one in _next(inbox, reader):
                yield one
        except Unavailable as error:  # for now: who follows stays, and misses nothing
            logger.info("a reader of events waits: %s", error.message)
            inbox.is_behind = True
            yield keep_alive(reader.place)
            await anyio.sleep(AWAY_S)


async def _next(inbox: Inbox, reader: "_OneReader | _AllReader") -> Frames:
    if inbox.is_behind:
        inbox.catch_up()
        async for one in reader.read():
            yield one
        inbox.is_behind = inbox.is_behind or reader.has_more
        return
    async for one in _taken(inbox, reader):
        yield one
    if not inbox.is_behind and not await inbox.wait():
        yield keep_alive(reader.place)
        inbox.is_behind = True  # the feed only hints: look, now and then


async def _taken(inbox: Inbox, reader: "_OneReader | _AllReader") -> Frames:
    for item in inbox.take():
        told = await reader.take(item)
        if told is None:
            inbox.is_behind = True
            return
        if told:
            yield told


class _OneReader:
    """Reads one session; its records have no holes, so one that is missing is seen."""

    def __init__(self, service: Service, known: SessionEntry, after: int) -> None:
        self._service = service
        self._known = known
        self._seen = after
        self._turn = 0  # of the last answer that was sent
        self._hearing = DeltaReader(known.record.id)
        self.has_more = False
        self.is_over = False  # the session was deleted

    @property
    def place(self) -> str | None:
        """Everything before it was sent; a sign of life says nothing new about it."""
        return None

    async def read(self) -> AsyncIterator[bytes]:
        """A page from the store."""
        stream = self._known.stream
        try:
            page = await self._service.desk.store.read(stream, self._seen, PAGE)
        except (Gone, NoStream):
            self.is_over = True
            return
        for record in page.records:
            news = News(record, (self._known.record.tenant, self._known.record.id))
            yield self._sent(news)
        self.has_more = page.head > self._seen

    async def take(self, item: News | DeltaChunk) -> bytes | None:
        """What to send of it, perhaps nothing; None if something before it is missing."""
        if isinstance(item, DeltaChunk):
            return b"".join(frame("delta", delta_json(one)) for one in self._hearing.take(item))
        if item.record.seq <= self._seen:
            return b""
        return self._sent(item) if item.record.seq == self._seen + 1 else None

    def _sent(self, news: News) -> bytes:
        self._seen = news.record.seq
        if news.record.type == "assistant":
            self._turn = int(news.event.data.get("turn", self._turn + 1))
            self._hearing.answered(self._turn)
        return news.of_session()


def delta_json(piece: Delta) -> dict[str, Any]:
    """A piece of an answer, as it is sent."""
    told = {
        "sessionID": piece.session_id,
        "turn": piece.turn,
        "kind": piece.kind,
        "text": piece.text,
    }
    return told if piece.call_id is None else {**told, "callID": piece.call_id}


# --- everything -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FeedPosition:
    """Where somebody is in the feed: at a position, of whose pieces so many were sent."""

    pos: int
    sent: int = 0


async def of_all(door: RequestScope, place: FeedPosition, telling: "EventFilter") -> Frames:
    """Events of all sessions that are seen after a place in the feed, then as they come."""
    service, shared = door.service, door.shared
    yield OPENING + f"id: {place.pos}\n\n".encode()
    async with shared.hub.following(service, shared.closing, None) as inbox:
        reader = _AllReader(service, place, telling)
        async with aclosing(_followed(inbox, reader)) as frames:
            async for one in frames:
                yield one


class EventFilter:
    """How a record of the feed is told; this one: as it is, if its session is seen."""

    def __init__(self, tenant: str | None) -> None:
        self._tenant = tenant

    def sees(self, news: News) -> bool:
        """Whether it is there for who asks."""
        return self._tenant is None or news.tenant == self._tenant

    async def pieces(self, news: News) -> list[bytes]:
        """What is sent of it. Raises Corrupt."""
        return [news.of_feed()]


class _AllReader:
    """Reads the feed of all sessions."""

    is_over = False

    def __init__(self, service: Service, place: FeedPosition, telling: EventFilter) -> None:
        self._service = service
        self._pos = place.pos
        self._skip = place.sent
        self._telling = telling
        self.has_more = False

    @property
    def place(self) -> str | None:
        """Everything before it was sent, or is not for this reader."""
        return None if self._skip else str(self._pos)

    async def read(self) -> AsyncIterator[bytes]:
        """A page from the store."""
        # With pieces left of the last record, that one is read again.
        start = self._pos - 1 if self._skip else self._pos
        feed = await self._service.desk.store.tail(str(start), PAGE)
        for record in feed.records:
            told = await self._sent(record)
            if told:
                yield told
        self._pos, self._skip = int(feed.cursor), 0
        self.has_more = len(feed.records) == PAGE

    async def take(self, item: News | DeltaChunk) -> bytes:
        """What to send of it, perhaps nothing."""
        if isinstance(item, DeltaChunk) or item.record.pos <= self._pos:
            return b""
        return await self._sent(item.record, item)

    async def _sent(self, record: Record, news: News | None = None) -> bytes:
        news = news or news_of(record)
        pieces: list[bytes] = []
        if news is not None and self._telling.sees(news):
            try:
                pieces = await self._telling.pieces(news)
            except Corrupt as error:  # of one session; the others go on
                logger.warning("%s", error.message)
        pieces = pieces[self._skip :] if record.pos == self._pos else pieces
        self._pos, self._skip = record.pos, 0
        return b"".join(pieces)


class TellingCalls(EventFilter):
    """Tells of calls that wait, and of sessions that go on: what becomes of one async tool call.

    A record can be two pieces of news; then the first has a place of its own in between.
    """

    def __init__(
        self, service: Service, tenant: str | None, session_id: str | None, *, only_tools: bool
    ) -> None:
        super().__init__(tenant)
        self._service = service
        self._session_id = session_id
        self._only_tools = only_tools
        self._followed: OrderedDict[str, tuple[int, Followed]] = OrderedDict()

    def sees(self, news: News) -> bool:
        """Whether it is there for who asks, and asked for."""
        return super().sees(news) and self._session_id in (None, news.session_id)

    async def pieces(self, news: News) -> list[bytes]:
        """What is sent of it. Raises Corrupt."""
        record = news.record
        before = await self._before(record)
        if before is None:
            return []
        after, told = follow(before, stamped(record))
        self._remember(record, after)
        if self._only_tools:
            told = [one for one in told if one.kind == "tool"]
        whose = {"sessionID": news.session_id, "tenant": news.tenant}
        pos, last = record.pos, len(told) - 1
        return [
            frame(
                one.type,
                {**msgspec.to_builtins(one), **whose},
                str(pos) if n == last else f"{pos}.{n + 1}",
            )
            for n, one in enumerate(told)
        ]

    async def _before(self, record: Record) -> Followed | None:
        """The session before this record; None if it was told already, or is gone."""
        seq, known = self._followed.get(record.stream, (0, Followed()))
        if seq == record.seq - 1:
            return known
        if seq >= record.seq:
            return None
        try:
            read = await self._service.desk.store.read(record.stream, 0, record.seq - 1)
        except (Gone, NoStream):
            return None
        return _followed_to(read.records)

    def _remember(self, record: Record, followed: Followed) -> None:
        self._followed[record.stream] = (record.seq, followed)
        self._followed.move_to_end(record.stream)
        if len(self._followed) > MOST_FOLLOWED:
            self._followed.popitem(last=False)


def _followed_to(records: Sequence[Record]) -> Followed:
    followed = Followed()
    for record in records:
        followed, _ = follow(followed, stamped(record))
    return followed
