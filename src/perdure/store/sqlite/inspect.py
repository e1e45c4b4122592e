"""Read-only inspection of a SQLite file that other processes may be using."""

import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from perdure.errors import Corrupt
from perdure.store.base import Entry, Store
from perdure.store.inspect import (
    EntryKey,
    RestoredStream,
    Sizes,
    StoredRecord,
    StreamInspection,
    Table,
    Vitals,
    lost_number,
    lost_stream,
    record_line,
    unused_path,
)
from perdure.store.shared.damage import stated_head
from perdure.store.shared.line_files import append_lines
from perdure.store.shared.names import file_name
from perdure.store.sqlite.checksums import (
    InspectedRow,
    any_text,
    checksum_column,
    listing_columns,
    load_row,
)
from perdure.store.sqlite.open import (
    FileSystemRating,
    check_database,
    file_system,
    migrations,
    open_read_only,
    rate_file_system,
)
from perdure.store.sqlite.reads import ANY, entry_from_row
from perdure.store.sqlite.restore import move_rows, remove_entries, restore_stream
from perdure.store.sqlite.salvage import Salvage, stored_record
from perdure.store.sqlite.store import SqliteStore

T = TypeVar("T")

_MOST = 20  # due sessions that are listed by name
_NEWEST = 1000  # records whose times are compared

# Rows with values of other types are damaged: `each_stream` reports them, and here none counts.
_COUNTS = """
    SELECT kind, state, count(*) FROM entry
    WHERE typeof(kind) = 'text' AND typeof(state) = 'text' GROUP BY kind, state
"""
_HOLDERS = """
    SELECT name, until, (SELECT count(*) FROM stream WHERE stream.holder = holder.name)
    FROM holder WHERE typeof(name) = 'text' AND typeof(until) = 'integer' ORDER BY until
"""
_IS_DUE = """
    holder IS NULL AND due <= ? AND gone = 0 AND kind LIKE 'session:%'
    AND typeof(id) = 'text' AND typeof(kind) = 'text'
"""
_DUE = f"""
    SELECT id, kind, due, count(*) OVER () FROM stream WHERE {_IS_DUE} ORDER BY due LIMIT ?
"""  # noqa: S608 - no value in it
_DUE_KINDS = f"SELECT kind, count(*) FROM stream WHERE {_IS_DUE} GROUP BY kind"  # noqa: S608 - no value in it
_NEWEST_INSTANT = """
    SELECT max(at) FROM (SELECT at FROM record ORDER BY pos DESC LIMIT ?)
    WHERE typeof(at) = 'integer'
"""
_NUMBERS = "SELECT sid FROM stream ORDER BY sid"
_LOST_NUMBERS = """
    SELECT sid FROM (
        SELECT DISTINCT sid FROM record WHERE sid NOT IN (SELECT sid FROM stream)
        UNION
        SELECT DISTINCT sid FROM entry INDEXED BY entry_stream
        WHERE sid NOT IN (SELECT sid FROM stream)
    ) WHERE typeof(sid) = 'integer' ORDER BY sid
"""
_STREAMS = "SELECT sid, id, gone FROM stream ORDER BY sid"
_NUMBER = "SELECT sid FROM stream WHERE id = ?"
_LARGE_BYTES: Final = 256 * 2**20  # a file of this size takes about two seconds
_LOG = "SELECT sid, seq, type, at, data, {crc} FROM record WHERE sid = ? ORDER BY seq"
_ENTRY = """
    SELECT kind, key, (SELECT id FROM stream WHERE stream.sid = entry.sid),
           version, state, due, data, {place}, sid, {crc}
    FROM entry
"""
_OF_STREAM = f"""
    {_ENTRY} INDEXED BY entry_stream
    WHERE sid = ? AND typeof(kind) = 'text' AND typeof(key) = 'text' ORDER BY kind, key
"""
_TABLES = """
    SELECT m.tbl_name, sum(CASE WHEN m.type = 'table' THEN s.pgsize ELSE 0 END),
           sum(CASE WHEN m.type = 'index' THEN s.pgsize ELSE 0 END)
    FROM sqlite_master m JOIN dbstat s ON s.name = m.name
    WHERE m.tbl_name IN ('stream', 'record', 'entry', 'holder')
    GROUP BY m.tbl_name ORDER BY m.tbl_name
"""
_CONTENT = """
    SELECT 'entry', coalesce(sum(length(kind) + length(key) + length(state) + length(data)), 0), 0
    FROM entry
    UNION ALL SELECT 'holder', coalesce(sum(length(name)), 0), 0 FROM holder
    UNION ALL SELECT 'record', coalesce(sum(length(type) + length(data)), 0), 0 FROM record
    UNION ALL SELECT 'stream', coalesce(sum(length(id) + length(kind)), 0), 0 FROM stream
"""
_ENTRIES = f"""
    {_ENTRY} WHERE kind = ? AND (?2 IS NULL OR state = ?2) AND typeof(key) = 'text' ORDER BY key
"""

# What a table and the index of its key have in common, without sorting either.
_DIGESTS = {
    "stream": "count(*), total(sid), total(length(id)), min(id), max(id)",
    "record": "count(*), total(pos), total(sid), total(seq), total(sid * seq)",
    "entry": "count(*), total(length(kind)), total(length(key)), min(key), max(key)",
}


@dataclass(frozen=True, slots=True)
class LinkedSqlite:
    """The SQLite that this Python uses."""

    version: str
    number: tuple[int, ...]
    has_json: bool

    @property
    def has_wal_reset_bug(self) -> bool:
        """Two WAL checkpoints at the same time could damage a file (sqlite.org/wal.html)."""
        return self.number < (3, 51, 3)


def sqlite_path(store: Store) -> Path | None:
    """Return the file of a SQLite store; None for another backend."""
    return store.path if isinstance(store, SqliteStore) else None


def linked_sqlite() -> LinkedSqlite:
    """Return the version and features of the SQLite library."""
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("SELECT json_extract('{}', '$')")
        except sqlite3.OperationalError:
            has_json = False
        else:
            has_json = True
    return LinkedSqlite(sqlite3.sqlite_version, sqlite3.sqlite_version_info, has_json)


def rate_path(path: Path) -> tuple[str | None, FileSystemRating]:
    """Return the type of the file system under a path, and its rating."""
    kind = file_system(path)
    return kind, rate_file_system(kind)


@dataclass(frozen=True, slots=True)
class SqliteInspector:
    """Queries of one database file, each about one moment. Raises StoreError, Corrupt."""

    path: Path
    _salvaged: list[Salvage] = field(default_factory=list)  # once the file is known to be damaged

    @property
    def where(self) -> str:
        """The path of the file."""
        return str(self.path)

    def vitals(self, now: int) -> Vitals:
        """Return counts, holders and due sessions. Raises SchemaNewer."""
        values = self._query(lambda connection: _vitals(connection, self.path, now))
        return self._typed(values, Vitals)

    def sizes(self) -> Sizes:
        """Return the size of the database and the free disk space."""
        return self._query(lambda connection: _sizes(connection, self.path))

    def damage(self, *, full: bool = False) -> list[str]:
        """Return what SQLite reports as damaged.

        Every index is compared with its table if the file is not large, or with `full`.
        """
        is_large = self.path.stat().st_size > _LARGE_BYTES
        pragma = "quick_check" if is_large and not full else "integrity_check"
        try:
            texts = self._query(lambda connection: _damage(connection, pragma))
        except Corrupt as error:  # the check itself could not continue
            texts = [error.message]
        if texts:
            self._salvage()
        return texts

    def each_stream(self, visit: Callable[[StreamInspection], None]) -> None:
        """Call `visit` with every stream that is not gone, also with those whose row is lost."""
        if self._salvaged or self._sound(lambda c: _each_stream(c, visit)) is None:
            for inspection in self._salvage().inspections():
                visit(inspection)

    def entries(self, visit: Callable[[Entry], None], kind: str, state: str | None) -> None:
        """Call `visit` with the entries of a kind, in one state or in any."""
        if self._salvaged or self._sound(lambda c: _each_entry(c, visit, kind, state)) is None:
            for _, entry in self._salvage().entries:
                if entry.kind == kind and state in (None, entry.state):
                    visit(entry)

    def streams(self) -> list[str]:
        """Return the names of all streams that are not gone, also of those whose row is lost."""
        if self._salvaged or (rows := self._sound(_stream_names)) is None:
            return self._salvage().names()
        return rows

    def stream(self, stream: str) -> StreamInspection | None:
        """Return one stream with its records, None if it never existed."""
        if self._salvaged:
            return self._salvage().inspection(stream)
        try:
            return self._query(lambda connection: _named_stream(connection, stream))
        except Corrupt:
            return self._salvage().inspection(stream)

    def restore_stream(self, row: RestoredStream) -> None:
        """Write the row of a stream again, unless it is sound by now. Raises StoreError."""
        restore_stream(self.path, row)

    def remove_entries(self, keys: Sequence[tuple[str, str]], number: int) -> None:
        """Delete the entries with these kinds and keys that are not of the stream `number`."""
        remove_entries(self.path, keys, number)

    def move_rows(self, number: int, folder: Path) -> Path:  # noqa: ARG002 - it has its own
        """Move everything that has the number of a stream to a new file beside the database."""
        stem = f"{self.path.name}.{file_name(lost_stream(number))}.damaged"
        target = unused_path(self.path.parent, stem)
        move_rows(self.path, number, target)
        return target

    def save_original(self, stream: str, folder: Path) -> Path:  # noqa: ARG002 - it has its own
        """Write the stored records of a stream to a new file beside the database."""
        inspection = self.stream(stream)
        stem = f"{self.path.name}.{file_name(stream)}.damaged"
        target = unused_path(self.path.parent, stem)
        records = inspection.records if inspection else ()
        append_lines(target, [record_line(record) for record in records], sync=True)
        return target

    def _query(self, question: Callable[[sqlite3.Connection], T]) -> T:
        with open_read_only(self.path) as connection:
            connection.text_factory = any_text
            return question(connection)

    def _sound(self, question: Callable[[sqlite3.Connection], T]) -> T | None:
        """Return the answer of a database that can be read; None if it cannot."""
        try:
            return self._query(question)
        except Corrupt:
            return None

    def _typed(self, values: object, kind: type[T]) -> T:
        """Return values of the database as this type. Raises Corrupt if a row has others."""
        try:
            return msgspec.convert(values, kind)
        except msgspec.ValidationError as error:
            raise Corrupt(
                f"{self.path} is damaged (a row has a value of a wrong type: {error})",
                hint="restore a backup",
            ) from error

    def _salvage(self) -> Salvage:
        """Return what can be read of a damaged database. Raises Corrupt."""
        if not self._salvaged:
            self._salvaged.append(Salvage.load(self.path))
        return self._salvaged[0]


def known_schema() -> int:
    """Return the number of the newest schema that this perdure supports."""
    return len(migrations())


def _vitals(connection: sqlite3.Connection, path: Path, now: int) -> dict[str, Any]:
    schema = check_database(connection, path, new=False)
    connection.execute("BEGIN")
    due = connection.execute(_DUE, (now, _MOST)).fetchall()
    return {
        "schema": schema,
        "counts": {(kind, state): n for kind, state, n in connection.execute(_COUNTS)},
        "holders": connection.execute(_HOLDERS).fetchall(),
        "due": {
            "count": due[0][3] if due else 0,
            "streams": [row[:3] for row in due],
            "kinds": dict(connection.execute(_DUE_KINDS, (now,)).fetchall()),
        },
        "newest": connection.execute(_NEWEST_INSTANT, (_NEWEST,)).fetchone()[0],
    }


def _each_stream(connection: sqlite3.Connection, visit: Callable[[StreamInspection], None]) -> bool:
    connection.execute("BEGIN")  # one moment: other processes may be writing
    for sql in (_NUMBERS, _LOST_NUMBERS):
        for (number,) in connection.execute(sql).fetchall():
            inspection = _stream(connection, number)
            if not inspection.gone:
                visit(inspection)
    return True


def _named_stream(connection: sqlite3.Connection, stream: str) -> StreamInspection | None:
    connection.execute("BEGIN")
    number = lost_number(stream)
    if number is None:
        row = connection.execute(_NUMBER, (stream,)).fetchone()
        if row is None:
            return None
        (number,) = row
    return _stream(connection, number)


def _stream(connection: sqlite3.Connection, number: int) -> StreamInspection:
    """Return the stream with a number; its row may be damaged or missing."""
    row = load_row(connection, number)
    records = _stored_records(connection, number)
    entries = list(map(_entry, _entry_rows(connection, _OF_STREAM, number)))
    inspection = StreamInspection(
        lost_stream(number),
        "",
        max((record.seq for record in records if not record.problem), default=0),
        *(0, False, None, None),
        records,
        entries=tuple((entry.kind, entry.key, entry.version, entry.data) for entry in entries),
        listings=_listings(connection, entries),
        number=number,
        row="missing",
    )
    return inspection if row is None else _with_row(inspection, row)


def _with_row(inspection: StreamInspection, loaded: InspectedRow) -> StreamInspection:
    """Return the inspection with the columns of its row; a damaged row is never gone."""
    row, is_sound = loaded.row, loaded.is_usable
    return replace(
        inspection,
        head=stated_head(row.head, inspection.head),
        stream=row.stream if is_sound or _is_name(row.stream) else inspection.stream,
        kind=row.kind if isinstance(row.kind, str) else "",
        epoch=row.epoch if isinstance(row.epoch, int) else 0,
        gone=is_sound and bool(row.gone),
        holder=row.holder if isinstance(row.holder, str) else None,
        holder_until=loaded.until,
        due=row.due if isinstance(row.due, int) else None,
        row="sound" if is_sound else "damaged",
        is_named=row.is_named,
    )


def _is_name(value: object) -> bool:
    """Return whether a stream can be found by this name; one that was not UTF-8 cannot."""
    return isinstance(value, str) and "\ufffd" not in value


def _stored_records(connection: sqlite3.Connection, number: int) -> tuple[StoredRecord, ...]:
    sql = _LOG.format(crc=checksum_column(connection))
    records: list[StoredRecord] = []
    for values in connection.execute(sql, (number,)).fetchall():
        records.append(stored_record(values, records[-1] if records else None))
    return tuple(records)


def _entry_rows(connection: sqlite3.Connection, sql: str, *args: Any) -> list[Any]:
    columns = {"crc": checksum_column(connection), "place": listing_columns(connection)}
    return connection.execute(sql.format(**columns), args).fetchall()


def _listings(connection: sqlite3.Connection, entries: Sequence[Entry]) -> dict[EntryKey, Any]:
    """Return the listings of entries, if the schema has listings."""
    if listing_columns(connection).startswith("NULL"):
        return {}
    return {(entry.kind, entry.key): entry.listing for entry in entries}


def _entry(row: tuple[Any, ...]) -> Entry:
    """Return an entry; one whose stream's row is lost has the name of its number."""
    kind, key, stream, *values, sid, crc = row
    name = stream if _is_name(stream) else lost_stream(sid)
    return entry_from_row((kind, key, name, *values, sid, crc), ANY)


def _damage(connection: sqlite3.Connection, pragma: str) -> list[str]:
    connection.execute("BEGIN")  # one moment: other processes may be writing
    texts = [str(text) for (text,) in connection.execute(f"PRAGMA {pragma}") if text != "ok"]
    if not texts:  # the quick check compares no index, and rows that are not in it are not found
        for table, digest in _DIGESTS.items():
            rows, keys = (
                connection.execute(f"SELECT {digest} FROM {table} {source}").fetchone()  # noqa: S608 - ours
                for source in ("NOT INDEXED", f"INDEXED BY sqlite_autoindex_{table}_1")
            )
            if rows != keys:
                texts.append(f"table {table} and its index differ ({rows[0]} rows, {keys[0]} keys)")
    return texts


def _stream_names(connection: sqlite3.Connection) -> list[str]:
    names = []
    for number, name, gone in connection.execute(_STREAMS).fetchall():
        if gone != 0:  # erased, or damaged
            row = load_row(connection, number)
            if row is not None and row.is_usable:
                continue
        names.append(name if _is_name(name) else lost_stream(number))
    return names + [lost_stream(number) for (number,) in connection.execute(_LOST_NUMBERS)]


def _sizes(connection: sqlite3.Connection, path: Path) -> Sizes:
    pages, page_size, free = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "page_size", "freelist_count")
    )
    (records,) = connection.execute("SELECT count(*) FROM record").fetchone()
    wal = Path(f"{path}-wal")
    return Sizes(
        path.stat().st_size,
        wal.stat().st_size if wal.exists() else 0,
        pages,
        page_size,
        free,
        records,
        shutil.disk_usage(path.parent).free,
        _tables(connection),
    )


def _tables(connection: sqlite3.Connection) -> tuple[Table, ...]:
    """Return the size of each table; of its content where SQLite has no `dbstat`."""
    try:
        rows = connection.execute(_TABLES).fetchall()
    except sqlite3.OperationalError:  # no such table: dbstat
        rows = connection.execute(_CONTENT).fetchall()
    return tuple(
        Table(name, size, index_size, _count(connection, name), 0, None)
        for name, size, index_size in rows
    )


def _count(connection: sqlite3.Connection, table: str) -> int:
    (rows,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - ours
    return int(rows)


def _each_entry(
    connection: sqlite3.Connection, visit: Callable[[Entry], None], kind: str, state: str | None
) -> bool:
    for row in _entry_rows(connection, _ENTRIES, kind, state):
        visit(_entry(row))
    return True
