"""The journal of a files store: one line per commit, which is durable once the line is synced.

It begins with the state after all earlier lines, so it can be read alone and stays short.
"""

import logging
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from perdure.errors import SchemaNewer
from perdure.store.base import Entry
from perdure.store.judge import StreamRow
from perdure.store.shared.line_files import append_lines, read_lines, sync_folder
from perdure.store.shared.lines import (
    JournalLine,
    decode_journal_line,
    encode_journal_line,
    entry_line,
)

T = TypeVar("T")

logger = logging.getLogger("perdure")

FORMAT: Final = 2
BEFORE_LISTINGS: Final = 1  # the format whose entries do not name their listing
_ROWS_PER_LINE: Final = 500  # in the lines of a state


class JournalDamaged(Exception):
    """A line before the last one cannot be read."""


class Journal:
    """The file of a journal, and its size."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.state_size = 0  # of the state at its beginning

    def load(self) -> tuple[list[JournalLine], bool]:
        """Return the complete lines, and whether a torn one follows. Raises JournalDamaged."""
        lines, self.size, is_torn = self.read()
        self.state_size = 0
        return lines, is_torn

    def cut(self) -> None:
        """Cut off the incomplete last line."""
        logger.warning("%s: cut an incomplete last line", self.path)
        os.truncate(self.path, self.size)

    def read(self) -> tuple[list[JournalLine], int, bool]:
        """Return every complete line, their size, and whether an incomplete one follows.

        Raises JournalDamaged.
        """
        lines: list[JournalLine] = []
        damaged: int | None = None
        size = 0
        for number, (span, text) in enumerate(read_lines(self.path), 1):
            try:
                line = decode_journal_line(text)
            except ValueError:
                damaged = damaged or number
                continue
            if damaged is not None:
                raise JournalDamaged(f"line {damaged}")
            lines.append(line)
            size = span.offset + span.length + 1
        _check_format(lines, self.path)
        return lines, size, damaged is not None

    def add(self, line: JournalLine, *, sync: bool) -> None:
        """Append a line; without a sync it survives the process, but not a power loss."""
        (span,) = append_lines(self.path, [encode_journal_line(line)], sync=sync)
        self.size = span.offset + span.length + 1

    def restart(self, lines: Iterable[JournalLine]) -> None:
        """Replace the journal atomically by one with these lines."""
        part = self.path.with_name(f".{self.path.name}.tmp")
        part.unlink(missing_ok=True)
        spans = append_lines(part, map(encode_journal_line, lines), sync=True)
        part.rename(self.path)
        sync_folder(self.path.parent)
        self.size = self.state_size = spans[-1].offset + spans[-1].length + 1


def state_lines(
    streams: dict[str, StreamRow],
    entries: Iterable[Entry],
    holders: dict[str, tuple[int, int] | None],
    pos: int,
) -> Iterator[JournalLine]:
    """Yield the lines of a state."""
    yield JournalLine(format=FORMAT, pos=pos, holders=holders)
    for rows in _slices(streams.items()):
        yield JournalLine(streams=dict(rows))
    for part in _slices(entries):
        yield JournalLine(entries=[entry_line(e.kind, e.key, e, e.stream) for e in part])


def _slices(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while part := list(islice(rest, _ROWS_PER_LINE)):
        yield part


def _check_format(lines: list[Any], path: Path) -> None:
    if not lines:
        return
    if lines[0].format > FORMAT:
        raise SchemaNewer(
            f"{path} has format {lines[0].format}; this perdure supports {FORMAT}",
            hint="a newer perdure wrote it: upgrade with pip install -U perdure",
        )
    if lines[0].format < 1:
        raise JournalDamaged("line 1")
