"""Files of a task that mirror the store: what they hold, and how the missing part is written.

A file is never trusted: the store has the truth. Its end says which records it has. What follows is
appended; an end that a crash has cut off is completed. A file with anything else in it was edited
by somebody: it stays as it is, and `doctor` reports it.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from perdure.errors import Corrupt
from perdure.store.shared.private_files import FILE, replacement_mode
from perdure.tasks.model import decision_file, log_file, state_file
from perdure.tasks.model.facts import TaskFact
from perdure.tasks.model.state_file import TaskState

STATE: Final = "state.json"
LOGS: Final = "logs.jsonl"
DECISIONS: Final = "decisions.md"
_REPLACE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_WINDOW: Final = 64 * 1024  # bytes of the end of a file that are read first

Position = tuple[int, int]
Unit = tuple[Position, bytes]


class Stamp(NamedTuple):
    """Versions of the entries that `state.json` was written from."""

    row: int
    state: int


class StampedFact(NamedTuple):
    """A record of a task's stream, decoded."""

    seq: int
    fact: TaskFact


@dataclass(frozen=True, slots=True)
class TaskContent:
    """Content of a task's files, from the store: all its records, or the last ones."""

    state: TaskState | None
    row: dict[str, Any] | None
    stamp: Stamp
    facts: Sequence[StampedFact]
    head: int
    since: int = 0  # records up to this one were removed by a caller

    def is_smaller_than(self, size: int) -> bool:
        """Return True if there is little to write, as far as can be told without encoding it."""
        texts = (len(line.message) for _, fact in self.facts for line in fact.lines)
        return len(self.facts) < 100 and sum(texts) < size and len(str(self.row)) < size

    @property
    def log_units(self) -> list[Unit]:
        """Lines of `logs.jsonl`."""
        return [unit for item in self.facts for unit in log_file.log_units(*item)]

    @property
    def decision_units(self) -> list[Unit]:
        """Blocks of `decisions.md`."""
        return [
            decision_file.decision_unit(seq, fact.decision)
            for seq, fact in self.facts
            if fact.decision is not None
        ]

    @property
    def state_bytes(self) -> bytes | None:
        """Content of `state.json`; None if there is neither a row nor a saved state."""
        if self.state is None:
            return None
        row = {} if self.row is None else {"task": self.row}
        return state_file.state_document(self.state, {**row, "version": list(self.stamp)})


class EditedFile(Exception):
    """A file has content that the store does not have."""


class MissingRecords(Exception):
    """The file needs records from before those that were read."""


@dataclass(frozen=True, slots=True)
class AppendedFile:
    """A file that only grows: its header, and how its last complete unit is found."""

    name: str
    header: bytes
    last_unit: Callable[[bytes], tuple[Position, int] | None]

    def append_missing(
        self, folder: Path, units: Sequence[Unit], floor: Position | None
    ) -> Position | None:
        """Append the units that the file does not have, and return the position of its end.

        With `floor`, the units are those after it, and the file must have it: MissingRecords.
        Raises EditedFile, OSError.
        """
        path = folder / self.name
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            if floor is not None:
                raise MissingRecords from None
            if not units:
                return None
            fd = os.open(path, _CREATE, FILE)
        with os.fdopen(fd, "r+b") as file:
            tail, last = self.end(file)
            missing = self._missing(tail, last, units, floor)
            if missing:
                file.seek(0, os.SEEK_END)
                file.write(missing)
        ends = [at for at in (units[-1][0] if units else None, last and last[0]) if at is not None]
        return max(ends, default=None)

    def end(self, file: BinaryIO) -> tuple[bytes, tuple[Position, int] | None]:
        """Return the end of a file, and its last complete unit. Raises EditedFile."""
        size, window = file.seek(0, os.SEEK_END), _WINDOW
        while True:
            start = max(0, size - window)
            file.seek(start)
            tail = file.read()
            try:
                last = self.last_unit(tail)
            except ValueError as error:
                if start == 0:
                    raise EditedFile from error
                last = None
            if last is not None or start == 0:
                return tail, last
            window *= 16

    def _missing(
        self,
        tail: bytes,
        last: tuple[Position, int] | None,
        units: Sequence[Unit],
        floor: Position | None,
    ) -> bytes:
        if last is None:
            if floor is not None:
                raise MissingRecords
            present, expected = tail, [self.header, *(data for _, data in units)]
        else:
            position, end = last
            if floor is not None and position < floor:
                raise MissingRecords
            present, expected = tail[end:], [data for at, data in units if at > position]
        whole = b"".join(expected)
        if not whole.startswith(present):
            raise EditedFile
        return whole[len(present) :]


LOG_FILE: Final = AppendedFile(LOGS, b"", log_file.last_unit)
DECISION_FILE: Final = AppendedFile(DECISIONS, decision_file.HEADER, decision_file.last_unit)


def write_state(folder: Path, content: bytes, stamp: Stamp) -> None:
    """Replace `state.json` unless it is newer. Raises EditedFile, OSError."""
    path = folder / STATE
    try:
        present = path.read_bytes()
    except FileNotFoundError:
        present = b""
    if present.strip():  # an empty one is of nobody: a power loss may leave it
        present_stamp = state_stamp(present)
        if present_stamp.row > stamp.row or present_stamp.state > stamp.state:
            return
        if present_stamp == stamp and present == content:
            return
    temporary = folder / f".{STATE}.new"
    with os.fdopen(os.open(temporary, _REPLACE, FILE), "wb") as file:
        os.fchmod(file.fileno(), replacement_mode(path))
        file.write(content)
    temporary.replace(path)


class _Versioned(msgspec.Struct):
    version: tuple[int, int] = (0, 0)


def state_stamp(content: bytes) -> Stamp:
    """Return the versions that a `state.json` was written from. Raises EditedFile."""
    try:
        state_file.parse_state(content)
        return Stamp(*msgspec.json.decode(content, type=_Versioned).version)
    except (Corrupt, msgspec.MsgspecError) as error:
        raise EditedFile from error
