"""Live output of commands, and requests to stop them, between the processes of a store.

Broadcasts are lossy. A follower on the machine of the task reads the spool, and uses them as
wake-ups; elsewhere it shows the pieces that it gets. A request to stop is durable in the slot of
the task, which the process that runs the command reads at intervals.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
from msgspec import Struct

from perdure.ids import secret_id
from perdure.sandbox.base import Channel
from perdure.store.base import Store
from perdure.tasks.executions.output import OutputPiece

GATHER_S: Final = 0.05  # how long output is gathered for other processes
READER_TTL_S: Final = 15.0  # how long an announcement of a follower counts
ANNOUNCE_S: Final = 5.0  # how often a follower is announced again
PIECE_BYTES: Final = 3_000  # of one broadcast, in which they are base64
_GATHERED_BYTES: Final = 64 * 1024  # broadcast at one time; more is only in the spool
_MAX_PIECES: Final = 1_000  # that a slow follower is given later
_PIECE: Final = "exec_piece"
_READER: Final = "exec_reader"
_STOP: Final = "exec_stop"


class _PieceMessage(Struct, frozen=True, array_like=True):
    source: str
    execution: str
    channel: Channel | None  # None: the execution has ended
    at: int = 0
    data: bytes = b""


class _ReaderMessage(Struct, frozen=True, array_like=True):
    source: str
    execution: str


class Follower:
    """Wake-ups for one follower, with the pieces of output if it cannot read the spool."""

    def __init__(self, *, has_spool: bool) -> None:
        self.pieces: deque[OutputPiece] = deque(maxlen=0 if has_spool else _MAX_PIECES)
        self.changed = asyncio.Event()
        self.has_ended = False


class ExecutionBus:
    """Exchange between the process that runs a command and its followers elsewhere."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._source = secret_id("x")
        self._followers: dict[str, list[Follower]] = {}  # by execution
        self._remote: dict[str, float] = {}  # executions followed elsewhere, until when
        self._gathered: dict[str, list[OutputPiece]] = {}
        self._on_stop: Callable[[str], None] | None = None
        self._on_reader: Callable[[str], None] | None = None

    @contextmanager
    def connect(
        self, on_stop: Callable[[str], None], on_reader: Callable[[str], None]
    ) -> Iterator[None]:
        """Receive broadcasts: names of streams to stop, and executions with a new follower."""
        self._on_stop, self._on_reader = on_stop, on_reader
        with self._store.subscribe(self._receive):
            yield

    # --- the process that runs the command ----------------------------------------------------

    def publish(self, execution_id: str, piece: OutputPiece) -> None:
        """Pass a piece of output to the followers, here and elsewhere."""
        self._pass_on(execution_id, piece)
        if not self._has_remote(execution_id):
            return
        gathered = self._gathered.setdefault(execution_id, [])
        if not gathered:
            asyncio.get_running_loop().call_later(GATHER_S, self._flush, execution_id)
        if sum(len(item.data) for item in gathered) < _GATHERED_BYTES:
            gathered.append(piece._replace(data=piece.data[:_GATHERED_BYTES]))

    def end(self, execution_id: str) -> None:
        """Wake the followers: the end of the execution is recorded."""
        self._end_here(execution_id)
        if self._has_remote(execution_id):
            self._flush(execution_id)
            self._broadcast(_PieceMessage(self._source, execution_id, None))

    def _flush(self, execution_id: str) -> None:
        for piece in self._gathered.pop(execution_id, ()):
            for start in range(0, len(piece.data), PIECE_BYTES):
                data = piece.data[start : start + PIECE_BYTES]
                at = piece.at + start
                message = _PieceMessage(self._source, execution_id, piece.channel, at, data)
                self._broadcast(message)

    def _broadcast(self, message: _PieceMessage) -> None:
        self._store.broadcast(_PIECE, msgspec.json.encode(message))

    def _has_remote(self, execution_id: str) -> bool:
        return bool(self._remote) and self._remote.get(execution_id, 0.0) > time.monotonic()

    # --- callers ------------------------------------------------------------------------------

    def request_stop(self, stream: str) -> None:
        """Tell the process that runs a command in a task to look whether it must stop it."""
        self._store.broadcast(_STOP, stream.encode())

    @contextmanager
    def follow(self, execution_id: str, *, has_spool: bool) -> Iterator[Follower]:
        """Register a follower."""
        follower = Follower(has_spool=has_spool)
        self._followers.setdefault(execution_id, []).append(follower)
        self.announce(execution_id)
        try:
            yield follower
        finally:
            self._followers[execution_id].remove(follower)
            if not self._followers[execution_id]:
                del self._followers[execution_id]

    def announce(self, execution_id: str) -> None:
        """Announce a follower to the process that runs the command."""
        data = msgspec.json.encode(_ReaderMessage(self._source, execution_id))
        self._store.broadcast(_READER, data)

    # --- broadcasts ---------------------------------------------------------------------------

    def _receive(self, topic: str, data: bytes) -> None:
        try:
            if topic == _STOP and self._on_stop is not None:
                self._on_stop(data.decode())
            elif topic == _PIECE:
                self._receive_piece(_piece_decoder.decode(data))
            elif topic == _READER:
                self._receive_reader(_reader_decoder.decode(data))
        except (msgspec.MsgspecError, UnicodeDecodeError):  # from another version
            return

    def _receive_piece(self, message: _PieceMessage) -> None:
        if message.source == self._source:
            return
        if message.channel is None:
            self._end_here(message.execution)
        else:
            piece = OutputPiece(message.channel, message.at, message.data)
            self._pass_on(message.execution, piece)

    def _receive_reader(self, message: _ReaderMessage) -> None:
        if message.source == self._source or self._on_reader is None:
            return
        is_new = not self._has_remote(message.execution)
        now = time.monotonic()
        self._remote = {key: until for key, until in self._remote.items() if until > now}
        self._remote[message.execution] = now + READER_TTL_S
        if is_new:
            self._on_reader(message.execution)

    def _pass_on(self, execution_id: str, piece: OutputPiece) -> None:
        for follower in self._followers.get(execution_id, ()):
            follower.pieces.append(piece)
            follower.changed.set()

    def _end_here(self, execution_id: str) -> None:
        for follower in self._followers.get(execution_id, ()):
            follower.has_ended = True
            follower.changed.set()


_piece_decoder = msgspec.json.Decoder(_PieceMessage)
_reader_decoder = msgspec.json.Decoder(_ReaderMessage)
