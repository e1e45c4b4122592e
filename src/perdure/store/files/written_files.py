"""Table of the files that the mirror has written, in a database that may be lost at any time."""

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from perdure.store.shared.private_files import FILE, create_file, make_folder

_FORMAT: Final = 1
_APPEND: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_SCHEMA: Final = """
    CREATE TABLE IF NOT EXISTS file (
        path TEXT PRIMARY KEY, stream TEXT NOT NULL, version INTEGER NOT NULL,
        size INTEGER NOT NULL, changed_at INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS file_stream ON file (stream);
    CREATE TABLE IF NOT EXISTS note (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
_PUT: Final = "INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?, ?)"


class FileStamp(NamedTuple):
    """Size of a file and the time of its last change, in nanoseconds."""

    size: int
    changed_at: int


class MirroredFile(NamedTuple):
    """File as the mirror left it; the version is that of its entry, or the head of its log."""

    path: str
    stream: str
    version: int
    size: int
    changed_at: int  # 0: it has lines of others, which were not read again

    @property
    def stamp(self) -> FileStamp:
        """The stamp of the file when it was written."""
        return FileStamp(self.size, self.changed_at)


def stamp_of(path: str) -> FileStamp | None:
    """Return the stamp of a file; None if there is none."""
    try:
        return _stamp(os.stat(path))  # noqa: PTH116 - for each file at each open; Path takes twice as long
    except OSError:
        return None


def _stamp(status: os.stat_result) -> FileStamp:
    return FileStamp(status.st_size, status.st_mtime_ns)


def append_if_same(path: str, stamp: FileStamp | None, lines: Sequence[bytes]) -> FileStamp | None:
    """Append lines to a file that has a stamp, or to a new one, and return the stamp then.

    None, and nothing is written, if another program has changed the file, or is writing to it.
    """
    try:
        fd = os.open(path, _APPEND, FILE)
    except FileNotFoundError:
        make_folder(Path(path).parent)
        fd = os.open(path, _APPEND, FILE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _stamp(os.fstat(fd)) != stamp and (stamp is not None or os.fstat(fd).st_size):
            return None
        content = b"\n".join((*lines, b""))
        written = os.write(fd, content)
        return _stamp(os.fstat(fd)) if written == len(content) else None
    except BlockingIOError:
        return None
    finally:
        os.close(fd)


class WrittenFiles:
    """Rows of all files, and the position in the feed up to which everything is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = self._connect()

    def _connect(self) -> sqlite3.Connection:
        try:
            return self._open()
        except sqlite3.DatabaseError:  # then every file is compared with the database
            for name in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    Path(f"{self._path}{name}").unlink()
            return self._open()

    def _open(self) -> sqlite3.Connection:
        create_file(self._path)
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        connection.execute("PRAGMA synchronous = NORMAL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, _FORMAT):
            connection.execute("DROP TABLE IF EXISTS file")
            connection.execute("DROP TABLE IF EXISTS note")
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {_FORMAT}")
        return connection

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    # --- one round: `begin`, then reads and changes, then `commit` or `roll_back` -----------------

    def begin(self) -> None:
        """Begin a transaction."""
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Keep the changes; without a sync, since a row that is behind does no harm."""
        self._connection.execute("COMMIT")

    def roll_back(self) -> None:
        """Forget the changes of the transaction."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def get(self, path: str) -> MirroredFile | None:
        """Return the row of a file."""
        row = self._connection.execute("SELECT * FROM file WHERE path = ?", (path,)).fetchone()
        return None if row is None else MirroredFile(*row)

    def of_stream(self, stream: str) -> list[MirroredFile]:
        """Return the rows of the files of a stream."""
        return self._all("SELECT * FROM file WHERE stream = ?", (stream,))

    def all(self) -> list[MirroredFile]:
        """Return every row."""
        return self._all("SELECT * FROM file", ())

    def _all(self, sql: str, values: Iterable[str]) -> list[MirroredFile]:
        return [MirroredFile(*row) for row in self._connection.execute(sql, tuple(values))]

    def put(self, row: MirroredFile) -> None:
        """Write the row of a file."""
        self._connection.execute(_PUT, row)

    def drop(self, path: str) -> None:
        """Delete the row of a file."""
        self._connection.execute("DELETE FROM file WHERE path = ?", (path,))

    @property
    def cursor(self) -> int | None:
        """The position of the feed up to which everything is written; None if it is not known."""
        value = self._note("cursor")
        return None if value is None else int(value)

    def move_cursor(self, position: int) -> None:
        """Store the position."""
        self._set_note("cursor", str(position))

    def forget_before_boot(self) -> None:
        """Forget all rows if the machine was started since: files may have lost their ends."""
        try:
            boot = _BOOT.read_text("ascii").strip()
        except OSError:
            boot = "unknown"
        if self._note("boot") != boot:
            self._connection.execute("UPDATE file SET changed_at = 0")
            self._set_note("boot", boot)

    def _note(self, name: str) -> str | None:
        row = self._connection.execute("SELECT value FROM note WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def _set_note(self, name: str, value: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO note VALUES (?, ?)", (name, value))
