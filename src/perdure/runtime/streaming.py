"""Deltas of model responses, streamed to readers in this process and on the same store.

Deltas are not durable and may be lost. A process with readers of a session announces them to all
processes on its store at intervals; only then does the process that drives the session broadcast
its deltas, gathered into chunks.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure import host
from perdure.core.text import storable_text
from perdure.ids import secret_id
from perdure.store.base import BROADCAST_BYTES, Store
from perdure.views.events import Delta, DeltaKind

GATHER_S: Final = 0.05  # how long deltas are gathered for other processes
GATHER_CHARS: Final = 4_000  # gathered at most
READER_TTL_S: Final = 15.0  # how long an announcement of readers counts
ANNOUNCE_S: Final = 5.0  # how often readers are announced again

_CHUNK_TOPIC: Final = "delta"
_READERS_TOPIC: Final = "readers"

Key = tuple[str, str]  # tenant and session
Attempt = tuple[int, int]  # the driver's epoch, and the number of its request


class DeltaChunk(Struct, frozen=True, array_like=True):
    """Text of a response and its offset `at`, in characters of the attempt.

    Text outside a response, such as the progress of a tool, has no offset: `at` is -1.
    """

    turn: int
    attempt: Attempt
    at: int
    kind: DeltaKind
    text: str
    call_id: str | None = None


Listener = Callable[[DeltaChunk], None]


class _ChunkMessage(Struct, frozen=True, array_like=True):
    source: str
    key: Key
    chunk: DeltaChunk


class _ReaderAnnouncement(Struct, frozen=True, array_like=True):
    source: str
    is_new: bool  # the reader also needs the chunks before it subscribed
    keys: list[Key]


class Bus:
    """Deltas of all sessions of one runtime."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._source = secret_id("b")  # marks our own broadcasts
        self._listeners: dict[Key, list[Listener]] = {}
        self._responses: dict[Key, ResponseStream] = {}  # streamed here now
        self._remote_readers: dict[Key, float] = {}  # in other processes, until when (monotonic)
        self._is_connected = False

    # --- publish ------------------------------------------------------------------------------

    def stream_response(
        self, key: Key, turn: int, attempt: Attempt
    ) -> AbstractContextManager[Callable[[Delta], None]]:
        """Return a context that publishes the deltas of one attempt at a turn."""
        return ResponseStream(self, key, turn, attempt)

    def add_response(self, key: Key, response: "ResponseStream") -> None:
        """Register a response: readers that subscribe from now on get its chunks so far."""
        self._responses[key] = response

    def remove_response(self, key: Key, response: "ResponseStream") -> None:
        """Unregister a response that has ended, unless another one has replaced it."""
        if self._responses.get(key) is response:
            del self._responses[key]

    def publish_alone(self, tenant: str, delta: Delta) -> None:
        """Publish a delta that is not part of a response."""
        key = (tenant, delta.session_id)
        text = storable_text(delta.text)
        chunk = DeltaChunk(delta.turn, (0, 0), -1, delta.kind, text, delta.call_id)
        self.publish_here(key, chunk)
        if self.has_remote_readers(key):
            self.broadcast(key, chunk)

    def publish_here(self, key: Key, chunk: DeltaChunk) -> None:
        """Pass a chunk to the readers in this process."""
        for listener in tuple(self._listeners.get(key, ())):
            listener(chunk)

    def has_remote_readers(self, key: Key) -> bool:
        """Return whether another process has announced a reader."""
        return bool(self._remote_readers) and self._remote_readers.get(key, 0.0) > host.elapsed()

    def broadcast(self, key: Key, chunk: DeltaChunk) -> None:
        """Broadcast a chunk to other processes, in as many parts as it needs."""
        data = msgspec.json.encode(_ChunkMessage(self._source, key, chunk))
        half = len(chunk.text) // 2
        if len(data) <= BROADCAST_BYTES:
            self._store.broadcast(_CHUNK_TOPIC, data)
        elif half:
            self.broadcast(key, replace(chunk, text=chunk.text[:half]))
            at = chunk.at if chunk.at < 0 else chunk.at + half
            self.broadcast(key, replace(chunk, text=chunk.text[half:], at=at))

    # --- subscribe ----------------------------------------------------------------------------

    @contextmanager
    def subscribe(self, tenant: str, session_id: str, listener: Listener) -> Iterator[None]:
        """Follow one session; the listener first gets the chunks of the response so far."""
        key = (tenant, session_id)
        self._listeners.setdefault(key, []).append(listener)
        if self._is_connected:
            self._announce([key], is_new=True)
        if key in self._responses:
            for chunk in self._responses[key].chunks():
                listener(chunk)
        try:
            yield
        finally:
            self._listeners[key].remove(listener)
            if not self._listeners[key]:
                del self._listeners[key]

    @contextmanager
    def connect(self) -> Iterator[None]:
        """Exchange chunks and announcements of readers with other processes on the store."""
        with self._store.subscribe(self._receive):
            self._is_connected = True
            self._announce(list(self._listeners), is_new=True)
            try:
                yield
            finally:
                self._is_connected = False
                self._remote_readers.clear()

    def announce_readers(self) -> None:
        """Announce the readers here again, and drop remote ones that were not announced."""
        self._announce(list(self._listeners), is_new=False)
        now = host.elapsed()
        self._remote_readers = {
            key: until for key, until in self._remote_readers.items() if until > now
        }

    def _announce(self, keys: list[Key], *, is_new: bool) -> None:
        if not keys:
            return
        data = msgspec.json.encode(_ReaderAnnouncement(self._source, is_new, keys))
        if len(data) > BROADCAST_BYTES and len(keys) > 1:
            half = len(keys) // 2
            self._announce(keys[:half], is_new=is_new)
            self._announce(keys[half:], is_new=is_new)
            return
        self._store.broadcast(_READERS_TOPIC, data)

    def _receive(self, topic: str, data: bytes) -> None:
        try:
            if topic == _CHUNK_TOPIC:
                message = _chunk_decoder.decode(data)
                if message.source != self._source:
                    self.publish_here(message.key, message.chunk)
            elif topic == _READERS_TOPIC:
                announcement = _readers_decoder.decode(data)
                if announcement.source != self._source:
                    self._add_remote_readers(announcement)
        except msgspec.MsgspecError:  # from another version: chunks may be lost
            return

    def _add_remote_readers(self, announcement: _ReaderAnnouncement) -> None:
        until = host.elapsed() + READER_TTL_S
        for key in announcement.keys:
            is_new = announcement.is_new or not self.has_remote_readers(key)
            self._remote_readers[key] = until
            if is_new and key in self._responses:
                self._responses[key].rebroadcast()


_chunk_decoder = msgspec.json.Decoder(_ChunkMessage)
_readers_decoder = msgspec.json.Decoder(_ReaderAnnouncement)


class ResponseStream:
    """Stream of one attempt at a turn, from its first delta on."""

    __slots__ = ("_attempt", "_broadcast_count", "_bus", "_chunks", "_key", "_length", "_timer")

    def __init__(self, bus: Bus, key: Key, turn: int, attempt: Attempt) -> None:
        self._bus = bus
        self._key = key
        self._attempt = (turn, attempt)
        self._chunks: list[DeltaChunk] = []  # all of them, for readers that subscribe late
        self._length = 0
        self._broadcast_count = 0  # of them, how many need not be broadcast any more
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Callable[[Delta], None]:
        return self.write

    def __exit__(self, *_: object) -> None:
        if self._chunks:
            self.flush()
            self._bus.remove_response(self._key, self)

    def write(self, delta: Delta) -> None:
        """Publish the next delta."""
        text = storable_text(delta.text)  # a lone surrogate cannot be encoded
        if not text:
            return
        chunk = DeltaChunk(*self._attempt, self._length, delta.kind, text, delta.call_id)
        if not self._chunks:
            self._bus.add_response(self._key, self)
        self._chunks.append(chunk)
        self._length += len(text)
        self._bus.publish_here(self._key, chunk)
        if not self._bus.has_remote_readers(self._key):
            self._broadcast_count = len(self._chunks)
        elif self._length - self._chunks[self._broadcast_count].at >= GATHER_CHARS:
            self._broadcast()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._broadcast)

    def chunks(self) -> Iterator[DeltaChunk]:
        """Return the chunks so far, with adjacent ones of one kind joined."""
        return _join(self._chunks)

    def rebroadcast(self) -> None:
        """Broadcast all chunks again: another process has just subscribed."""
        self._broadcast_count = 0
        self._broadcast()

    def flush(self) -> None:
        """Broadcast what is still gathered."""
        if self._timer is not None:
            self._broadcast()

    def _broadcast(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        new, self._broadcast_count = self._chunks[self._broadcast_count :], len(self._chunks)
        for chunk in _join(new):
            self._bus.broadcast(self._key, chunk)


def _join(chunks: list[DeltaChunk]) -> Iterator[DeltaChunk]:
    """Join adjacent chunks of one kind and call."""
    for _, same in groupby(chunks, key=lambda chunk: (chunk.kind, chunk.call_id)):
        first, *rest = same
        yield replace(first, text="".join([first.text, *(chunk.text for chunk in rest)]))


ASKED_AGAIN = "asked again"
CHUNKS_LOST = "deltas were lost"


class DeltaReader:
    """Turns chunks into deltas in order, each once, until the event of their turn is recorded."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._recorded_turn = 0  # the last recorded turn that was shown
        self._current: tuple[int, Attempt] = (0, (0, 0))  # turn and attempt
        self._length: int | None = 0  # characters shown of the attempt; None: some were lost

    def mark_recorded(self, turn: int) -> None:
        """Note that the response of this turn was shown: later chunks of it are old."""
        self._recorded_turn = max(self._recorded_turn, turn)

    def read(self, chunk: DeltaChunk) -> list[Delta]:
        """Return the deltas to show for a chunk, perhaps after a reset of this turn."""
        if chunk.at < 0:
            return [self._delta(chunk, chunk.text)]
        current = (chunk.turn, chunk.attempt)
        if chunk.turn <= self._recorded_turn or current < self._current:
            return []  # recorded already, or from a driver that has been replaced
        deltas = []
        if current > self._current:
            if self._length and chunk.turn == self._current[0]:
                deltas.append(self._reset(chunk, ASKED_AGAIN))
            self._current, self._length = current, 0
        if self._length is None and chunk.at == 0:
            self._length = 0  # it is broadcast again from the beginning
        if self._length is None or chunk.at > self._length:
            if self._length:
                deltas.append(self._reset(chunk, CHUNKS_LOST))
            self._length = None
            return deltas
        new = chunk.text[self._length - chunk.at :]
        self._length += len(new)
        return [*deltas, self._delta(chunk, new)] if new else deltas

    def _delta(self, chunk: DeltaChunk, text: str) -> Delta:
        return Delta(self._session_id, chunk.turn, chunk.kind, text, chunk.call_id)

    def _reset(self, chunk: DeltaChunk, reason: str) -> Delta:
        return Delta(self._session_id, chunk.turn, "reset", reason)
