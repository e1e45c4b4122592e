"""Replay of a journal into the logs of a files store, and rebuild of a lost journal from them."""

import logging
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from perdure.errors import Corrupt
from perdure.store.base import Record
from perdure.store.files.journal import BEFORE_LISTINGS, JournalDamaged
from perdure.store.files.layout import HEADS, LOG, OWN, Layout, all_logs, log_path
from perdure.store.judge import StreamRow
from perdure.store.shared.line_files import (
    Span,
    append_lines,
    read_lines,
    read_spans,
    sync_file,
    sync_folder,
)
from perdure.store.shared.lines import (
    EntryLine,
    EventLine,
    JournalLine,
    Mark,
    decode_entry,
    decode_event,
    decode_foreign,
    decode_journal_line,
    decode_record,
    is_foreign,
)
from perdure.store.shared.tables import LeaseChanges, Tables

logger = logging.getLogger("perdure")

FOREIGN: Final = "events.foreign"


class Logs:
    """Logs of all streams in one folder."""

    def __init__(self, base: Path, layout: Layout) -> None:
        self._base = base
        self._layout = layout
        self._dirty: set[Path] = set()  # written since the last `sync`

    def path(self, stream: str) -> Path:
        """Return the file of a stream."""
        return log_path(self._base, self._layout, stream)

    def append(self, stream: str, first_seq: int, lines: Sequence[bytes]) -> list[Span]:
        """Append the next lines of a stream."""
        path = self.path(stream)
        if first_seq == 1:
            self._set_aside(path)
        self._dirty.add(path)
        return append_lines(path, lines, sync=False)

    def catch_up(self, journal: Iterable[JournalLine]) -> None:
        """Repeat the commits of the journal; lines that the logs already have stay as they are."""
        lines = list(journal)
        erased = {stream for line in lines for stream in line.erased}
        heads: dict[str, int] = {}
        for line in lines:
            for stream in line.erased:
                self.erase(stream)
                heads.clear()  # a later stream may use the same folder
            for stream, raw in line.records:
                if stream not in erased:
                    self._append_missing(stream, bytes(raw), heads)

    def _append_missing(self, stream: str, line: bytes, heads: dict[str, int]) -> None:
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
            for foreign in path.parent.glob(f"{FOREIGN}*.jsonl"):
                foreign.unlink()
            with suppress(OSError):  # it has files of other programs, or never existed
                path.parent.rmdir()

    def sync(self) -> None:
        """Sync all logs that were written since the last sync."""
        for path in self._dirty:
            sync_file(path)
            sync_folder(path.parent)
        sync_folder(self._base)
        self._dirty.clear()

    def spans(self, stream: str) -> "Spans":
        """Return the positions of the records of a stream, up to the first missing one."""
        return Spans(span for span, _ in self._own_events(stream))

    def marks(self, stream: str) -> list[Mark]:
        """Return the marks of the records of a stream, up to the first missing one."""
        return [line.perdure for _, line in self._own_events(stream)]

    def checksum(self, stream: str, seq: int) -> str:
        """Return the checksum of the line of a record; empty if it cannot be read."""
        for _, line in self._own_events(stream):
            if line.perdure.seq == seq:
                return line.perdure.crc
        return ""

    def _own_events(self, stream: str) -> Iterator[tuple[Span, EventLine]]:
        next_seq, before = 1, ""
        for span, text in read_lines(self.path(stream)):
            try:
                line = decode_event(text)
            except ValueError:
                continue  # if it was one of ours, the seq of the next one shows it
            if line is not None:
                mark = line.perdure
                if mark.seq != next_seq or (mark.prev and before and mark.prev != before):
                    return
                yield span, line
                next_seq, before = next_seq + 1, mark.crc

    def read(self, stream: str, spans: "Spans", after: int, end: int) -> list[Record]:
        """Return the records after one seq up to another. Raises Corrupt at the first damaged."""
        if end > len(spans):
            seq = max(after, len(spans)) + 1
            raise _corrupt(stream, seq, "it is missing, damaged or does not follow the one before")
        records: list[Record] = []
        chosen = [spans[seq] for seq in range(after + 1, end + 1)]
        for seq, text in enumerate(read_spans(self.path(stream), chosen), after + 1):
            try:
                records.append(decode_record(_event(text), stream))
            except ValueError as error:
                raise _corrupt(stream, seq, str(error)) from error
        return records

    def head(self, stream: str) -> int:
        """Return the highest seq in the log of a stream."""
        return max((line.perdure.seq for line in _own_lines(self.path(stream))), default=0)

    def _set_aside(self, path: Path) -> None:
        """Rename a file of another program that has the name of a new log."""
        if not any(decode_foreign(text) is not None for _, text in read_lines(path)):
            return
        number, target = 1, path.with_name(f"{FOREIGN}.jsonl")
        while target.exists():
            number += 1
            target = path.with_name(f"{FOREIGN}-{number}.jsonl")
        path.rename(target)
        logger.warning("%s was written by another program; it is kept as %s", path, target.name)


class Spans:
    """Positions of the lines of one stream by seq, in little memory."""

    def __init__(self, spans: Iterable[Span] = (), *, before: int = 0) -> None:
        self.before = before  # number of earlier lines that are not included
        self.numbers = array("Q")
        for span in spans:
            self.numbers.extend(span)

    def __len__(self) -> int:
        return self.before + len(self.numbers) // 2

    def __getitem__(self, seq: int) -> Span:
        at = 2 * (seq - self.before) - 2
        return Span(self.numbers[at], self.numbers[at + 1])

    def extend(self, more: "Spans") -> None:
        """Append the spans of the lines that follow."""
        self.numbers.extend(more.numbers)


def replay_journal(lines: Iterable[JournalLine]) -> tuple[Tables, int, dict[str, int]]:
    """Return the state after a journal: tables, highest position, and process ids of holders."""
    tables, pos, processes, is_old = Tables(), 0, dict[str, int](), False
    for line in lines:
        pos = max(pos, line.pos)
        is_old = is_old or line.format == BEFORE_LISTINGS
        for stream, row in line.streams.items():
            tables.set_stream(stream, row)
        for stream in line.erased:
            for entry in tables.entries_of(stream):
                tables.drop_entry(entry.kind, entry.key)
        for entry_line in line.entries:
            _apply_entry(tables, entry_line, "", is_old=is_old)
        for holder, heartbeat in line.holders.items():
            until, processes[holder] = heartbeat or (None, 0)
            tables.apply_leases(LeaseChanges({}, {holder: until}))
    return tables, pos, processes


def rebuild_tables(base: Path, logs: Logs) -> tuple[Tables, int]:
    """Rebuild streams and entries without the journal, and return the highest position too.

    No stream has a holder then, and each is due: its next driver finds out what to do. A stream is
    never shorter than it was: a record that was lost stays part of it, and reading it raises
    Corrupt.
    """
    tables, rows = Tables(), last_rows(base)
    names = {logs.path(stream): stream for stream in rows}
    tops = [_rebuild(tables, path, names.get(path, "")) for path in all_logs(base)]
    for stream, row in rows.items():
        present = tables.streams.get(stream, row._replace(holder=None))  # its whole log may be lost
        head = max(present.head, row.head)
        tables.set_stream(stream, present._replace(kind=row.kind, head=head, gone=row.gone))
    return tables, max(tops, default=0)


def check_heads(rows: Mapping[str, StreamRow], lines: Sequence[JournalLine]) -> None:
    """Raise JournalDamaged if a journal with lines has lost the last of them.

    `rows` are kept beside the journal and written after it, so they are never ahead of it.
    """
    streams = replay_journal(lines)[0].streams
    for stream, row in rows.items() if lines else ():
        if stream not in streams or row.head > streams[stream].head:
            raise JournalDamaged(f"its end: {stream} had later records")


def last_rows(base: Path) -> dict[str, StreamRow]:
    """Return the rows of streams that are kept beside the journal."""
    lines = []
    for _, text in read_lines(base / OWN / HEADS):
        with suppress(ValueError):
            lines.append(decode_journal_line(text))
    return dict(replay_journal(lines)[0].streams)


def _rebuild(tables: Tables, path: Path, stream: str) -> int:
    """Add the stream of one log with its entries, and return the highest position.

    The first line of a log names the stream; `stream` is its name if that line is lost.
    """
    row, top, damaged, size = StreamRow(""), 0, 0, path.stat().st_size
    for span, text in read_lines(path):
        line = _readable_event(text)
        if line is None:
            is_torn = sum(span) == size
            damaged += not is_torn and not is_foreign(text)
            continue
        mark, damaged = line.perdure, 0  # a damaged line before this one is a missing seq
        if mark.stream:
            stream, row = mark.stream, StreamRow(mark.kind, due=line.timestamp)
        row = row._replace(head=max(row.head, mark.seq), epoch=max(row.epoch, mark.epoch + 1))
        top = max(top, mark.pos)
        for entry in mark.entries:
            _apply_entry(tables, entry, stream, is_old=True)
    if stream:
        due = row.due if row.due is not None else 0
        tables.set_stream(stream, row._replace(head=row.head + damaged, due=due))
    return top


def _readable_event(text: bytes) -> EventLine | None:
    try:
        return decode_event(text)
    except ValueError:
        return None


def _own_lines(path: Path) -> Iterator[EventLine]:
    for _, text in read_lines(path):
        line = _readable_event(text)
        if line is not None:
            yield line


def _apply_entry(tables: Tables, line: EntryLine, stream: str, *, is_old: bool) -> None:
    try:
        entry = decode_entry(line, stream, is_old=is_old)
    except ValueError:
        return
    if entry is None:
        tables.drop_entry(line.kind, line.key)
    else:
        tables.set_entry(entry)


def _event(text: bytes) -> EventLine:
    line = decode_event(text)
    if line is None:
        raise ValueError("another program has overwritten it")
    return line


def _corrupt(stream: str, seq: int, reason: str) -> Corrupt:
    return Corrupt(
        f"record {seq} of {stream} cannot be read: {reason}",
        hint="run perdure doctor to see what can be repaired",
        details={"stream": stream, "seq": seq},
    )
