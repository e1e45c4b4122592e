"""Pieces of answers while they come: to whoever listens in this process, or on the same store.

Nothing of it is kept or sure to arrive. A process that listens to a session says so now and then
to all others on its store; only then does the one that drives it whisper, some pieces at a time.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.runtime.ids import secret_id
from perdure.runtime.models.base import Delta, DeltaKind
from perdure.runtime.storable import storable_text
from perdure.store.base import WHISPER_BYTES, Store

GATHER_S: Final = 0.05  # how long pieces are gathered for other processes
GATHER_CHARS: Final = 4_000  # at most
WANTED_S: Final = 15.0  # how long a process is taken to listen after it has said so
REMIND_S: Final = 5.0  # how often it says so

_PIECE: Final = "piece"
_LISTEN: Final = "listen"

Key = tuple[str, str]  # tenant and session
Attempt = tuple[int, int]  # the driver's epoch, and which of its requests


class DeltaChunk(Struct, frozen=True, array_like=True):
    """Some text of an answer, and where it stands: `at` is how much of the attempt is before it.

    What stands alone, as the progress of a tool, has no place: `at` is -1.
    """

    turn: int
    attempt: Attempt
    at: int
    kind: DeltaKind
    text: str
    call_id: str | None = None


Listener = Callable[[DeltaChunk], None]


class _Told(Struct, frozen=True, array_like=True):
    source: str
    key: Key
    piece: DeltaChunk


class _Wanted(Struct, frozen=True, array_like=True):
    source: str
    is_new: bool  # what was said before it listened is wanted, too
    keys: list[Key]


class Bus:
    """The pieces of all sessions of one runtime."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._source = secret_id("b")  # by which we know our own voice
        self._listeners: dict[Key, list[Listener]] = {}
        self._speeches: dict[Key, ResponseStream] = {}  # under way here
        self._wanted: dict[Key, float] = {}  # elsewhere, and until when; monotonic
        self._overhears = False

    # --- speaking -----------------------------------------------------------------------------

    def speaking(
        self, key: Key, turn: int, attempt: Attempt
    ) -> AbstractContextManager[Callable[[Delta], None]]:
        """A way to say the pieces of one attempt at a turn."""
        return ResponseStream(self, key, turn, attempt)

    def begins(self, key: Key, speech: "ResponseStream") -> None:
        """Who listens to the session from now on is told what this has said so far."""
        self._speeches[key] = speech

    def ends(self, key: Key, speech: "ResponseStream") -> None:
        """Nothing more is said, unless another one has begun."""
        if self._speeches.get(key) is speech:
            del self._speeches[key]

    def say_alone(self, tenant: str, delta: Delta) -> None:
        """Say something that is no part of an answer."""
        key = (tenant, delta.session_id)
        text = storable_text(delta.text)
        piece = DeltaChunk(delta.turn, (0, 0), -1, delta.kind, text, delta.call_id)
        self.hand_on(key, piece)
        if self.is_wanted(key):
            self.broadcast(key, piece)

    def hand_on(self, key: Key, piece: DeltaChunk) -> None:
        """Give a piece to those who listen here."""
        for listener in tuple(self._listeners.get(key, ())):
            listener(piece)

    def is_wanted(self, key: Key) -> bool:
        """Whether somebody listens elsewhere."""
        return bool(self._wanted) and self._wanted.get(key, 0.0) > time.monotonic()

    def broadcast(self, key: Key, piece: DeltaChunk) -> None:
        """Tell the other processes, in as many parts as it takes."""
        data = msgspec.json.encode(_Told(self._source, key, piece))
        half = len(piece.text) // 2
        if len(data) <= WHISPER_BYTES:
            self._store.broadcast(_PIECE, data)
        elif half:
            self.broadcast(key, replace(piece, text=piece.text[:half]))
            at = piece.at if piece.at < 0 else piece.at + half
            self.broadcast(key, replace(piece, text=piece.text[half:], at=at))

    # --- listening ----------------------------------------------------------------------------

    @contextmanager
    def listening(self, tenant: str, session_id: str, listener: Listener) -> Iterator[None]:
        """Listen to one session; of the answer under way one is told what was said already."""
        key = (tenant, session_id)
        self._listeners.setdefault(key, []).append(listener)
        if self._overhears:
            self._ask_for([key], is_new=True)
        if key in self._speeches:
            for piece in self._speeches[key].so_far():
                listener(piece)
        try:
            yield
        finally:
            self._listeners[key].remove(listener)
            if not self._listeners[key]:
                del self._listeners[key]

    @contextmanager
    def overhearing(self) -> Iterator[None]:
        """Be told what other processes on the store say, and who listens there."""
        with self._store.subscribe(self._heard):
            self._overhears = True
            self._ask_for(list(self._listeners), is_new=True)
            try:
                yield
            finally:
                self._overhears = False
                self._wanted.clear()

    def remind(self) -> None:
        """Tell the others again whom we listen to, and forget who has not done so."""
        self._ask_for(list(self._listeners), is_new=False)
        now = time.monotonic()
        self._wanted = {key: until for key, until in self._wanted.items() if until > now}

    def _ask_for(self, keys: list[Key], *, is_new: bool) -> None:
        if not keys:
            return
        data = msgspec.json.encode(_Wanted(self._source, is_new, keys))
        if len(data) > WHISPER_BYTES and len(keys) > 1:
            half = len(keys) // 2
            self._ask_for(keys[:half], is_new=is_new)
            self._ask_for(keys[half:], is_new=is_new)
            return
        self._store.broadcast(_LISTEN, data)

    def _heard(self, topic: str, data: bytes) -> None:
        try:
            if topic == _PIECE:
                told = _told.decode(data)
                if told.source != self._source:
                    self.hand_on(told.key, told.piece)
            elif topic == _LISTEN:
                wanted = _listen.decode(data)
                if wanted.source != self._source:
                    self._want(wanted)
        except msgspec.MsgspecError:  # of another version: pieces may get lost
            return

    def _want(self, wanted: _Wanted) -> None:
        until = time.monotonic() + WANTED_S
        for key in wanted.keys:
            is_new = wanted.is_new or not self.is_wanted(key)
            self._wanted[key] = until
            if is_new and key in self._speeches:
                self._speeches[key].repeat()


_told = msgspec.json.Decoder(_Told)
_listen = msgspec.json.Decoder(_Wanted)


class ResponseStream:
    """One attempt at a turn, as it is streamed."""

    def __init__(self, bus: Bus, key: Key, turn: int, attempt: Attempt) -> None:
        self._bus = bus
        self._key = key
        self._place = (turn, attempt)
        self._said: list[DeltaChunk] = []  # all of it, for who comes late
        self._length = 0
        self._told = 0  # how many of them other processes were told, while they listen
        self._telling: asyncio.TimerHandle | None = None

    def __enter__(self) -> Callable[[Delta], None]:
        self._bus.begins(self._key, self)
        return self.say

    def __exit__(self, *_: object) -> None:
        self.end()
        self._bus.ends(self._key, self)

    def say(self, delta: Delta) -> None:
        """Say the next piece."""
        text = storable_text(delta.text)  # half a character could be told to nobody
        if not text:
            return
        piece = DeltaChunk(*self._place, self._length, delta.kind, text, delta.call_id)
        self._said.append(piece)
        self._length += len(text)
        self._bus.hand_on(self._key, piece)
        if not self._bus.is_wanted(self._key):
            self._told = len(self._said)
        elif self._length - self._said[self._told].at >= GATHER_CHARS:
            self._tell()
        elif self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(GATHER_S, self._tell)

    def so_far(self) -> Iterator[DeltaChunk]:
        """What was said, in as few pieces as it has kinds."""
        return _joined(self._said)

    def repeat(self) -> None:
        """Tell other processes all of it: one of them has just begun to listen."""
        self._told = 0
        self._tell()

    def end(self) -> None:
        """Nothing more is said."""
        if self._telling is not None:
            self._tell()

    def _tell(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        new, self._told = self._said[self._told :], len(self._said)
        for piece in _joined(new):
            self._bus.broadcast(self._key, piece)


def _joined(pieces: list[DeltaChunk]) -> Iterator[DeltaChunk]:
    """Pieces that follow one another, those of one kind in one."""
    for _, same in groupby(pieces, key=lambda one: (one.kind, one.call_id)):
        first, *rest = same
        yield replace(first, text="".join([first.text, *(one.text for one in rest)]))


AGAIN = "asked again"
LOST = "pieces were lost"


class DeltaReader:
    """Shows pieces in order, each once, until the event of their turn says it all."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._answered = 0  # the last turn that is recorded
        self._place: tuple[int, Attempt] = (0, (0, 0))
        self._length: int | None = 0  # of the attempt, as it was shown; None: some was lost

    def answered(self, turn: int) -> None:
        """The answer of this turn was shown: what still comes of it is old."""
        self._answered = max(self._answered, turn)

    def take(self, piece: DeltaChunk) -> list[Delta]:
        """What to show of a piece, and perhaps first: forget what you have of this turn."""
        if piece.at < 0:
            return [self._delta(piece, piece.text)]
        place = (piece.turn, piece.attempt)
        if piece.turn <= self._answered or place < self._place:
            return []  # recorded already, or said by a driver that others have replaced
        told = []
        if place > self._place:
            if self._length and piece.turn == self._place[0]:
                told.append(self._reset(piece, AGAIN))
            self._place, self._length = place, 0
        if self._length is None and piece.at == 0:
            self._length = 0  # it is told once more from the beginning
        if self._length is None or piece.at > self._length:
            if self._length:
                told.append(self._reset(piece, LOST))
            self._length = None
            return told
        new = piece.text[self._length - piece.at :]
        self._length += len(new)
        return [*told, self._delta(piece, new)] if new else told

    def _delta(self, piece: DeltaChunk, text: str) -> Delta:
        return Delta(self._session_id, piece.turn, piece.kind, text, piece.call_id)

    def _reset(self, piece: DeltaChunk, why: str) -> Delta:
        return Delta(self._session_id, piece.turn, "reset", why)
