"""The rows that one batch of commits names, and the changes that it makes of them.

A batch is judged in memory, on rows that are locked: each commit sees what the ones before it
changed. What is left at the end is written in one statement.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

from holdfast.store.base import Entry, StoreRefusal
from holdfast.store.judge import Changes, Commit, Rows, StreamRow, judge
from holdfast.store.postgres.sql import packed, texts

Form = Callable[[Sequence[Any]], str | bytes]


def _numbers(column: Sequence[int | None]) -> str:
    return "{" + ",".join(map(str, column)).replace("None", "NULL") + "}"


def _starts(column: Sequence[bytes]) -> str:
    """Where each piece of joined data begins; the server counts from 1 on."""
    return _numbers(list(accumulate(map(len, column[:-1]), initial=1)) if column else ())


def _sizes(column: Sequence[bytes]) -> str:
    return _numbers(list(map(len, column)))


# How the columns of what is written go over, table by table: an array as the text of one, and data
# joined. Of a list the driver asks each element several times whether it is a list itself.
_NEW: tuple[Form, ...] = (_numbers, texts, texts, _numbers, _numbers, texts, *[_numbers] * 3)
_MOVED: tuple[Form, ...] = (_numbers, _numbers, _numbers, texts, *[_numbers] * 3)
_RECORD: tuple[Form, ...] = (_numbers, _numbers, texts, _numbers, _starts, _sizes, b"".join)
_ENTRY: tuple[Form, ...] = (
    *(texts, texts, _numbers, _numbers, texts, _numbers),
    *(_starts, _sizes, b"".join),
)

_Key = tuple[str, str]


class Ledger:
    """What a batch knows, and what it has yet to write."""

    def __init__(self, streams: dict[str, tuple[int, StreamRow]], entries: Iterable[Entry]) -> None:
        self.streams: dict[str, StreamRow | None] = {n: row for n, (_, row) in streams.items()}
        self.entries: dict[_Key, Entry | None] = {(e.kind, e.key): e for e in entries}
        self._rows = Rows(self.streams, self.entries)
        self._sids = {name: sid for name, (sid, _) in streams.items()}
        self._old_streams: dict[str, StreamRow | None] = {}
        self._old_entries: dict[_Key, Entry | None] = {}
        self._records: list[tuple[str, int, str, int, bytes]] = []
        self.erased: list[str] = []

    def perform(self, commit: Commit, now: int) -> dict[str, int] | StoreRefusal:
        """The new heads, or why the commit is refused; then nothing of it is left here."""
        outcome = judge(commit, self._rows, now)
        if isinstance(outcome, StoreRefusal):
            return outcome
        self._apply(outcome)
        return outcome.heads()

    def new_streams(self) -> list[str]:
        """Streams that must be made, and need a number."""
        return [name for name in self._old_streams if name not in self._sids]

    def number(self, streams: Sequence[str], sids: Sequence[int]) -> None:
        """The numbers of new streams."""
        self._sids.update(zip(streams, sids, strict=True))

    def erased_sids(self) -> list[int]:
        """Streams whose records and entries go."""
        return [self._sids[name] for name in self.erased]

    def dropped(self) -> list[_Key]:
        """Entries that go, or come again under another stream."""
        return [
            (packed(kind), packed(key))
            for (kind, key), old in self._old_entries.items()
            if old is not None and _moved_away(old, self.entries[kind, key])
        ]

    def columns(self) -> tuple[list[str | bytes], int]:
        """What is to be written, table by table and column by column, and how many rows."""
        tables = (self._made(), self._moved(), self._appended(), self._put())
        columns: list[str | bytes] = []
        for rows, forms in zip(tables, (_NEW, _MOVED, _RECORD, _ENTRY), strict=True):
            by_column = list(zip(*rows, strict=True)) or [()] * len(forms)
            columns += [form(column) for form, column in zip(forms, by_column, strict=True)]
        return columns, sum(map(len, tables))

    def _apply(self, changes: Changes) -> None:
        for stream, row in changes.streams.items():
            before = self.streams.get(stream)
            if before != row:
                self._old_streams.setdefault(stream, before)
            self.streams[stream] = row
        for stream, seq, at, record in changes.records:
            self._records.append((stream, seq, record.type, at, record.data))
        for stream in changes.erased:
            self._erase(stream)
        for key, entry in changes.entries.items():
            self._old_entries.setdefault(key, self.entries.get(key))
            self.entries[key] = entry

    def _erase(self, stream: str) -> None:
        self.erased.append(stream)
        self._records = [record for record in self._records if record[0] != stream]
        for key, entry in self.entries.items():
            if entry is not None and entry.stream == stream:
                self._old_entries.setdefault(key, entry)
                self.entries[key] = None

    def _made(self) -> list[tuple[Any, ...]]:
        return [
            (self._sids[name], packed(name), packed(row.kind), *_packed_row(row))
            for name, old in self._old_streams.items()
            if old is None and (row := self.streams[name]) is not None
        ]

    def _moved(self) -> list[tuple[Any, ...]]:
        return [
            (self._sids[name], *_packed_row(row))
            for name, old in self._old_streams.items()
            if old is not None and (row := self.streams[name]) is not None
        ]

    def _appended(self) -> list[tuple[Any, ...]]:
        sids = self._sids
        return [(sids[name], seq, packed(type_), at, data, data, data)
                for name, seq, type_, at, data in self._records]  # fmt: skip

    def _put(self) -> list[tuple[Any, ...]]:
        written = (self.entries[key] for key in self._old_entries)
        return [
            (
                packed(entry.kind),
                packed(entry.key),
                self._sids[entry.stream],
                entry.version,
                packed(entry.state),
                entry.due,
                *[entry.data] * 3,
            )
            for entry in written
            if entry is not None
        ]


def _moved_away(old: Entry, entry: Entry | None) -> bool:
    return entry is None or entry.stream != old.stream


def _packed_row(row: StreamRow) -> tuple[Any, ...]:
    holder = None if row.holder is None else packed(row.holder)
    return row.head, row.epoch, holder, row.due, row.tries, row.gone
