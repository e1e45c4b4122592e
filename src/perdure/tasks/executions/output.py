"""Output of commands: spooled to bounded files while they run, and read from there.

The folder of an execution has one file per channel, with the first bytes of its output. Whoever
settles an execution whose process has died finds the output there, and followers in any process on
this machine read it from there.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from perdure.sandbox.base import Channel
from perdure.tasks.files.place import EXECUTIONS
from perdure.tasks.files.removal import remove_tree
from perdure.tasks.model.executions import CapturedOutput

HEAD_BYTES: Final = 64 * 1024  # of each channel that the record keeps
TAIL_BYTES: Final = 192 * 1024
SPOOL_BYTES: Final = 16 * 1024**2  # of each channel that a file keeps
KEPT_SPOOLS: Final = 10  # of executions whose record does not have all of their output
READ_BYTES: Final = 64 * 1024
CHANNELS: Final[tuple[Channel, ...]] = ("stdout", "stderr")
_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class OutputPiece(NamedTuple):
    """Bytes of a channel, and their offset in it."""

    channel: Channel
    at: int
    data: bytes


def spool_folder(task_folder: Path, execution_id: str) -> Path:
    """Return the folder of an execution's output."""
    return task_folder / EXECUTIONS / execution_id


@dataclass(slots=True)
class _ChannelSpool:
    """Output of one channel: counted, the ends in memory, the beginning in a file."""

    path: Path
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    size: int = 0
    fd: int = -1

    def write(self, data: bytes) -> None:
        self._append(data)
        self.size += len(data)
        if len(self.head) < HEAD_BYTES:
            part = HEAD_BYTES - len(self.head)
            self.head += data[:part]
            data = data[part:]
        if data:
            self.tail += data
            if len(self.tail) > TAIL_BYTES:
                del self.tail[:-TAIL_BYTES]

    def _append(self, data: bytes) -> None:
        part = data[: max(0, SPOOL_BYTES - self.size)]
        if not part:
            return
        # A full disk loses the file and not the command: the record gets its ends from memory.
        with suppress(OSError):
            if self.fd < 0:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.fd = os.open(self.path, _APPEND, 0o600)
            os.write(self.fd, part)

    def captured(self) -> CapturedOutput:
        return CapturedOutput(bytes(self.head), bytes(self.tail), self.size)


class OutputSpool:
    """Output of a running command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._channels = {name: _ChannelSpool(folder / name) for name in CHANNELS}

    def write(self, channel: Channel, data: bytes) -> int:
        """Add output; return its offset. It never raises."""
        spool = self._channels[channel]
        at = spool.size
        spool.write(data)
        return at

    def captured(self, channel: Channel) -> CapturedOutput:
        """Return the output so far, as the record of its end keeps it."""
        return self._channels[channel].captured()

    def close(self, *, keep: bool) -> None:
        """Close the files, and remove them unless the record has only a part of the output."""
        has_files = False
        for spool in self._channels.values():
            if spool.fd >= 0:
                has_files = True
                os.close(spool.fd)
                spool.fd = -1
        if has_files:
            with suppress(OSError):
                _prune(self.folder.parent) if keep else remove_tree(self.folder)


def read_captured(folder: Path, channel: Channel) -> CapturedOutput:
    """Return the output that a process has left in its spool. Raises OSError."""
    try:
        fd = os.open(folder / channel, _READ)
    except FileNotFoundError:
        return CapturedOutput()
    with os.fdopen(fd, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(HEAD_BYTES)
        file.seek(max(len(head), size - TAIL_BYTES))
        return CapturedOutput(head, file.read(TAIL_BYTES), size)


def read_spool(folder: Path, channel: Channel, at: int) -> Iterator[OutputPiece]:
    """Yield the output from an offset on, as far as the spool has it."""
    with suppress(FileNotFoundError), os.fdopen(os.open(folder / channel, _READ), "rb") as file:
        file.seek(at)
        while data := file.read(READ_BYTES):
            yield OutputPiece(channel, at, data)
            at += len(data)


def discard_spool(folder: Path) -> None:
    """Remove the output that a process has left."""
    with suppress(OSError):
        remove_tree(folder)


def _prune(folder: Path) -> None:
    """Keep the newest spools of a task only; ids sort by time."""
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    for name in names[:-KEPT_SPOOLS]:
        remove_tree(folder / name)
