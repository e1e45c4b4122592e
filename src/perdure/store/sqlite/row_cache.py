"""Cache of the rows of a SQLite file in its writer, with the changes that are not written yet.

A batch is judged in memory. A row is loaded once and stays cached until another process writes the
file. The changes of a batch are written at its end, each row once and each table in a few
statements.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from perdure.store.base import Entry, Lease, Write
from perdure.store.judge import (
    Changes,
    Commit,
    Rows,
    StreamRow,
    is_claimable,
    row_after_claim,
    row_after_undone_claim,
)
from perdure.store.sqlite.checksums import (
    HEAD,
    StoredStream,
    checked_entry,
    entry_checksum,
    record_checksum,
    stream_checksum,
)
from perdure.store.sqlite.packed_data import pack, pack_repeating

_STREAM = f"""
    SELECT sid, id, kind, {HEAD}, epoch, holder, due, tries, gone, crc
    FROM stream WHERE id
"""  # noqa: S608 - no value in it
_ENTRY = """
    SELECT kind, key, (SELECT id FROM stream WHERE stream.sid = entry.sid),
           version, state, due, CAST(data AS BLOB), listing, at, sid, crc
    FROM entry WHERE kind = ? AND key
"""
_LOAD_STREAM, _LOAD_ENTRY = f"{_STREAM} = ?", f"{_ENTRY} = ?"
# A commit with many rows: one statement for some of them takes a quarter of the time.
_CHUNK = 100
_FEW = 8
_MANY = f"IN ({', '.join('?' * _CHUNK)})"
_LOAD_STREAMS, _LOAD_ENTRIES = f"{_STREAM} {_MANY}", f"{_ENTRY} {_MANY}"
_ADD_STREAM = """
    INSERT INTO stream (head, epoch, holder, due, tries, gone, sid, id, kind, crc)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_SET_STREAM = """
    UPDATE stream SET head = ?, epoch = ?, holder = ?, due = ?, tries = ?, gone = ? WHERE sid = ?
"""
_SET_HEAD = "UPDATE stream SET head = ? WHERE sid = ?"  # changes no column of an index
# What the checksum covers: of an erased stream, and of one that has none yet.
_SET_IDENTITY = "UPDATE stream SET kind = ?, crc = ? WHERE sid = ?"
# The rows of a stream whose own row is lost keep its number.
_LAST_SIDS = """
    SELECT (SELECT max(sid) FROM stream), (SELECT max(sid) FROM record),
           (SELECT max(sid) FROM entry INDEXED BY entry_stream)
"""
_ADD_RECORD = "INSERT INTO record (sid, seq, type, at, data, crc) VALUES (?, ?, ?, ?, ?, ?)"
# Many rows per statement: AUTOINCREMENT updates its own table once per statement, and after each
# one this thread waits for the other threads of Python. At most 999 values, as older SQLites take.
_TOGETHER = (160, 16)
_ADD_RECORDS = [(size, _ADD_RECORD + ", (?, ?, ?, ?, ?, ?)" * (size - 1)) for size in _TOGETHER]
_ADD_ENTRY = """
    INSERT INTO entry (version, state, due, data, sid, listing, at, crc, kind, key)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_SET_ENTRY = """
    UPDATE entry
    SET version = ?, state = ?, due = ?, data = ?, sid = ?, listing = ?, at = ?, crc = ?
    WHERE kind = ? AND key = ?
"""
# Changes no column of an index.
_SET_DATA = "UPDATE entry SET version = ?, data = ?, crc = ? WHERE kind = ? AND key = ?"
# Changes columns of one index.
_SET_DUE = "UPDATE entry SET version = ?, due = ?, data = ?, crc = ? WHERE kind = ? AND key = ?"
_DROP_ENTRY = "DELETE FROM entry WHERE kind = ? AND key = ?"

_MOST_ROWS = 10_000
_MOST_BYTES = 16 * 1024 * 1024

_Key = tuple[str, str]
_NewRecord = tuple[int, int, str, int, bytes]  # sid, seq, type, at, data


class RowCache:
    """Cached rows of one database; every call is inside a transaction of its only writer."""

    def __init__(self, connection: sqlite3.Connection, foreign_writes: int) -> None:
        self._execute = connection.execute
        self._executemany = connection.executemany
        self._version: int | None = None  # of the file, when the rows were loaded
        self._last_version: int | None = None  # of the file, in the last transaction
        self.foreign_writes = foreign_writes  # rises with each noticed write of another connection
        self.streams: dict[str, StreamRow | None] = {}
        self.entries: dict[_Key, Entry | None] = {}
        self._rows = Rows(self.streams, self.entries, foreign_writes)
        self._sids: dict[str, int] = {}
        self.damaged: set[str] = set()  # streams whose rows are damaged: they can only be erased
        self._without_checksum: set[str] = set()
        self._last_sid: int | None = None
        self._bytes = 0  # of the entries' data
        self._new_records: list[_NewRecord] = []
        # Rows that have changed, as the database still has them.
        self._old_streams: dict[str, StreamRow | None] = {}
        self._old_entries: dict[_Key, Entry | None] = {}
        self._is_loaded = False  # all rows that the commits of the transaction name

    def begin(self) -> None:
        """Forget rows that may have changed; the first call in every transaction."""
        self._is_loaded = False
        # The number changes when another connection, of any process, has committed.
        (version,) = self._execute("PRAGMA data_version").fetchone()
        if version != self._last_version:
            if self._last_version is not None:
                self.foreign_writes += 1
                self._rows = self._rows._replace(foreign_writes=self.foreign_writes)
            self._last_version = version
        rows = len(self.streams) + len(self.entries)
        if version != self._version or rows > _MOST_ROWS or self._bytes > _MOST_BYTES:
            self.forget()
            self._version = version

    def forget(self) -> None:
        """Forget all rows and all changes that were not written."""
        for rows in (self.streams, self.entries, self._sids, self._new_records):
            rows.clear()
        self.damaged.clear()
        self._without_checksum.clear()
        self._old_streams.clear()
        self._old_entries.clear()
        self._last_sid, self._version, self._bytes = None, None, 0
        self._is_loaded = False

    def forget_stream(self, stream: str) -> None:
        """Forget a row that a statement has changed; the cache has no unwritten change of it."""
        self.streams.pop(stream, None)
        self.damaged.discard(stream)
        self._is_loaded = False

    def append(self, write: Write, now: int) -> int | None:
        """Append a driver's next records without a judge; None if the write has other effects."""
        row, lease = self.streams.get(write.stream), write.fence
        if row is None or lease is None or not write.records:
            return None
        kind, head, epoch, holder, due, tries, gone = row
        # A gone stream has no holder. The first commit under a lease resets `tries`.
        if epoch != lease.epoch or holder != lease.holder or head != write.head or tries:
            return None
        # A held stream needs no wake-up, and a write that erases has no records.
        if write.release is not None or write.create is not None:
            return None
        sid = self._sids[write.stream]
        for record in write.records:
            head += 1
            self._new_records.append((sid, head, record.type, record.at or now, record.data))
        self._old_streams.setdefault(write.stream, row)
        self.streams[write.stream] = StreamRow(kind, head, epoch, holder, due, tries, gone)
        return head

    def claim(self, stream: str, kind: str, holder: str, now: int, below: int) -> Lease | None:
        """Lease a stream if it is of this kind, due, free and tried less often; else None."""
        if stream not in self.streams:
            self._load_stream(stream)
        row = self.streams[stream]
        if row is None or row.kind != kind or not is_claimable(row, now):
            return None
        if stream in self.damaged or row.tries >= below:
            return None
        new = row_after_claim(row, holder)
        self._old_streams.setdefault(stream, row)
        self.streams[stream] = new
        return Lease(stream, new.epoch, holder, new.head, new.tries, now)

    def undo_claim(self, lease: Lease, now: int) -> None:
        """Free the stream of a lease that its holder may not know of, if it is in effect."""
        if lease.stream not in self.streams:
            self._load_stream(lease.stream)
        row = self.streams[lease.stream]
        freed = None if row is None else row_after_undone_claim(row, lease, now)
        if freed is not None:
            self._old_streams.setdefault(lease.stream, row)
            self.streams[lease.stream] = freed

    def rows_of(self, commit: Commit) -> Rows:
        """Return the cached rows; those that the commit names are among them."""
        if not self._is_loaded:
            self.load((commit,))
            self._is_loaded = False  # others may still miss theirs
        return self._rows

    def load(self, commits: Sequence[Commit]) -> None:
        """Load the rows that the commits of a transaction name."""
        streams = {
            write.stream: None
            for commit in commits
            for write in commit.writes
            if write.stream not in self.streams
        }
        if len(streams) > _FEW:
            self._load_streams([*streams])
        else:
            for stream in streams:
                self._load_stream(stream)
        entries = {
            (item.kind, item.key): None
            for commit in commits
            for items in (commit.puts, commit.checks)
            for item in items
            if (item.kind, item.key) not in self.entries
        }
        if len(entries) > _FEW:
            self._load_entries([*entries])
        else:
            for kind, key in entries:
                self._load_entry(kind, key)
        self._is_loaded = True

    def apply(self, changes: Changes) -> None:
        """Apply the changes of a commit to the cache; `flush` writes them."""
        for stream, row in changes.streams.items():
            before = self.streams[stream]
            if before is None:
                self._sids[stream] = self._new_sid()
            if before is None or before[1:] != row[1:]:
                self._old_streams.setdefault(stream, before)
            self.streams[stream] = row
        for stream, seq, at, record in changes.records:
            self._new_records.append((self._sids[stream], seq, record.type, at, record.data))
        for stream in changes.erased:
            self._erase(stream)
        for key, entry in changes.entries.items():
            self._old_entries.setdefault(key, self.entries[key])
            self._cache_entry(key, entry)

    def flush(self) -> None:
        """Write the changes since the last flush."""
        if self._old_streams:
            self._flush_streams()
        if self._new_records:
            self._flush_records()
        if self._old_entries:
            self._flush_entries()

    def _load_stream(self, stream: str) -> None:
        self.streams[stream] = None
        self._cache_streams(self._execute(_LOAD_STREAM, (stream,)).fetchall())

    def _load_streams(self, streams: Sequence[str]) -> None:
        """Load many streams in a few statements."""
        self.streams.update(dict.fromkeys(streams))
        for names in _chunks(streams):
            self._cache_streams(self._execute(_LOAD_STREAMS, names).fetchall())

    def _cache_streams(self, rows: Iterable[tuple[Any, ...]]) -> None:
        for values in rows:
            row = StoredStream(*values)
            sid, stream, kind, head, epoch, holder, due, tries, gone, crc = row
            self._sids[stream] = sid
            if not row.is_sound:
                self.damaged.add(stream)
                self.streams[stream] = _erasable(row)
                continue
            if crc is None:
                self._without_checksum.add(stream)
            self.streams[stream] = StreamRow(kind, head or 0, epoch, holder, due, tries, bool(gone))

    def _load_entry(self, kind: str, key: str) -> None:
        self.entries[kind, key] = None
        self._cache_entries(self._execute(_LOAD_ENTRY, (kind, key)).fetchall())

    def _load_entries(self, missing: Sequence[_Key]) -> None:
        """Load many entries in a few statements."""
        self.entries.update(dict.fromkeys(missing))
        for kind in {kind for kind, _ in missing}:
            for keys in _chunks([key for other, key in missing if other == kind]):
                self._cache_entries(self._execute(_LOAD_ENTRIES, (kind, *keys)).fetchall())

    def _cache_entries(self, rows: Iterable[tuple[Any, ...]]) -> None:
        for *columns, sid, crc in rows:
            entry = checked_entry(Entry(*columns), sid, crc)
            self._cache_entry((entry.kind, entry.key), entry)

    def _cache_entry(self, key: _Key, entry: Entry | None) -> None:
        self.entries[key] = entry
        if entry is not None:
            self._bytes += len(entry.data)

    def _new_sid(self) -> int:
        if self._last_sid is None:  # streams are never removed, so the highest is the last
            sids = self._execute(_LAST_SIDS).fetchone()
            self._last_sid = max((sid for sid in sids if isinstance(sid, int)), default=0)
        self._last_sid += 1
        return self._last_sid

    def _erase(self, stream: str) -> None:
        self.flush()
        self.damaged.discard(stream)
        self._execute("DELETE FROM entry WHERE sid = ?", (self._sids[stream],))
        self._execute("DELETE FROM record WHERE sid = ?", (self._sids[stream],))
        for key, entry in self.entries.items():
            if entry is not None and entry.stream == stream:
                self.entries[key] = None

    def _flush_streams(self) -> None:
        changes: dict[str, list[tuple[Any, ...]]] = {
            _ADD_STREAM: [],
            _SET_STREAM: [],
            _SET_HEAD: [],
            _SET_IDENTITY: [],
        }
        for stream, before in self._old_streams.items():
            row, sid = self.streams[stream], self._sids[stream]
            if row is not None and before is None:
                crc = stream_checksum(sid, stream, row.kind, gone=row.gone)
                changes[_ADD_STREAM].append((*_columns(row), sid, stream, row.kind, crc))
            elif row is not None and self._has_only_grown(stream, row, before):
                changes[_SET_HEAD].append((row.head, sid))
            elif row is not None:
                changes[_SET_STREAM].append((*_columns(row), sid))
                if row.gone or stream in self._without_checksum:
                    crc = stream_checksum(sid, stream, row.kind, gone=row.gone)
                    changes[_SET_IDENTITY].append((row.kind, crc, sid))
        self._without_checksum.difference_update(self._old_streams)
        self._old_streams.clear()
        self._run(changes)

    def _has_only_grown(self, stream: str, row: StreamRow, before: StreamRow | None) -> bool:
        is_same = before is not None and row[2:] == before[2:]
        return is_same and stream not in self._without_checksum

    def _flush_records(self) -> None:
        rows = [(*row, record_checksum(*row)) for row in _packed(self._new_records)]
        start = 0
        for size, sql in _ADD_RECORDS:
            while len(rows) - start >= size:
                self._execute(sql, tuple(chain.from_iterable(rows[start : start + size])))
                start += size
        if start < len(rows):
            self._executemany(_ADD_RECORD, rows[start:])
        self._new_records.clear()

    def _flush_entries(self) -> None:
        changes: dict[str, list[tuple[Any, ...]]] = {}
        for key, before in self._old_entries.items():
            sql, values = self._difference(key, before, self.entries[key])
            changes.setdefault(sql, []).append(values)
        self._old_entries.clear()
        self._run(changes)

    def _difference(
        self, key: _Key, before: Entry | None, entry: Entry | None
    ) -> tuple[str, tuple[Any, ...]]:
        if entry is None:
            return _DROP_ENTRY, key
        sid = self._sids[entry.stream]
        columns = (
            entry.version,
            entry.state,
            entry.due,
            entry.data,
            sid,
            entry.listing,
            entry.at,
        )
        crc = entry_checksum(entry, sid)
        if before is None:
            return _ADD_ENTRY, (*columns, crc, *key)
        if _indexed(before) == _indexed(entry):
            if before.due == entry.due:
                return _SET_DATA, (entry.version, entry.data, crc, *key)
            return _SET_DUE, (entry.version, entry.due, entry.data, crc, *key)
        return _SET_ENTRY, (*columns, crc, *key)

    def _run(self, changes: dict[str, list[tuple[Any, ...]]]) -> None:
        for sql, values in changes.items():
            if values:
                self._executemany(sql, values)


def _packed(records: Sequence[_NewRecord]) -> Iterator[_NewRecord]:
    """Yield records as they are stored; none that repeats another is repeated by a third one."""
    whole: tuple[int, int, bytes] = (0, 0, b"")  # the record before, if it can be read by itself
    for sid, seq, type_, at, data in records:
        is_next = whole[:2] == (sid, seq - 1)
        stored = pack_repeating(data, whole[2]) if is_next else None
        whole = (sid, seq, data if stored is None else b"")
        yield sid, seq, type_, at, pack(data) if stored is None else stored


def _erasable(row: StoredStream) -> StreamRow:
    """Return a damaged row as far as it is used to erase the stream, and to name its kind."""
    return StreamRow(
        row.kind if type(row.kind) is str else "",
        row.head if type(row.head) is int else 0,
        row.epoch if type(row.epoch) is int else 0,
        tries=0,
    )


def _columns(row: StreamRow) -> tuple[Any, ...]:
    """Return the columns that change; the records of an erased stream are deleted."""
    return (None if row.gone else row.head, *row[2:])


def _indexed(entry: Entry) -> tuple[str, str, str | None, int | None]:
    """Return the columns that indexes contain, besides kind, key and due."""
    return entry.state, entry.stream, entry.listing, entry.at


def _chunks(names: Sequence[str]) -> Iterator[tuple[str | None, ...]]:
    """Yield names in chunks of one size; the last one is filled up with NULL, which finds none."""
    for start in range(0, len(names), _CHUNK):
        chunk = names[start : start + _CHUNK]
        yield (*chunk, *(None,) * (_CHUNK - len(chunk)))
