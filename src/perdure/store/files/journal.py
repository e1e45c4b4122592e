"""The journal of a files store: one line is one commit, and once it is on the disk it has happened.

It begins with the state that earlier lines had come to, so it can be read alone and stays short.
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
from perdure.store.shared.line_files import append, lines_in, sync_folder
from perdure.store.shared.lines import JournalLine, entry_line, journal_in, journal_line

T = TypeVar("T")

logger = logging.getLogger("perdure")

FORMAT: Final = 1
_TOGETHER: Final = 500  # rows in one line of the state


class Damaged(Exception):
    """A line in the middle cannot be read, and what it said is not known."""


class Journal:
    """One file, and how long it is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.state_size = 0  # of what it began with

    def load(self) -> tuple[list[JournalLine], bool]:
        """Every whole line, and whether there is more. Raises Damaged."""
        lines, self.size, is_torn = self.read()
        self.state_size = 0
        return lines, is_torn

    def cut(self) -> None:
        """Cut off what was never finished."""
        logger.warning("%s: its last line was never finished and is cut", self.path)
        os.truncate(self.path, self.size)

    def read(self) -> tuple[list[JournalLine], int, bool]:
        """Every whole line, how many bytes they take, and whether there is more. Raises Damaged."""
        lines: list[JournalLine] = []
        bad: int | None = None
        size = 0
        for number, (span, text) in enumerate(lines_in(self.path), 1):
            try:
                line = journal_in(text)
            except ValueError:
                bad = bad or number
                continue
            if bad is not None:
                raise Damaged(f"line {bad}")
            lines.append(line)
            size = span.offset + span.length + 1
        _check_format(lines, self.path)
        return lines, size, bad is not None

    def add(self, line: JournalLine, *, sync: bool) -> None:
        """Write a line; what is not synced is lost with the machine, not with the process."""
        (span,) = append(self.path, [journal_line(line)], sync=sync)
        self.size = span.offset + span.length + 1

    def begin(self, lines: Iterable[JournalLine]) -> None:
        """Start anew with a state, all at once."""
        part = self.path.with_name(f".{self.path.name}.tmp")
        part.unlink(missing_ok=True)
        spans = append(part, map(journal_line, lines), sync=True)
        part.rename(self.path)
        sync_folder(self.path.parent)
        self.size = self.state_size = spans[-1].offset + spans[-1].length + 1


def state_lines(
    streams: dict[str, StreamRow],
    entries: Iterable[Entry],
    holders: dict[str, tuple[int, int] | None],
    pos: int,
) -> Iterator[JournalLine]:
    """A whole state as lines."""
    yield JournalLine(format=FORMAT, pos=pos, holders=holders)
    for rows in _slices(streams.items()):
        yield JournalLine(streams=dict(rows))
    for some in _slices(entries):
        yield JournalLine(entries=[entry_line(e.kind, e.key, e, e.stream) for e in some])


def _slices(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while some := list(islice(rest, _TOGETHER)):
        yield some


def _check_format(lines: list[Any], path: Path) -> None:
    if not lines:
        return
    if lines[0].format > FORMAT:
        raise SchemaNewer(
            f"{path} has format {lines[0].format}; this perdure knows {FORMAT}",
            hint="upgrade perdure",
        )
    if lines[0].format < 1:
        raise Damaged("line 1")
