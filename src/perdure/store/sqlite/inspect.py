"""Looking into a SQLite file and copying it, beside whoever uses it: nothing here changes it."""

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from perdure.errors import Corrupt, Refused, StoreError
from perdure.store.base import Store
from perdure.store.inspect import (
    Due,
    Seen,
    Sizes,
    StreamLook,
    Table,
    Vitals,
    free_name,
    kept_line,
)
from perdure.store.shared.line_files import append
from perdure.store.shared.names import name_of
from perdure.store.sqlite.open import (
    BUSY_S,
    Place,
    check_file,
    check_ours,
    explained,
    file_system,
    is_database_error,
    judged,
    migrations,
)
from perdure.store.sqlite.store import SqliteStore

T = TypeVar("T")

_MOST = 20  # of each kind of thing that is listed by name
_NEWEST = 1000  # records whose instants are looked at

_COUNTS = "SELECT kind, state, count(*) FROM entry GROUP BY kind, state"
_HOLDERS = """
    SELECT name, until, (SELECT count(*) FROM stream WHERE stream.holder = holder.name)
    FROM holder ORDER BY until
"""
_DUE = """
    SELECT id, kind, due, count(*) OVER () FROM stream
    WHERE holder IS NULL AND due <= ? AND gone = 0 AND kind LIKE 'session:%'
    ORDER BY due LIMIT ?
"""
_DUE_KINDS = """
    SELECT kind, count(*) FROM stream
    WHERE holder IS NULL AND due <= ? AND gone = 0 AND kind LIKE 'session:%' GROUP BY kind
"""
_NEWEST_INSTANT = """
    SELECT max(at) FROM (SELECT at FROM record ORDER BY pos DESC LIMIT ?)
"""
_HOLES = """
    SELECT (SELECT id FROM stream WHERE stream.sid = record.sid), count(*), max(seq)
    FROM record GROUP BY sid HAVING count(*) <> max(seq)
"""
_RECORDS = """
    SELECT (SELECT id FROM stream WHERE stream.sid = record.sid), seq, type, data
    FROM record ORDER BY pos
"""
_STREAMS = "SELECT id FROM stream WHERE gone = 0 ORDER BY sid"
_STREAM = """
    SELECT sid, kind, epoch, gone, holder, (SELECT until FROM holder WHERE name = stream.holder)
    FROM stream WHERE id = ?
"""
_LOG = "SELECT seq, type, at, data FROM record WHERE sid = ? ORDER BY seq"
_OF_STREAM = "SELECT kind, key, version, data FROM entry WHERE sid = ? ORDER BY kind, key"
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
_ENTRIES = "SELECT key, data FROM entry WHERE kind = ? AND (?2 IS NULL OR state = ?2) ORDER BY key"


@dataclass(frozen=True, slots=True)
class Linked:
    """The SQLite that this Python uses."""

    version: str
    number: tuple[int, ...]
    has_json: bool

    @property
    def has_wal_reset_bug(self) -> bool:
        """Whether two checkpoints at the same time could damage a file (sqlite.org/wal.html)."""
        return self.number < (3, 51, 3)


def path_of(store: Store) -> Path | None:
    """The file of a SQLite store; None for another one."""
    return store.path if isinstance(store, SqliteStore) else None


def linked() -> Linked:
    """Which SQLite this is, and what it can do."""
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("SELECT json_extract('{}', '$')")
        except sqlite3.OperationalError:
            has_json = False
        else:
            has_json = True
    return Linked(sqlite3.sqlite_version, sqlite3.sqlite_version_info, has_json)


def place(path: Path) -> tuple[str | None, Place]:
    """The file system under a database, and what that means."""
    kind = file_system(path)
    return kind, judged(kind)


@dataclass(frozen=True, slots=True)
class Examination:
    """Questions to one database file, each about one moment. Raises StoreError, Corrupt."""

    path: Path

    @property
    def where(self) -> str:
        """Where it is."""
        return str(self.path)

    def vitals(self, now: int) -> Vitals:
        """Counts, workers and what is due; SchemaNewer for a file from the future."""
        return self._ask(lambda connection: _vitals(connection, self.path, now))

    def sizes(self) -> Sizes:
        """What the database takes, and what is left beside it."""
        return self._ask(lambda connection: _sizes(connection, self.path))

    def damage(self, *, full: bool = False) -> list[str]:
        """What SQLite finds wrong with the file; `full` also compares every index."""
        pragma = "integrity_check" if full else "quick_check"
        found = self._ask(lambda connection: connection.execute(f"PRAGMA {pragma}").fetchall())
        return [text for (text,) in found if text != "ok"]

    def holes(self) -> list[tuple[str, int]]:
        """Streams with records missing, and how many."""
        found = self._ask(lambda connection: connection.execute(_HOLES).fetchall())
        return [(stream, top - count) for stream, count, top in found]

    def records(self, look: Callable[[str, int, str, Any], None]) -> None:
        """Show every record, as (stream, seq, type, data)."""
        self._ask(lambda connection: _each(connection, look, _RECORDS))

    def entries(self, look: Callable[[str, Any], None], kind: str, state: str | None) -> None:
        """Show the entries of a kind (in one state), as (key, data)."""
        self._ask(lambda connection: _each(connection, look, _ENTRIES, kind, state))

    def streams(self) -> list[str]:
        """Every stream that is not gone."""
        return [name for (name,) in self._ask(lambda one: one.execute(_STREAMS).fetchall())]

    def stream(self, stream: str) -> StreamLook | None:
        """One stream with its records; None if there never was one."""
        return self._ask(lambda connection: _stream(connection, stream))

    def keep_original(self, stream: str) -> Path:
        """Write the records of a stream, as they are, to a file beside the database."""
        found = self.stream(stream)
        stem = f"{self.path.name}.{name_of(stream)}.damaged"
        target = free_name(self.path.parent, stem)
        append(target, [kept_line(seen) for seen in (found.seen if found else ())], sync=True)
        return target

    def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        with _reading(self.path) as connection:
            return question(connection)


def backup(path: Path, target: Path) -> int:
    """Copy a database that may be in use, as it is at this moment; answers the copy's bytes.

    The copy is checked and on the disk before it has its name. Raises Refused if there is one.
    """
    if target.exists():
        raise Refused(
            f"{target} exists", code="FILE_EXISTS", hint="name a new file: it is never overwritten"
        )
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        part.touch()  # says better than SQLite why it cannot be
        with _reading(path) as source, closing(sqlite3.connect(part)) as copy:
            check_ours(source, path, new=False)
            source.backup(copy)
        _check_copy(part)
        shutil.copymode(path, part)
        _sync(part)
        part.rename(target)
        _sync(target.parent)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error
    finally:
        for leftover in (part, Path(f"{part}-journal")):
            leftover.unlink(missing_ok=True)
    return target.stat().st_size


def known_schema() -> int:
    """The newest schema that this perdure knows."""
    return len(migrations())


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that can change nothing, not even by its closing (a checkpoint)."""
    check_file(path)
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)) as one:
            yield one
    except Exception as error:
        if is_database_error(error):
            raise explained(error, path) from error
        raise


def _vitals(connection: sqlite3.Connection, path: Path, now: int) -> Vitals:
    schema = check_ours(connection, path, new=False)
    connection.execute("BEGIN")
    due = connection.execute(_DUE, (now, _MOST)).fetchall()
    return Vitals(
        schema,
        {(kind, state): count for kind, state, count in connection.execute(_COUNTS)},
        tuple(connection.execute(_HOLDERS).fetchall()),
        Due(
            due[0][3] if due else 0,
            tuple((stream, kind, at) for stream, kind, at, _ in due),
            dict(connection.execute(_DUE_KINDS, (now,)).fetchall()),
        ),
        connection.execute(_NEWEST_INSTANT, (_NEWEST,)).fetchone()[0],
    )


def _stream(connection: sqlite3.Connection, stream: str) -> StreamLook | None:
    row = connection.execute(_STREAM, (stream,)).fetchone()
    if row is None:
        return None
    sid, kind, epoch, gone, holder, until = row
    seen = tuple(Seen(*values) for values in connection.execute(_LOG, (sid,)))
    head = seen[-1].seq if seen else 0
    entries = tuple(connection.execute(_OF_STREAM, (sid,)).fetchall())
    return StreamLook(stream, kind, head, epoch, bool(gone), holder, until, seen, entries=entries)


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
    """What each table takes; where SQLite was built without the means to tell, its content."""
    try:
        found = connection.execute(_TABLES).fetchall()
    except sqlite3.OperationalError:  # no such table: dbstat
        found = connection.execute(_CONTENT).fetchall()
    return tuple(
        Table(name, size, index_size, _count(connection, name), 0, None)
        for name, size, index_size in found
    )


def _count(connection: sqlite3.Connection, table: str) -> int:
    (rows,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - ours
    return int(rows)


def _each(
    connection: sqlite3.Connection, look: Callable[..., None], sql: str, *values: Any
) -> None:
    for row in connection.execute(sql, values):
        look(*row)


def _check_copy(part: Path) -> None:
    """Corrupt if the copy is not whole; read as a file nobody changes, so it gets no log."""
    uri = f"{part.absolute().as_uri()}?immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as copy:
            found = copy.execute("PRAGMA integrity_check").fetchone()[0]
    except sqlite3.DatabaseError as error:
        found = str(error)
    if found != "ok":
        raise Corrupt(
            f"the copy would be damaged: {found}",
            hint="the database itself may be: perdure doctor",
        )


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems cannot sync a directory
            os.fsync(fd)
    finally:
        os.close(fd)
