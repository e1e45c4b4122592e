"""Reader of a command's output: each byte once and in order, as text, while the command runs."""

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from perdure.sandbox.base import Channel
from perdure.tasks.executions.live import Follower
from perdure.tasks.executions.output import CHANNELS, OutputPiece, read_spool
from perdure.tasks.model.executions import ExecutionFact


class OutputText(NamedTuple):
    r"""Output of a channel as text, with invalid bytes as `\xNN`."""

    channel: Channel
    text: str


class OutputReader:
    """Position of a follower in both channels."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder  # of the spool; None on another machine
        self._positions: dict[Channel, int] = dict.fromkeys(CHANNELS, 0)
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {channel: decoder("backslashreplace") for channel in CHANNELS}

    def new_texts(self, follower: Follower) -> Iterator[OutputText]:
        """Return the output that was not read yet."""
        if self._folder is None:
            while follower.pieces:
                yield from self._read(follower.pieces.popleft())
            return
        for channel in CHANNELS:
            for piece in read_spool(self._folder, channel, self._positions[channel]):
                yield from self._read(piece)

    def rest(self, fact: ExecutionFact) -> Iterator[OutputText]:
        """Return the rest from the record of the end, which has the first and last bytes."""
        for channel, output in zip(CHANNELS, (fact.stdout, fact.stderr), strict=True):
            yield from self._read(OutputPiece(channel, 0, output.head))
            start = output.size - len(output.tail)
            yield from self._read(OutputPiece(channel, start, output.tail))
            if end := self._decoders[channel].decode(b"", final=True):
                yield OutputText(channel, end)

    def _read(self, piece: OutputPiece) -> Iterator[OutputText]:
        channel, position = piece.channel, self._positions[piece.channel]
        new = piece.data[max(0, position - piece.at) :]
        if not new:
            return
        if piece.at > position:
            lost = f"[... {piece.at - position:,} bytes left out ...]\n"
            yield OutputText(channel, self._decoders[channel].decode(b"", final=True) + lost)
        self._positions[channel] = max(position, piece.at) + len(new)
        if text := self._decoders[channel].decode(new):
            yield OutputText(channel, text)
