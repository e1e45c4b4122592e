"""Folders of versions in which a journal of JSON lines was the truth, not a database.

Each line of the journal has the new state of what one commit, claim or heartbeat changed. A line of
a log repeats the position and the entries of its commit, for the case that the journal is lost.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from perdure.store.base import UNLISTED, Entry, Record
from perdure.store.files.folder import JOURNAL
from perdure.store.files.layout import LOG, OWN
from perdure.store.judge import StreamRow
from perdure.store.shared.line_files import read_lines
from perdure.store.shared.lines import decode_data, verify_checksum

HEADS: Final = f"{OWN}/heads.jsonl"
STREAMS: Final = f"{OWN}/streams"
_BEFORE_LISTINGS: Final = 1  # the format whose entries do not name their listing


class _EntryLine(Struct, frozen=True):
    """State of an entry after its line; version 0: it was deleted."""

    kind: str
    key: str
    version: int
    state: str = ""
    due: int | None = None
    data: Raw = Raw(b"null")
    stream: str = ""
    listing: str | None = None
    at: int | None = None


class _Mark(Struct, frozen=True):
    """The last key of a line of a log; the first line also names its stream and kind."""

    seq: int
    epoch: int = 0
    stream: str = ""
    kind: str = ""
    entries: list[_EntryLine] = []


class _EventLine(Struct, frozen=True):
    type: str
    timestamp: int
    data: Raw
    perdure: _Mark


class _JournalLine(Struct, frozen=True):
    streams: dict[str, StreamRow] = {}
    records: list[tuple[str, Raw]] = []  # stream, and the line for its log
    entries: list[_EntryLine] = []
    erased: list[str] = []
    format: int = 0  # in the first line


_decode_journal_line: Final = msgspec.json.Decoder(_JournalLine).decode
_decode_event_line: Final = msgspec.json.Decoder(_EventLine).decode


class OldStream:
    """One stream with its records and entries."""

    def __init__(self) -> None:
        self.row = StreamRow("")
        self.records: dict[int, Record] = {}
        self.entries: dict[tuple[str, str], Entry] = {}

    @property
    def is_complete(self) -> bool:
        """True if no record is missing or damaged."""
        return bool(self.row.kind) and sorted(self.records) == [*range(1, self.row.head + 1)]

    def add_line(self, line: _EventLine) -> None:
        """Add the record of a line."""
        with suppress(ValueError):
            seq = line.perdure.seq
            self.records[seq] = Record(line.type, decode_data(line.data), line.timestamp, seq)


def read_old_folder(base: Path) -> dict[str, OldStream]:
    """Return the streams of a folder that are not gone, from its journal and its logs.

    If the journal is damaged or lost, every stream is as its log says, and due.
    """
    journal = _journal(base)
    rows = _last_rows(base)
    streams = _from_logs(base, has_journal=bool(journal))
    if journal:
        _apply(journal, streams)
    for name, row in rows.items():  # a log is never shorter than it was
        stream = streams.setdefault(name, OldStream())
        head = max(stream.row.head, row.head)
        stream.row = stream.row._replace(kind=row.kind, head=head, gone=stream.row.gone or row.gone)
    return {name: stream for name, stream in streams.items() if not stream.row.gone}


def _journal(base: Path) -> list[_JournalLine]:
    """Return the lines of the journal; none if one before the last cannot be read."""
    lines: list[_JournalLine] = []
    is_damaged = False
    for _, text in read_lines(base / JOURNAL):
        try:
            line = _checked_journal_line(text)
        except ValueError:
            is_damaged = True
            continue
        if is_damaged:
            return []
        lines.append(line)
    rows = _last_rows(base)  # written after the journal
    last = {stream: row for line in lines for stream, row in line.streams.items()}
    is_short = any(name not in last or row.head > last[name].head for name, row in rows.items())
    return [] if is_short else lines


def _last_rows(base: Path) -> dict[str, StreamRow]:
    rows: dict[str, StreamRow] = {}
    for _, text in read_lines(base / HEADS):
        with suppress(ValueError):
            rows |= _checked_journal_line(text).streams
    return rows


def _checked_journal_line(text: bytes) -> _JournalLine:
    verify_checksum(text, b"}")
    return _decode_journal_line(text)


def _from_logs(base: Path, *, has_journal: bool) -> dict[str, OldStream]:
    streams: dict[str, OldStream] = {}
    for path in _logs(base):
        lines = list(_event_lines(path))
        name = next((line.perdure.stream for line in lines if line.perdure.stream), "")
        if name:
            streams[name] = _rebuilt(name, lines)
    if has_journal:
        for stream in streams.values():
            stream.entries.clear()
    return streams


def _logs(base: Path) -> Iterator[Path]:
    yield from sorted(base.glob(f"*/{LOG}"))
    yield from sorted((base / STREAMS).glob("*.jsonl"))


def _event_lines(path: Path) -> Iterator[_EventLine]:
    for _, text in read_lines(path):
        with suppress(ValueError, msgspec.MsgspecError):
            verify_checksum(text, b"}}")
            yield _decode_event_line(text)


def _rebuilt(name: str, lines: Sequence[_EventLine]) -> OldStream:
    stream = OldStream()
    marks = [line.perdure for line in lines]
    kind = next((mark.kind for mark in marks if mark.kind), "")
    epoch = max(mark.epoch for mark in marks) + 1
    head = max(mark.seq for mark in marks)
    stream.row = StreamRow(kind, head, epoch, None, lines[-1].timestamp)
    for line in lines:
        stream.add_line(line)
        for item in line.perdure.entries:
            _put(stream.entries, replace(item, stream=name), is_old=True)
    return stream


def _apply(journal: Iterable[_JournalLine], streams: dict[str, OldStream]) -> None:
    """Bring streams up to the journal, which has what the logs lack, and all entries."""
    owners: dict[tuple[str, str], str] = {}
    is_old = False
    for line in journal:
        is_old = is_old or line.format == _BEFORE_LISTINGS
        for name in line.erased:
            streams[name] = OldStream()
        for name, row in line.streams.items():
            streams.setdefault(name, OldStream()).row = row
        for name, raw in line.records:
            streams.setdefault(name, OldStream()).add_line(_decode_event_line(raw))
        for item in line.entries:
            owner = item.stream or owners.get((item.kind, item.key), "")
            owners[item.kind, item.key] = owner
            entries = streams.setdefault(owner, OldStream()).entries
            _put(entries, replace(item, stream=owner), is_old=is_old)
    streams.pop("", None)


def _put(entries: dict[tuple[str, str], Entry], item: _EntryLine, *, is_old: bool) -> None:
    name = (item.kind, item.key)
    if item.version == 0:
        entries.pop(name, None)
        return
    listing, at = item.listing, item.at
    if is_old and listing is None:
        listing, at = UNLISTED, 0
    with suppress(ValueError):
        data = decode_data(item.data)
        entries[name] = Entry(
            *name, item.stream, item.version, item.state, item.due, data, listing, at
        )
