"""Streams of events: recorded events are read from the store, new ones come through a buffer.

No event is missed or sent twice: a stream knows the position of the last event it sent, and
whenever its buffer and the hub cannot continue from there, it reads the store.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from itertools import dropwhile
from typing import Final

import anyio
import msgspec

from perdure.core.roles import Permit
from perdure.errors import Corrupt, NotFound, StoreError
from perdure.runtime.sessions.feed import EventFeed, SessionStream
from perdure.runtime.sessions.notices import PendingNotices
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.runtime.streaming import DeltaChunk, DeltaReader
from perdure.serve.http.dependencies import RequestScope
from perdure.serve.http.sse import (
    OPENING,
    FeedEvent,
    ReaderBuffer,
    event_frame,
    feed_event,
    keep_alive_frame,
)
from perdure.store.base import Record, Unavailable

logger = logging.getLogger("perdure")

PAGE: Final = 200
HELD_S: Final = 0.25  # between two reads of events that wait for an open transaction
STORE_RETRY_S: Final = 0.5  # between two reads of a store that is not available
CHUNK_BYTES: Final = 64 * 1024  # of frames that are sent together

Frames = AsyncGenerator[bytes, None]


async def session_frames(
    scope: RequestScope, session: SessionStream, after: int, *, deltas: bool
) -> Frames:
    """Yield the recorded events of one session after a seq, then new ones as they come."""
    service, app_state = scope.service, scope.app_state
    yield OPENING
    async with app_state.hub.subscribe(service, app_state.closing, session.stream) as buffer:
        with ExitStack() as stack:
            if deltas:
                names = (session.tenant, session.session_id)
                stack.enter_context(service.feed.on_deltas(*names, buffer.put_delta))
            source = _SessionSource(service, session, after)
            async with aclosing(_all_frames(buffer, source)) as frames:
                async for frame in frames:
                    yield frame


async def _all_frames(buffer: ReaderBuffer, source: "_SessionSource | _FeedSource") -> Frames:
    """Yield frames from the store, then from the buffer, and keep-alives in between."""
    is_waiting = False
    while not buffer.is_closed and not source.is_over:
        try:
            async for frame in _next_frames(buffer, source):
                yield frame
            is_waiting = False
        except Unavailable as error:  # the reader stays connected, and will miss no event
            if not is_waiting:
                logger.info("a reader of events waits for the store: %s", error.message)
            buffer.is_behind = is_waiting = True
            yield keep_alive_frame(source.event_id)
            await anyio.sleep(STORE_RETRY_S)


async def _next_frames(buffer: ReaderBuffer, source: "_SessionSource | _FeedSource") -> Frames:
    await buffer.wait_for_turn()
    if buffer.is_behind:
        buffer.catch_up()
        recent = source.recent()
        missed = _encoded(recent, buffer, source) if recent else _stored(buffer, source)
        async for chunk in _joined(missed):
            yield chunk
        return
    async for chunk in _joined(_encoded(buffer.take(), buffer, source)):
        yield chunk
    if not buffer.is_behind and not await buffer.wait():
        yield keep_alive_frame(source.event_id)
        buffer.is_behind = True  # the feed is a hint that may be lost: read the store now and then


async def _stored(buffer: ReaderBuffer, source: "_SessionSource | _FeedSource") -> Frames:
    """Yield the frames of a page from the store."""
    await source.service.feed.fix_start()  # later events come through the buffer
    async for frame in source.read():
        yield frame
    buffer.is_behind = buffer.is_behind or source.has_more
    if source.is_held:
        await anyio.sleep(HELD_S)


async def _encoded(
    items: Iterable[FeedEvent | DeltaChunk],
    buffer: ReaderBuffer,
    source: "_SessionSource | _FeedSource",
) -> Frames:
    """Yield the frames of items, up to the first one before which an event is missing."""
    for item in items:
        frame = await source.encode(item)
        if frame is None:
            buffer.is_behind = True
            return
        if frame:
            yield frame


async def _joined(frames: Frames) -> Frames:
    """Join frames to chunks: a chunk passes through many layers, whatever its size."""
    parts: list[bytes] = []
    size, failure = 0, None
    try:
        async for frame in frames:
            parts.append(frame)
            size += len(frame)
            if size >= CHUNK_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
    except StoreError as error:  # the source counts the frames before it as sent
        failure = error
    if parts:
        yield b"".join(parts)
    if failure is not None:
        raise failure


class _SessionSource:
    """Events of one session as frames; seqs have no gaps, so a missing record is noticed."""

    is_held = False

    def __init__(self, service: Service, session: SessionStream, after: int) -> None:
        self.service = service
        self._session = session
        self._seq = after  # of the last event that was sent
        self._turn = 0  # of the last model response that was sent
        self._deltas = DeltaReader(session.session_id)
        self.has_more = False
        self.is_over = False  # the session was deleted

    @property
    def event_id(self) -> str | None:
        """None: every event has the id, so a keep-alive needs none."""
        return None

    def recent(self) -> Sequence[FeedEvent]:
        """None: a session that was created again has the same seqs."""
        return ()

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the frames of a page from the store."""
        try:
            page = await self.service.feed.read(self._session.stream, self._seq, PAGE)
        except NotFound:
            self.is_over = True
            return
        names = (self._session.tenant, self._session.session_id)
        for record in page.records:
            yield self._next_frame(FeedEvent(record, names))
        self.has_more = page.head > self._seq

    async def encode(self, item: FeedEvent | DeltaChunk) -> bytes | None:
        """Return the frames of an item, perhaps none; None if an event before it is missing."""
        if isinstance(item, DeltaChunk):
            deltas = self._deltas.read(item)
            return b"".join(event_frame("delta", delta) for delta in deltas)
        if item.record.seq <= self._seq:
            return b""
        return self._next_frame(item) if item.record.seq == self._seq + 1 else None

    def _next_frame(self, event: FeedEvent) -> bytes:
        self._seq = event.record.seq
        if event.record.type == "assistant":
            self._turn = int(event.event.data.get("turn", self._turn + 1))
            self._deltas.mark_recorded(self._turn)
        return event.session_frame()


# --- all sessions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FeedPosition:
    """Position of a reader in the feed: a record, and how many of its frames were sent."""

    pos: int
    frames_sent: int = 0


async def feed_frames(
    scope: RequestScope, position: FeedPosition, event_filter: "EventFilter"
) -> Frames:
    """Yield the events of all visible sessions after a position, then new ones as they come."""
    service, app_state = scope.service, scope.app_state
    yield OPENING + f"id: {position.pos}\n\n".encode()
    async with app_state.hub.subscribe(service, app_state.closing, None) as buffer:
        source = _FeedSource(service, app_state.hub.recent, position, event_filter)
        async with aclosing(_all_frames(buffer, source)) as frames:
            async for frame in frames:
                yield frame


class EventFilter:
    """Filter that sends the events of visible sessions unchanged."""

    def __init__(self, tenant: str | None) -> None:
        self._tenant = tenant

    def is_visible(self, event: FeedEvent) -> bool:
        """Return whether the reader may see the event's session."""
        return self._tenant is None or event.tenant == self._tenant

    async def frames(self, event: FeedEvent) -> list[bytes]:
        """Return the frames of an event. Raises Corrupt."""
        return [event.feed_frame()]


class _FeedSource:
    """Events of all sessions as frames."""

    is_over = False

    def __init__(
        self,
        service: Service,
        recent: Iterable[FeedEvent],
        position: FeedPosition,
        event_filter: EventFilter,
    ) -> None:
        self.service = service
        self._recent = recent
        self._pos = position.pos
        self._skip = position.frames_sent
        self._filter = event_filter
        self.is_held = False  # the next events wait for a transaction that is open
        self.has_more = False

    @property
    def event_id(self) -> str | None:
        """The position up to which every event was sent, or is not visible to this reader."""
        return None if self._skip else str(self._pos)

    def recent(self) -> Sequence[FeedEvent]:
        """Return the remembered events that follow the last one sent; none if some are missing."""
        if self._skip:
            return ()
        return tuple(dropwhile(lambda event: not self._is_next(event), self._recent))

    def _is_next(self, event: FeedEvent) -> bool:
        return event.after <= self._pos < event.record.pos

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the frames of a page from the store."""
        # If some frames of the last record were not sent, that record is read again.
        start = self._pos - 1 if self._skip else self._pos
        feed = await self.service.feed.tail(str(start), PAGE)
        for record in feed.records:
            frames = await self._next_frames(record, feed_event(record))
            if frames:
                yield frames
        self._pos, self._skip = int(feed.cursor), 0
        self.is_held = feed.is_held
        self.has_more = len(feed.records) == PAGE or feed.is_held

    async def encode(self, item: FeedEvent | DeltaChunk) -> bytes | None:
        """Return the frames of an item, perhaps none; None if an event before it is missing.

        The buffer can be ahead of this reader, which may have come back to an older position.
        """
        if isinstance(item, DeltaChunk) or item.record.pos <= self._pos:
            return b""
        if item.after > self._pos:
            return None
        return await self._next_frames(item.record, item)

    async def _next_frames(self, record: Record, event: FeedEvent | None) -> bytes:
        frames: list[bytes] = []
        if event is not None and self._filter.is_visible(event):
            try:
                frames = await self._filter.frames(event)
            except Corrupt as error:  # one session is damaged; the events of the others follow
                logger.warning("%s", error.message)
        frames = frames[self._skip :] if record.pos == self._pos else frames
        self._pos, self._skip = record.pos, 0
        return b"".join(frames)


class PendingNoticeFilter(EventFilter):
    """Filter that turns events into notices about pending calls and resumed sessions.

    One record can give two notices; then the first has an id between two positions.
    """

    def __init__(self, caller: Caller, session_id: str | None, feed: EventFeed) -> None:
        super().__init__(caller.tenant)
        self._session_id = session_id
        self._only_tools = not caller.may(Permit.READ)
        self._notices = PendingNotices(feed)

    def is_visible(self, event: FeedEvent) -> bool:
        """Return whether the reader may see the event's session and asked for it."""
        return super().is_visible(event) and self._session_id in (None, event.session_id)

    async def frames(self, event: FeedEvent) -> list[bytes]:
        """Return the frames of an event's notices, perhaps none. Raises Corrupt."""
        notices = await self._notices.of(event.record)
        if self._only_tools:
            notices = [notice for notice in notices if notice.kind == "tool"]
        source = {"sessionID": event.session_id, "tenant": event.tenant}
        pos, last = event.record.pos, len(notices) - 1
        return [
            event_frame(
                notice.type,
                {**msgspec.to_builtins(notice), **source},
                str(pos) if n == last else f"{pos}.{n + 1}",
            )
            for n, notice in enumerate(notices)
        ]
