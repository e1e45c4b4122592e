"""Rows that a batch of commits was judged on, and its changes as columns of the write statement."""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from perdure.errors import Corrupt
from perdure.store.base import Entry, Heads, Lease, StoreRefusal
from perdure.store.judge import Changes, Commit, Rows, StreamRow, judge
from perdure.store.postgres.connection import AsyncpgConnection
from perdure.store.postgres.sql import pack_text, statement, text_array, unpack_text
from perdure.store.shared.damage import DAMAGED, damaged_stream

ColumnEncoder = Callable[[Sequence[Any]], str | bytes]

_Key = tuple[str, str]


class LoadedStream(NamedTuple):
    """A stream as it was read: its key, the version of its row, and its columns."""

    sid: int
    xmin: int  # the transaction that wrote this version of the row
    row: StreamRow


class LoadedRows(NamedTuple):
    """Everything that the commits of a batch name, as one statement has read it."""

    streams: dict[str, LoadedStream]
    entries: list[Entry]
    alive: Collection[str]  # of the claimants
    damaged: set[str]  # streams whose rows are damaged: they can only be erased

    @classmethod
    def from_rows(cls, rows: Iterable[Any]) -> "LoadedRows":
        """Return the rows of the statement `load_rows`."""
        loaded = cls({}, [], set[str](), set())
        alive: set[str] = set()
        for name, sid, xmin, kind, number, epoch, text, due, tries, gone, sound, key, *more in rows:
            if sid is None:
                alive.add(unpack_text(name))
            elif key is None:
                holder = None if text is None else unpack_text(text)
                row = StreamRow(unpack_text(kind), number, epoch, holder, due, tries, gone)
                loaded.streams[unpack_text(name)] = LoadedStream(sid, xmin, row)
                if not sound:
                    loaded.damaged.add(unpack_text(name))
            else:
                loaded.entries.append(entry_from_row((kind, key, name, number, text, due, *more)))
        return loaded._replace(alive=alive)


def entry_from_row(row: Any) -> Entry:
    """Return the entry in a row of kind, key, stream, version, state, due, data, listing, at.

    One whose stream is lost has the data DAMAGED, so that a list can name it among the others.
    """
    kind, key, stream, version, state, due, data, listing, at = row
    if stream is None:
        stream, data = "", DAMAGED
    return Entry(
        unpack_text(kind),
        unpack_text(key),
        unpack_text(stream),
        version,
        unpack_text(state),
        due,
        data,
        None if listing is None else unpack_text(listing),
        at,
    )


class BatchRows:
    """Rows that a batch has loaded, and its changes that are not written yet."""

    def __init__(self, loaded: LoadedRows) -> None:
        self.streams: dict[str, StreamRow | None] = {
            name: stream.row for name, stream in loaded.streams.items()
        }
        self.entries: dict[_Key, Entry | None] = {(e.kind, e.key): e for e in loaded.entries}
        self._rows = Rows(self.streams, self.entries)
        self._alive = loaded.alive
        self._damaged = loaded.damaged
        self._loaded = loaded.streams
        self._sids = {name: stream.sid for name, stream in loaded.streams.items()}
        self._named: set[str] = set()  # streams of the accepted commits
        self._old_streams: dict[str, StreamRow | None] = {}
        self._old_entries: dict[_Key, Entry | None] = {}
        self._records: list[tuple[str, int, str, int, bytes]] = []
        self.leases: list[Lease] = []
        self.erased: list[str] = []

    def apply(self, commit: Commit, now: int) -> Heads | StoreRefusal | Corrupt:
        """Judge a commit on these rows and apply it; returns its new heads or its refusal."""
        if self._damaged:
            for write in commit.writes:
                if write.stream in self._damaged and not write.erase:
                    return damaged_stream(write.stream)
        outcome = judge(commit, self._rows, now, self._alive)
        if isinstance(outcome, StoreRefusal):
            return outcome
        self._change(outcome)
        return outcome.heads()

    @property
    def has_changes(self) -> bool:
        """Return whether anything is to be written."""
        return bool(self._old_streams or self._old_entries or self._records)

    @property
    def needs_lock(self) -> bool:
        """Return whether the batch rests on something that its write does not compare.

        That is an entry that did not exist, and was put and deleted again.
        """
        return any(old is None and self.entries[key] is None
                   for key, old in self._old_entries.items())  # fmt: skip

    def new_streams(self) -> list[str]:
        """Return the streams that are new and need a sid."""
        return [name for name in self._old_streams if name not in self._sids]

    def set_sids(self, streams: Sequence[str], sids: Sequence[int]) -> None:
        """Set the sids of new streams."""
        self._sids.update(zip(streams, sids, strict=True))

    def erased_sids(self) -> list[int]:
        """Return the sids of the streams whose records and entries are deleted."""
        return [self._sids[name] for name in self.erased]

    def columns(self) -> list[str | bytes]:
        """Return the parameters of the statement `write`, table by table and column by column."""
        tables = (
            self._kept_rows(),
            self._new_rows(),
            self._changed_rows(),
            self._record_rows(),
            *self._entry_rows(),
        )
        holders = sorted({pack_text(lease.holder) for lease in self.leases})
        columns: list[str | bytes] = [text_array(holders)]
        for rows, forms in zip(tables, _TABLES, strict=True):
            by_column = list(zip(*rows, strict=True)) or [()] * len(forms)
            columns += [form(column) for form, column in zip(forms, by_column, strict=True)]
        return columns

    def _change(self, changes: Changes) -> None:
        self._named.update(changes.streams)
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
        self.leases += changes.leases.values()

    def _erase(self, stream: str) -> None:
        self.erased.append(stream)
        self._records = [record for record in self._records if record[0] != stream]
        for key, entry in self.entries.items():
            if entry is not None and entry.stream == stream:
                self._old_entries.setdefault(key, entry)
                self.entries[key] = None

    def _kept_rows(self) -> list[tuple[int, int]]:
        """Return the streams that must still have the version that was read."""
        loaded = self._loaded
        return [(loaded[name].sid, loaded[name].xmin) for name in self._named if name in loaded]

    def _new_rows(self) -> list[tuple[Any, ...]]:
        return [
            (self._sids[name], pack_text(name), pack_text(row.kind), *_packed_row(row))
            for name, old in self._old_streams.items()
            if old is None and (row := self.streams[name]) is not None
        ]

    def _changed_rows(self) -> list[tuple[Any, ...]]:
        return [
            (self._sids[name], *_packed_row(row))
            for name, old in self._old_streams.items()
            if old is not None and (row := self.streams[name]) is not None
        ]

    def _record_rows(self) -> list[tuple[Any, ...]]:
        sids = self._sids
        return [(sids[name], seq, pack_text(type_), at, data, data, data)
                for name, seq, type_, at, data in self._records]  # fmt: skip

    def _entry_rows(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """Return the entries to write, and those to delete, with the versions they must have."""
        written: list[tuple[Any, ...]] = []
        deleted: list[tuple[Any, ...]] = []
        for (kind, key), old in self._old_entries.items():
            # Those of an erased stream were deleted with it.
            expect = 0 if old is None or old.stream in self.erased else old.version
            entry = self.entries[kind, key]
            if entry is not None:
                sid, data = self._sids[entry.stream], entry.data
                text = (pack_text(kind), pack_text(key), sid, entry.version, pack_text(entry.state))
                listing = None if entry.listing is None else pack_text(entry.listing)
                place = (entry.due, expect, listing, entry.at)
                written.append((*text, *place, data, data, data))
            elif expect:
                deleted.append((pack_text(kind), pack_text(key), expect))
        return written, deleted


def is_simple(commit: Commit) -> bool:
    """Return whether all that the commit rests on can be compared as it is written."""
    return not commit.checks and not any(write.erase for write in commit.writes)


def locked_names(commits: Sequence[Commit]) -> tuple[list[str], list[str]]:
    """Return the streams that the commits name, and the holders that they claim for."""
    streams = {write.stream for commit in commits for write in commit.writes}
    claimants = {name for commit in commits for name in commit.claimants()}
    return [pack_text(name) for name in streams], [pack_text(name) for name in claimants]


async def load_rows(
    connection: AsyncpgConnection, commits: Sequence[Commit], now: int
) -> BatchRows:
    """Read everything that the commits name, at one moment."""
    streams, claimants = locked_names(commits)
    keys = {(item.kind, item.key) for commit in commits for item in commit.conditions()}
    kinds = [pack_text(kind) for kind, _ in keys]
    values: list[Any] = [streams, kinds, [pack_text(key) for _, key in keys], claimants, now]
    return BatchRows(LoadedRows.from_rows(await connection.fetch(statement("load_rows"), *values)))


def _packed_row(row: StreamRow) -> tuple[Any, ...]:
    holder = None if row.holder is None else pack_text(row.holder)
    return row.head, row.epoch, holder, row.due, row.tries, row.gone


def _numbers(column: Sequence[int | None]) -> str:
    return "{" + ",".join(map(str, column)).replace("None", "NULL") + "}"


def _starts(column: Sequence[bytes]) -> str:
    """Return the offset of each value in the joined data; the server counts from 1."""
    return _numbers(list(accumulate(map(len, column[:-1]), initial=1)) if column else ())


def _sizes(column: Sequence[bytes]) -> str:
    return _numbers(list(map(len, column)))


# Encoders of the columns that are written, table by table: an array as text, and data joined. For a
# list of values the driver would check each element several times.
_DATA: tuple[ColumnEncoder, ...] = (_starts, _sizes, b"".join)
_ROW: tuple[ColumnEncoder, ...] = (_numbers, _numbers, text_array, *[_numbers] * 3)
_TABLES: tuple[tuple[ColumnEncoder, ...], ...] = (
    (_numbers, _numbers),
    (_numbers, text_array, text_array, *_ROW),
    (_numbers, *_ROW),
    (_numbers, _numbers, text_array, _numbers, *_DATA),
    (
        *(text_array, text_array, _numbers, _numbers, text_array, _numbers, _numbers),
        *(text_array, _numbers),
        *_DATA,
    ),
    (text_array, text_array, _numbers),
)
