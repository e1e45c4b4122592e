"""Rows of a damaged SQLite file: all that SQLite can still reach, by a table or by an index.

One unreadable page ends an ordinary query. Here a scan continues behind it, and what a table does
not yield is looked for in its indexes.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from perdure.store.base import Entry, Page
from perdure.store.inspect import StoredRecord, StreamInspection, lost_number, lost_stream
from perdure.store.shared.damage import DAMAGED, stated_head
from perdure.store.shared.paging import (
    listing_place,
)
from perdure.store.shared.queries import EntryQuery, ListingQuery
from perdure.store.sqlite.checksums import (
    checked_entry,
    checksum_column,
    head_column,
    listing_columns,
    record_checksum,
)
from perdure.store.sqlite.open import UNREADABLE, open_read_only
from perdure.store.sqlite.packed_data import is_repeating, unpack

_NEARBY: Final = 2_000  # rowids behind a damaged page that are tried one by one
_FARTHEST: Final = 40  # then by powers of two
_UNREADABLE: Final = "its page is damaged"
_ENTRY_STREAM: Final = "SELECT rowid, sid FROM entry INDEXED BY entry_stream ORDER BY sid {order}"
_ENTRY_KEY: Final = """
    SELECT rowid, kind, key FROM entry INDEXED BY sqlite_autoindex_entry_1
    ORDER BY kind {order}, key {order}
"""
_STREAM_ID: Final = """
    SELECT sid, id FROM stream INDEXED BY sqlite_autoindex_stream_1 ORDER BY id {order}
"""
_RECORD_SEQ: Final = """
    SELECT pos, sid, seq FROM record INDEXED BY sqlite_autoindex_record_1
    ORDER BY sid {order}, seq {order}
"""

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _SalvagedStream:
    name: str
    kind: str = ""
    head: int = 0
    epoch: int = 0
    holder: str | None = None
    is_gone: bool = False


@dataclass(slots=True)
class Salvage:
    """Index of the rows that can be reached, and their content on demand."""

    path: Path
    streams: dict[int, _SalvagedStream] = field(default_factory=dict)  # by sid
    places: dict[int, dict[int, int]] = field(default_factory=dict)  # by sid: pos by seq
    entries: list[tuple[int | None, Entry]] = field(default_factory=list)  # with sid

    @classmethod
    def load(cls, path: Path, *, records: bool = True) -> "Salvage":
        """Find all rows that can be reached. Raises Corrupt if the schema cannot be read."""
        salvage = cls(path)
        with _open(path) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            salvage._find_streams(connection)
            salvage._find_entries(connection)
            if records:
                salvage._find_records(connection)
        return salvage

    def find(self, query: EntryQuery) -> Page:
        """Return a page of entries, damaged ones too."""
        places = {
            query.position(entry.key, entry.due): entry
            for _, entry in self.entries
            if entry.kind == query.kind
            and query.has(entry.key, entry.state, entry.stream, entry.due)
        }
        rest = sorted(places)[query.skip :]
        entries = [places[place] for place in rest[: query.limit]]
        return query.page(entries, has_more=len(rest) > query.limit)

    def find_listed(self, query: ListingQuery) -> Page:
        """Return a page of a listing; damaged entries have lost their place and come with all."""
        kind, listing, order, start, limit = query
        places = {
            listing_place(entry, order): entry
            for _, entry in self.entries
            if entry.kind == kind and entry.listing in (None, listing)
        }
        is_down = order == "newest"
        rest = sorted(
            (p for p in places if start is None or (p < start if is_down else p > start)),
            reverse=is_down,
        )
        entries = [places[place] for place in rest[:limit]]
        return query.page(entries, has_more=len(rest) > limit)

    def names(self) -> list[str]:
        """Return the names of the streams that are not gone, also of those whose row is lost."""
        numbers = {*self.places, *(sid for sid, _ in self.entries if isinstance(sid, int))}
        lost = [lost_stream(sid) for sid in sorted(numbers - self.streams.keys())]
        names = [stream.name for _, stream in sorted(self.streams.items()) if not stream.is_gone]
        return names + lost

    def inspection(self, name: str) -> StreamInspection | None:
        """Return a stream with all records that can be read, and the numbers of the others."""
        sid = lost_number(name)
        if sid is None:
            sid = next((sid for sid, stream in self.streams.items() if stream.name == name), None)
        if sid is None:
            return None
        entries = [entry for number, entry in self.entries if number == sid]
        with _open(self.path) as connection:
            return self._inspection(connection, sid, entries)

    def inspections(self) -> Iterator[StreamInspection]:
        """Yield all streams of which anything can be reached and that are not gone."""
        by_sid: dict[int, list[Entry]] = {}
        for number, entry in self.entries:
            if isinstance(number, int):
                by_sid.setdefault(number, []).append(entry)
        with _open(self.path) as connection:
            for sid in sorted({*self.streams, *self.places, *by_sid}):
                inspection = self._inspection(connection, sid, by_sid.get(sid, ()))
                if not inspection.gone:
                    yield inspection

    def _inspection(
        self, connection: sqlite3.Connection, sid: int, entries: Sequence[Entry]
    ) -> StreamInspection:
        stream, places = self.streams.get(sid), self.places.get(sid, {})
        row = stream or _SalvagedStream(lost_stream(sid))
        return StreamInspection(
            row.name,
            row.kind,
            stated_head(row.head, max(places, default=0)),
            row.epoch,
            row.is_gone,
            row.holder,
            None,
            tuple(_read_records(connection, sid, places)),
            entries=tuple(sorted((e.kind, e.key, e.version, e.data) for e in entries)),
            number=sid,
            row="missing" if stream is None else "sound" if row.kind else "damaged",
        )

    # --- finding ------------------------------------------------------------------------------

    def _find_streams(self, connection: sqlite3.Connection) -> None:
        by_index = _both_ways(connection, _STREAM_ID)
        columns = f"id, kind, {head_column(connection)}, epoch, holder, gone"
        for row in _scan(connection, "stream", columns, by_index):
            sid, name, kind, head, epoch, holder, gone = row
            self._add_stream(sid, name)
            if sid in self.streams and _is_text(kind) and isinstance(epoch, int):
                self.streams[sid] = replace(
                    self.streams[sid],
                    kind=_text(kind),
                    head=head if isinstance(head, int) else 0,
                    epoch=epoch,
                    holder=_text(holder) if _is_text(holder) else None,
                    is_gone=bool(gone),
                )
        for sid, name in by_index:
            self._add_stream(sid, name)

    def _add_stream(self, sid: Any, name: Any) -> None:
        if isinstance(sid, int) and _is_text(name):
            self.streams.setdefault(sid, _SalvagedStream(_text(name)))

    def _find_records(self, connection: sqlite3.Connection) -> None:
        by_index = _both_ways(connection, _RECORD_SEQ)
        by_table = _scan(connection, "record", "sid, seq", by_index)
        for pos, sid, seq in chain(by_table, by_index):
            if all(isinstance(number, int) for number in (pos, sid, seq)) and seq > 0:
                self.places.setdefault(sid, {}).setdefault(seq, pos)

    def _find_entries(self, connection: sqlite3.Connection) -> None:
        sids: dict[int, Any] = dict(_both_ways(connection, _ENTRY_STREAM))
        by_index = _both_ways(connection, _ENTRY_KEY)
        rows: dict[int, Row] = {}
        columns = "kind, key, sid, version, state, due"
        for rowid, *values in _scan(connection, "entry", columns, by_index):
            rows[rowid] = tuple(values)
        for rowid, kind, key in by_index:
            rows.setdefault(rowid, (kind, key, sids.get(rowid), 0, b"", None))
        self.entries = [
            self._entry(connection, rowid, row)
            for rowid, row in sorted(rows.items())
            if _is_text(row[0]) and _is_text(row[1])
        ]

    def _entry(
        self, connection: sqlite3.Connection, rowid: int, row: Row
    ) -> tuple[int | None, Entry]:
        kind, key, sid, version, state, due = row
        stream = self.streams.get(sid)
        name = lost_stream(sid) if stream is None else stream.name
        state = _text(state) if _is_text(state) else ""
        entry = Entry(_text(kind), _text(key), name, version, state, due, DAMAGED)
        columns = f"data, {checksum_column(connection)}, {listing_columns(connection)}"
        sql = f"SELECT {columns} FROM entry WHERE rowid = ?"  # noqa: S608 - no value in it
        with suppress(*UNREADABLE, TypeError):
            data, crc, listing, at = connection.execute(sql, (rowid,)).fetchone()
            if isinstance(data, bytes):
                listing = _text(listing) if _is_text(listing) else None
                entry = structs.replace(entry, data=data, listing=listing, at=at)
                entry = checked_entry(entry, sid, crc)
        return sid, entry


@contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection that returns texts as bytes: a damaged text may not be UTF-8."""
    with open_read_only(path) as connection:
        connection.text_factory = bytes
        # Without this setting SQLite reads nothing of a file that is shorter than its header says.
        connection.execute("PRAGMA writable_schema = ON")
        yield connection


def _read_records(
    connection: sqlite3.Connection, sid: int, places: Mapping[int, int]
) -> Iterator[StoredRecord]:
    """Yield the records of a stream by their positions, or why one cannot be read."""
    record: StoredRecord | None = None
    for seq, pos in sorted(places.items()):
        record = _read_record(connection, (sid, seq), pos, record)
        yield record


def _read_record(
    connection: sqlite3.Connection, place: tuple[int, int], pos: int, before: StoredRecord | None
) -> StoredRecord:
    """Return the record of a stream with a seq, or why it cannot be read."""
    crc = checksum_column(connection)
    sql = f"SELECT sid, seq, type, at, data, {crc} FROM record WHERE pos = ?"  # noqa: S608 - no value in it
    with suppress(*UNREADABLE):
        row = connection.execute(sql, (pos,)).fetchone()
        if row is not None and row[:2] == place:
            return stored_record(row, before)
    return StoredRecord(place[1], problem=_UNREADABLE)


def stored_record(row: Row, before: StoredRecord | None) -> StoredRecord:
    """Return the record of a row, with its problem if its content is not what was written.

    `before` is the record before it, which it may repeat.
    """
    sid, seq, type_, at, data, crc = row
    if not isinstance(seq, int):
        return StoredRecord(0, problem="its row is damaged")
    if not isinstance(type_, str | bytes) or not isinstance(data, bytes):
        return StoredRecord(seq, problem="its row is damaged")
    kind = _text(type_) if isinstance(type_, bytes) else type_
    if crc is not None and crc != record_checksum(sid, seq, kind, at, data):
        return StoredRecord(seq, kind, at, data, problem="its checksum is wrong")
    if crc is None:
        return StoredRecord(seq, kind, at, data)
    has_before = before is not None and before.seq == seq - 1 and not before.problem
    if is_repeating(data) and not has_before:
        return StoredRecord(
            seq, kind, at, data, problem=f"it repeats event {seq - 1}, which is lost"
        )
    return StoredRecord(seq, kind, at, unpack(data, before=before.data if before else None))


def _scan(
    connection: sqlite3.Connection, table: str, columns: str, by_index: Sequence[Row]
) -> Iterator[Row]:
    """Yield the rows of a table after their rowids; damaged pages are skipped."""
    bound = max((row[0] for row in by_index if isinstance(row[0], int)), default=None)
    sql = f"SELECT rowid, {columns} FROM {table} NOT INDEXED WHERE rowid > ? ORDER BY rowid"  # noqa: S608
    last: int | None = 0
    rowids: set[int] = set()
    while last is not None:
        try:
            for row in connection.execute(sql, (last,)):
                if row[0] not in rowids:
                    rowids.add(row[0])
                    yield row
                if bound is None or row[0] <= bound or row[0] == last + 1:  # else it is damaged
                    last = row[0]
        except UNREADABLE:
            last = _next_start(connection, table, last, bound)
        else:
            return


def _next_start(
    connection: sqlite3.Connection, table: str, last: int, bound: int | None
) -> int | None:
    """Return the lowest rowid after which a row can be read; None if there is none."""
    sql = f"SELECT rowid FROM {table} NOT INDEXED WHERE rowid > ? ORDER BY rowid LIMIT 1"  # noqa: S608
    for step in (*range(1, _NEARBY), *(2**n for n in range(11, _FARTHEST))):
        if bound is not None and last + step > bound:
            return None
        with suppress(*UNREADABLE):
            row = connection.execute(sql, (last + step,)).fetchone()
            return None if row is None else last + step
    return None


def _both_ways(connection: sqlite3.Connection, sql: str) -> Sequence[Row]:
    """Return the rows of an index from its beginning and from its end, up to a damaged page."""
    rows: dict[Row, None] = {}
    for order in ("ASC", "DESC"):
        try:
            for row in connection.execute(sql.format(order=order)):
                rows[row] = None
        except UNREADABLE:
            continue
        break
    return list(rows)


def _is_text(value: Any) -> bool:
    return isinstance(value, bytes)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
