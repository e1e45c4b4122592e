"""Server-sent events: their wire format, and the hub that distributes records to readers.

One subscription to the feed serves every reader of the process. Each reader has a buffer of
bounded size; a reader that is too slow loses its content and continues from the store, a reader of
all sessions first from the events that the hub remembers. These are encoded once for all. A few
readers send in each round of the event loop: a thousand must not keep everything else waiting,
heartbeats included.
"""

import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, Final, Literal

import anyio
import anyio.lowlevel
import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from perdure.core.session.naming import parse_session_stream
from perdure.errors import PerdureError, StoreError
from perdure.runtime.sessions.service import Service
from perdure.runtime.streaming import DeltaChunk
from perdure.runtime.views import event_view
from perdure.store.base import Record
from perdure.views.base import View
from perdure.views.events import Event
from perdure.views.tasks import LogRecord

logger = logging.getLogger("perdure")

MEDIA_TYPE: Final = "text/event-stream"
KEEP_ALIVE_S: Final = 15.0
START_S: Final = 5.0
MAX_ITEMS: Final = 256  # records in the buffer of one reader
MAX_BYTES: Final = 1024 * 1024
RECENT_ITEMS: Final = 1_024  # events that the hub remembers for all readers
RECENT_BYTES: Final = 4 * 1024 * 1024
AT_ONCE: Final = 16  # readers that send in one round of the event loop
CLOSE_GRACE_S: Final = 1.0  # for readers that still receive when the server shuts down
OPENING: Final = b": perdure\nretry: 1000\n\n"


def event_frame(event: str, data: Any, event_id: str | None = None) -> bytes:
    """Return one event on the wire; one without an id is not sent again after a reconnect."""
    id_line = "" if event_id is None else f"id: {event_id}\n"
    return f"{id_line}event: {event}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


async def item_frames(items: AsyncGenerator[View | None, None]) -> AsyncGenerator[bytes, None]:
    """Yield items as frames under their tags; a pause is a comment.

    Only records of logs have ids: after a reconnect the others are sent again.
    """
    yield OPENING
    async with aclosing(items):
        async for item in items:
            if item is None:
                yield keep_alive_frame()
                continue
            seq = str(item.seq) if isinstance(item, LogRecord) else None
            yield event_frame(str(item.__struct_config__.tag), item, seq)


def keep_alive_frame(event_id: str | None = None) -> bytes:
    """Return a comment that keeps the connection open, and the id of the last event sent."""
    if event_id is None:
        return b": keep-alive\n\n"
    return f": keep-alive\nid: {event_id}\n\n".encode()


class EventStreamResponse(StreamingResponse):
    """Response that lasts until its reader disconnects or the server shuts down."""

    def __init__(self, frames: AsyncGenerator[bytes, None], closing: anyio.Event) -> None:
        headers = {"X-Accel-Buffering": "no", "Vary": "Accept"}
        super().__init__(_until_failure(frames), media_type=MEDIA_TYPE, headers=headers)
        self._frames = frames
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the frames; close their generator at the end, not when garbage is collected."""
        errors: list[Exception] = []
        async with aclosing(self._frames), anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_at_shutdown, tasks.cancel_scope)
            try:
                await super().__call__(scope, receive, send)
            except Exception as error:  # noqa: BLE001 - raised below, outside of the task group
                errors.append(error)
            tasks.cancel_scope.cancel()
        if errors:
            raise errors[0]

    async def _cancel_at_shutdown(self, scope: anyio.CancelScope) -> None:
        """Cancel sending to a reader that receives nothing while the server shuts down."""
        await self._closing.wait()
        await anyio.sleep(CLOSE_GRACE_S)
        scope.cancel()


async def _until_failure(frames: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """Yield frames; a foreseeable failure ends the stream, which its reader then opens again."""
    try:
        async for frame in frames:
            yield frame
    except PerdureError as error:
        logger.warning("a stream of events ended: %s", error.message)


def is_stream_requested(accept: str | None) -> bool:
    """Return whether a client asks for an event stream; any other Accept header means JSON."""
    types = [item.partition(";")[0].strip().lower() for item in (accept or "").split(",")]
    return MEDIA_TYPE in types


class FeedEvent:
    """Record of a session that is decoded and encoded once for all its readers.

    Between the position `after` and its own the feed has no other event of a session.
    """

    __slots__ = ("_frames", "after", "record", "session_id", "tenant")

    def __init__(self, record: Record, names: tuple[str, str], after: int = 0) -> None:
        self.record = record
        self.after = after
        self.tenant, self.session_id = names
        self._frames: dict[str, bytes] = {}

    @property
    def event(self) -> Event:
        """The event. Raises Corrupt."""
        return event_view((self.tenant, self.session_id), self.record)

    def session_frame(self) -> bytes:
        """Return the frame for readers of its session."""
        return self._frame("seq", self.record.seq)

    def feed_frame(self) -> bytes:
        """Return the frame for readers of all sessions."""
        return self._frame("pos", self.record.pos)

    def _frame(self, id_field: Literal["seq", "pos"], number: int) -> bytes:
        frame = self._frames.get(id_field)
        if frame is None:
            event = self.event
            data = event.to_json() if id_field == "seq" else feed_json(event)
            frame = self._frames[id_field] = event_frame(event.type, data, str(number))
        return frame


def feed_json(event: Event) -> dict[str, Any]:
    """Return an event of the feed as JSON, with its position, session and tenant."""
    source = {"pos": event.pos, "sessionID": event.session_id, "tenant": event.tenant}
    return {**event.to_json(), **source}


def feed_event(record: Record, after: int = 0) -> FeedEvent | None:
    """Return the event of a record; None if the record is not one of a session."""
    names = parse_session_stream(record.stream)
    return None if names is None else FeedEvent(record, names, after)


class RecentEvents:
    """The last events of the feed that were distributed, with their frames."""

    def __init__(self) -> None:
        self._events: deque[FeedEvent] = deque()
        self._bytes = 0

    def add(self, event: FeedEvent) -> None:
        """Remember an event, and forget the oldest ones that are too many."""
        self._events.append(event)
        self._bytes += len(event.record.data)
        while len(self._events) > RECENT_ITEMS or self._bytes > RECENT_BYTES:
            self._bytes -= len(self._events.popleft().record.data)

    def __iter__(self) -> Iterator[FeedEvent]:
        return iter(self._events)


class ReaderBuffer:
    """Buffer of one reader. It starts behind: earlier records must be read elsewhere first."""

    def __init__(self, turns: anyio.Semaphore) -> None:
        self.is_behind = True
        self._turns = turns
        self.is_closed = False
        self._items: deque[FeedEvent | DeltaChunk] = deque()
        self._bytes = 0
        self._changed = anyio.Event()

    def put(self, event: FeedEvent) -> None:
        """Add an event; if the buffer is full, its reader must read from the store."""
        size = len(event.record.data)
        if self.is_behind or len(self._items) >= MAX_ITEMS or self._bytes + size > MAX_BYTES:
            self._fall_behind()
        else:
            self._items.append(event)
            self._bytes += size
        self._changed.set()

    def put_delta(self, chunk: DeltaChunk) -> None:
        """Add deltas, or drop them if the buffer is full."""
        if len(self._items) < MAX_ITEMS:
            self._items.append(chunk)
            self._changed.set()

    def _fall_behind(self) -> None:
        """Drop the events, which the store has too; keep the deltas, which it has not."""
        self.is_behind = True
        self._items = deque(item for item in self._items if isinstance(item, DeltaChunk))
        self._bytes = 0

    def catch_up(self) -> None:
        """Buffer events again from now on, because the reader is about to get the earlier ones."""
        self._fall_behind()
        self.is_behind = False

    async def wait_for_turn(self) -> None:
        """Wait until this is one of the few readers that may send in this round of the loop."""
        async with self._turns:
            await anyio.lowlevel.checkpoint()

    def take(self) -> list[FeedEvent | DeltaChunk]:
        """Remove and return the items."""
        items, self._bytes = list(self._items), 0
        self._items.clear()
        return items

    def close(self) -> None:
        """End the reader: no more items will be added."""
        self.is_closed = True
        self._changed.set()

    async def wait(self) -> bool:
        """Wait for a change; return False if there was none until the next keep-alive is due."""
        with anyio.move_on_after(KEEP_ALIVE_S):
            await self._changed.wait()
        has_changed = self._changed.is_set()
        self._changed = anyio.Event()
        return has_changed


class Hub:
    """Distributor of the records of the feed to the buffers of readers."""

    def __init__(self) -> None:
        self._buffers: dict[str | None, list[ReaderBuffer]] = {}  # by stream; None: all streams
        self._subscribed: anyio.Event | None = None  # set once the feed calls us
        self._read_to = 0  # position up to which the feed was distributed without an interruption
        self._last_event = 0  # position of the last event of a session up to there
        self.recent = RecentEvents()
        self._turns = anyio.Semaphore(AT_ONCE, fast_acquire=True)

    @asynccontextmanager
    async def subscribe(
        self, service: Service, closing: anyio.Event, stream: str | None
    ) -> AsyncIterator[ReaderBuffer]:
        """Yield a buffer for one stream, or for all; it is closed when the server shuts down."""
        await self._open(service, closing)
        buffer = ReaderBuffer(self._turns)
        if closing.is_set():
            buffer.close()
        self._buffers.setdefault(stream, []).append(buffer)
        try:
            yield buffer
        finally:
            self._buffers[stream].remove(buffer)
            if not self._buffers[stream]:
                del self._buffers[stream]

    async def _open(self, service: Service, closing: anyio.Event) -> None:
        """Subscribe to the feed, once, until the server shuts down or the runtime closes."""
        if self._subscribed is None:
            self._subscribed = anyio.Event()
            run = partial(self._run, service, closing, self._subscribed)
            service.feed.run_in_background(run)
        subscribed = self._subscribed
        with anyio.move_on_after(START_S):
            await subscribed.wait()
        if not subscribed.is_set():
            raise StoreError(
                "events cannot be followed: the runtime is closing", hint="connect again"
            )

    async def _run(self, service: Service, closing: anyio.Event, subscribed: anyio.Event) -> None:
        try:
            with service.feed.on_records(self._distribute):
                subscribed.set()
                await closing.wait()
        finally:
            self._subscribed = None
            for buffers in self._buffers.values():
                for buffer in buffers:
                    buffer.close()

    def _distribute(self, after: int, records: Sequence[Record]) -> None:
        if after != self._read_to:
            self._last_event = after
        of_all = self._buffers.get(None, [])
        for record in records:
            self._read_to = record.pos
            of_stream = self._buffers.get(record.stream, [])
            if not of_stream and not of_all:
                self._last_event = record.pos
                continue
            event = feed_event(record, self._last_event)
            if event is not None:
                self._last_event = record.pos
                self.recent.add(event)
                for buffer in (*of_stream, *of_all):
                    buffer.put(event)
