"""Bringing the logs of a files store up to its journal, and making a lost journal from the logs."""

import logging
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from perdure.errors import Corrupt
from perdure.store.base import Record
from perdure.store.files.layout import LOG, Layout, all_logs, log_path
from perdure.store.judge import StreamRow
from perdure.store.shared.line_files import (
    Span,
    append,
    lines_in,
    read_spans,
    sync_file,
    sync_folder,
)
from perdure.store.shared.lines import (
    EntryLine,
    EventLine,
    JournalLine,
    Mark,
    entry_in,
    event_in,
    foreign_in,
    record_of,
)
from perdure.store.shared.tables import Moves, Tables

logger = logging.getLogger("perdure")

FOREIGN: Final = "events.foreign"


class Logs:
    """The logs of all streams in one folder."""

    def __init__(self, base: Path, layout: Layout) -> None:
        self._base = base
        self._layout = layout
        self._dirty: set[Path] = set()  # written since the last `sync`

    def path(self, stream: str) -> Path:
        """The file of a stream."""
        return log_path(self._base, self._layout, stream)

    def append(self, stream: str, first_seq: int, lines: Sequence[bytes]) -> list[Span]:
        """Add the next lines of a stream."""
        path = self.path(stream)
        if first_seq == 1:
            self._set_aside(path)
        self._dirty.add(path)
        return append(path, lines, sync=False)

    def catch_up(self, journal: Iterable[JournalLine]) -> None:
        """Do again what commits in the journal ask for; what is there already stays as it is."""
        lines = list(journal)
        erased = {stream for line in lines for stream in line.erased}
        heads: dict[str, int] = {}
        for line in lines:
            for stream in line.erased:
                self.erase(stream)
                heads.clear()  # the same folder may be that of the next one
            for stream, raw in line.records:
                if stream not in erased:
                    self._add_again(stream, bytes(raw), heads)

    def _add_again(self, stream: str, line: bytes, heads: dict[str, int]) -> None:
        seq = _event(line).perdure.seq
        if stream not in heads:
            heads[stream] = self.head(stream)
        if seq > heads[stream]:
            self.append(stream, seq, [line])
            heads[stream] = seq
        self._dirty.add(self.path(stream))

    def erase(self, stream: str) -> None:
        """Remove the log of a stream, and its folder if nothing else is in it."""
        path = self.path(stream)
        self._dirty.discard(path)
        path.unlink(missing_ok=True)
        if path.name == LOG:
            for kept in path.parent.glob(f"{FOREIGN}*.jsonl"):
                kept.unlink()
            with suppress(OSError):  # somebody's files are in it, or it was never there
                path.parent.rmdir()

    def sync(self) -> None:
        """Let everything that was written reach the disk."""
        for path in self._dirty:
            sync_file(path)
            sync_folder(path.parent)
        sync_folder(self._base)
        self._dirty.clear()

    def spans(self, stream: str) -> "Spans":
        """Where the records of a stream stand, up to the first that is not there."""
        return Spans(span for span, _ in self._own(stream))

    def marks(self, stream: str) -> list[Mark]:
        """The marks of the records of a stream, up to the first that is not there."""
        return [line.perdure for _, line in self._own(stream)]

    def _own(self, stream: str) -> Iterator[tuple[Span, EventLine]]:
        due = 1
        for span, text in lines_in(self.path(stream)):
            try:
                line = event_in(text)
            except ValueError:
                continue  # whether it was one of ours, the next of ours will tell
            if line is not None:
                if line.perdure.seq != due:
                    return
                yield span, line
                due += 1

    def read(self, stream: str, spans: "Spans", after: int, end: int) -> list[Record]:
        """Records after one seq up to another. Raises Corrupt, naming the first that is damaged."""
        if end > len(spans):
            raise _corrupt(stream, max(after, len(spans)) + 1, "it is not there")
        records: list[Record] = []
        chosen = [spans[seq] for seq in range(after + 1, end + 1)]
        for seq, text in enumerate(read_spans(self.path(stream), chosen), after + 1):
            try:
                records.append(record_of(_event(text), stream))
            except ValueError as error:
                raise _corrupt(stream, seq, str(error)) from error
        return records

    def head(self, stream: str) -> int:
        """The highest seq that its log has."""
        return max((line.perdure.seq for line in _own_lines(self.path(stream))), default=0)

    def _set_aside(self, path: Path) -> None:
        """Keep what somebody else wrote under this name: the log of a stream begins with it."""
        if not any(foreign_in(text) is not None for _, text in lines_in(path)):
            return
        number, kept = 1, path.with_name(f"{FOREIGN}.jsonl")
        while kept.exists():
            number += 1
            kept = path.with_name(f"{FOREIGN}-{number}.jsonl")
        path.rename(kept)
        logger.warning("%s was written by another program; it is kept as %s", path, kept.name)


class Spans:
    """Where the lines of one stream stand, by seq, in little memory."""

    def __init__(self, spans: Iterable[Span] = (), *, before: int = 0) -> None:
        self.before = before  # how many there are that it does not have
        self.numbers = array("Q")
        for span in spans:
            self.numbers.extend(span)

    def __len__(self) -> int:
        return self.before + len(self.numbers) // 2

    def __getitem__(self, seq: int) -> Span:
        at = 2 * (seq - self.before) - 2
        return Span(self.numbers[at], self.numbers[at + 1])

    def extend(self, more: "Spans") -> None:
        """Those that follow."""
        self.numbers.extend(more.numbers)


def replayed(lines: Iterable[JournalLine]) -> tuple[Tables, int, dict[str, int]]:
    """Where the journal has come to: rows, the highest position, and the holders' processes."""
    tables, pos, processes = Tables(), 0, dict[str, int]()
    for line in lines:
        pos = max(pos, line.pos)
        for stream, row in line.streams.items():
            tables.set_stream(stream, row)
        for stream in line.erased:
            for entry in tables.entries_of(stream):
                tables.drop_entry(entry.kind, entry.key)
        for one in line.entries:
            _take_entry(tables, one, "")
        for holder, known in line.holders.items():
            until, processes[holder] = known or (None, 0)
            tables.move(Moves({}, {holder: until}))
    return tables, pos, processes


def rebuilt(base: Path) -> tuple[Tables, int]:
    """Streams and entries as the logs alone tell them, and the highest position.

    Nobody holds a stream then, and each is due: whoever drives it finds out what it needs.
    """
    tables = Tables()
    return tables, max((_rebuild(tables, path) for path in all_logs(base)), default=0)


def _rebuild(tables: Tables, path: Path) -> int:
    """Take in one log, up to the first record that is not there; the highest position in it."""
    stream, row, top = "", StreamRow(""), 0
    for line in _own_lines(path):
        mark = line.perdure
        if mark.seq == 1:
            stream, row = mark.stream, StreamRow(mark.kind, due=line.timestamp)
        if not stream or mark.seq != row.head + 1:
            break
        row = row._replace(head=mark.seq, epoch=max(row.epoch, mark.epoch + 1))
        top = max(top, mark.pos)
        for entry in mark.entries:
            _take_entry(tables, entry, stream)
    if stream:
        tables.set_stream(stream, row)
    return top


def _own_lines(path: Path) -> Iterator[EventLine]:
    for _, text in lines_in(path):
        try:
            line = event_in(text)
        except ValueError:
            continue
        if line is not None:
            yield line


def _take_entry(tables: Tables, line: EntryLine, stream: str) -> None:
    try:
        found = entry_in(line, stream)
    except ValueError:
        return
    if found is None:
        tables.drop_entry(line.kind, line.key)
    else:
        tables.set_entry(found)


def _event(text: bytes) -> EventLine:
    line = event_in(text)
    if line is None:
        raise ValueError("somebody else wrote over it")
    return line


def _corrupt(stream: str, seq: int, why: str) -> Corrupt:
    return Corrupt(
        f"record {seq} of {stream} cannot be read: {why}",
        hint="perdure doctor says what can be done",
        details={"stream": stream, "seq": seq},
    )
