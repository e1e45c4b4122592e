"""Server-sent events: how they look on the wire, and who is handed which record.

One reader of the feed serves every subscriber of the process. Each has an inbox of bounded size;
one that reads too slowly loses it, and goes on from the store where it was.
"""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, Final

import anyio
import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from perdure.core.session import naming as index
from perdure.errors import StoreError
from perdure.runtime.engine.feed import wait_for
from perdure.runtime.sessions.service import Service
from perdure.runtime.streaming import DeltaChunk
from perdure.runtime.views import Event, event_of
from perdure.store.base import Record

MEDIA_TYPE: Final = "text/event-stream"
KEEP_ALIVE_S: Final = 15.0
START_S: Final = 5.0
ROOM: Final = 256  # records that may wait for one reader
ROOM_BYTES: Final = 1024 * 1024
LAST_S: Final = 1.0  # for who still takes what is sent when the server is told to stop
OPENING: Final = b": perdure\nretry: 1000\n\n"


def frame(event: str, data: Any, place: str | None = None) -> bytes:
    """One event on the wire; what has no place is not asked for again."""
    where = "" if place is None else f"id: {place}\n"
    return f"{where}event: {event}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


def keep_alive(place: str | None = None) -> bytes:
    """A sign of life, which also says up to where everything was sent."""
    return b": keep-alive\n\n" if place is None else f": keep-alive\nid: {place}\n\n".encode()


class Stream(StreamingResponse):
    """The answer that goes on until its reader leaves or the server stops."""

    def __init__(self, frames: AsyncGenerator[bytes, None], closing: anyio.Event) -> None:
        headers = {"X-Accel-Buffering": "no", "Vary": "Accept"}
        super().__init__(frames, media_type=MEDIA_TYPE, headers=headers)
        self._frames = frames
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; who leaves is forgotten at once, and not when somebody collects it."""
        failed: list[Exception] = []
        async with aclosing(self._frames), anyio.create_task_group() as tasks:
            tasks.start_soon(self._give_up, tasks.cancel_scope)
            try:
                await super().__call__(scope, receive, send)
            except Exception as error:  # noqa: BLE001 - raised below, and not in a group
                failed.append(error)
            tasks.cancel_scope.cancel()
        if failed:
            raise failed[0]

    async def _give_up(self, scope: anyio.CancelScope) -> None:
        """Do not wait for one who takes nothing, once the server is told to stop."""
        await self._closing.wait()
        await anyio.sleep(LAST_S)
        scope.cancel()


def wants_stream(accept: str | None) -> bool:
    """Whether a client asks for events as they come; anything goes as JSON."""
    given = [one.partition(";")[0].strip().lower() for one in (accept or "").split(",")]
    return MEDIA_TYPE in given


class News:
    """One record of a session, decoded and written out once for all who are sent it."""

    __slots__ = ("_frames", "record", "session_id", "tenant")

    def __init__(self, record: Record, names: tuple[str, str]) -> None:
        self.record = record
        self.tenant, self.session_id = names
        self._frames: dict[str, bytes] = {}

    @property
    def event(self) -> Event:
        """The event. Raises Corrupt."""
        return event_of((self.tenant, self.session_id), self.record)

    def of_session(self) -> bytes:
        """As those are sent it who follow its session."""
        return self._frame("seq", self.record.seq)

    def of_feed(self) -> bytes:
        """As those are sent it who follow everything."""
        return self._frame("pos", self.record.pos)

    def _frame(self, place: str, number: int) -> bytes:
        made = self._frames.get(place)
        if made is None:
            event = self.event
            data = event.to_json() if place == "seq" else feed_json(event)
            made = self._frames[place] = frame(event.type, data, str(number))
        return made


def feed_json(event: Event) -> dict[str, Any]:
    """An event of the feed of all sessions: with its place there, and whose it is."""
    whose = {"pos": event.pos, "sessionID": event.session_id, "tenant": event.tenant}
    return {**event.to_json(), **whose}


def news_of(record: Record) -> News | None:
    """The record as news; None if it is not one of a session."""
    names = index.names_in(record.stream)
    return None if names is None else News(record, names)


class Inbox:
    """What waits for one reader. It begins behind: what is there must be read from the store."""

    def __init__(self) -> None:
        self.is_behind = True
        self.is_closed = False
        self._items: deque[News | DeltaChunk] = deque()
        self._bytes = 0
        self._came = anyio.Event()

    def put(self, news: News) -> None:
        """Hand over a record; if there is no room, its reader must look into the store."""
        size = len(news.record.data)
        if self.is_behind or len(self._items) >= ROOM or self._bytes + size > ROOM_BYTES:
            self._fall_behind()
        else:
            self._items.append(news)
            self._bytes += size
        self._came.set()

    def piece(self, piece: DeltaChunk) -> None:
        """Hand over a piece of an answer; without room it is dropped."""
        if len(self._items) < ROOM:
            self._items.append(piece)
            self._came.set()

    def _fall_behind(self) -> None:
        """What is in the store is read from there; pieces of answers are nowhere else."""
        self.is_behind = True
        self._items = deque(item for item in self._items if isinstance(item, DeltaChunk))
        self._bytes = 0

    def catch_up(self) -> None:
        """Its reader looks into the store now: what comes from here on is handed over again."""
        self._fall_behind()
        self.is_behind = False

    def take(self) -> list[News | DeltaChunk]:
        """What has come."""
        items, self._bytes = list(self._items), 0
        self._items.clear()
        return items

    def close(self) -> None:
        """Nothing will come any more."""
        self.is_closed = True
        self._came.set()

    async def wait(self) -> bool:
        """Until something comes; False if for a while nothing did."""
        await wait_for(self._came, KEEP_ALIVE_S)
        came = self._came.is_set()
        self._came = anyio.Event()
        return came


class Hub:
    """Hands the records of the feed to the inboxes of those who follow."""

    def __init__(self) -> None:
        self._inboxes: dict[str | None, list[Inbox]] = {}  # by stream; None: of everything
        self._reads: anyio.Event | None = None  # set once it does

    @asynccontextmanager
    async def following(
        self, service: Service, closing: anyio.Event, stream: str | None
    ) -> AsyncIterator[Inbox]:
        """An inbox for one stream, or for all; closed when the server is told to stop."""
        await self._open(service, closing)
        inbox = Inbox()
        if closing.is_set():
            inbox.close()
        self._inboxes.setdefault(stream, []).append(inbox)
        try:
            yield inbox
        finally:
            self._inboxes[stream].remove(inbox)
            if not self._inboxes[stream]:
                del self._inboxes[stream]

    async def _open(self, service: Service, closing: anyio.Event) -> None:
        """Begin to read the feed, once, until the server stops or the runtime closes."""
        if self._reads is None:
            self._reads = anyio.Event()
            await service.host.also(partial(self._read, service, closing, self._reads))
        reads = self._reads
        await wait_for(reads, START_S)
        if not reads.is_set():
            raise StoreError("the feed is not read: the runtime is closing")
        await service.host.watch.begin()

    async def _read(self, service: Service, closing: anyio.Event, reads: anyio.Event) -> None:
        try:
            with service.host.watch.reading(self._taken):
                reads.set()
                await closing.wait()
        finally:
            self._reads = None
            for inboxes in self._inboxes.values():
                for inbox in inboxes:
                    inbox.close()

    def _taken(self, records: Sequence[Record]) -> None:
        everything = self._inboxes.get(None, [])
        for record in records:
            of_stream = self._inboxes.get(record.stream, [])
            if not of_stream and not everything:
                continue
            news = news_of(record)
            if news is not None:
                for inbox in (*of_stream, *everything):
                    inbox.put(news)
