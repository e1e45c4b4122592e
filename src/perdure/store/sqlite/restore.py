"""Restoring of damaged rows in a SQLite file beside other processes: of streams and entries."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from perdure.store.base import Unavailable
from perdure.store.inspect import RestoredStream, row_line
from perdure.store.shared.file_lock import WriteLock
from perdure.store.shared.line_files import append_lines
from perdure.store.sqlite.checksums import any_text, load_row, stream_checksum
from perdure.store.sqlite.open import (
    BUSY_S,
    apply_settings,
    explain_error,
    is_database_error,
    python_connect,
)

_RESTORE: Final = """
    INSERT INTO stream (sid, id, kind, head, epoch, holder, due, tries, gone, crc)
    VALUES (?, ?, ?, ?, ?, NULL, ?, 0, 0, ?)
    ON CONFLICT (sid) DO UPDATE
    SET id = excluded.id, kind = excluded.kind, head = excluded.head, epoch = excluded.epoch,
        holder = NULL, due = excluded.due, tries = 0, gone = 0, crc = excluded.crc
"""

_TABLES: Final = ("stream", "record", "entry")  # with the number of a stream
_REMOVE_ENTRY: Final = "DELETE FROM entry WHERE kind = ? AND key = ? AND sid <> ?"


def restore_stream(path: Path, row: RestoredStream) -> None:
    """Write the row of a stream again, unless it is sound by now. Raises StoreError."""
    with _writing(path) as connection:
        present = load_row(connection, row.number)
        if present is None or not present.is_usable:
            crc = stream_checksum(row.number, row.stream, row.kind, gone=False)
            values = (row.number, row.stream, row.kind, row.head, row.epoch, row.due, crc)
            connection.execute(_RESTORE, values)


def remove_entries(path: Path, keys: Sequence[tuple[str, str]], number: int) -> None:
    """Delete the entries with these kinds and keys that are not of a stream. Raises StoreError."""
    with _writing(path) as connection:
        connection.executemany(_REMOVE_ENTRY, [(kind, key, number) for kind, key in keys])


def move_rows(path: Path, number: int, target: Path) -> None:
    """Move the rows of a stream to a file, unless its own row is sound. Raises StoreError."""
    with _writing(path) as connection:
        present = load_row(connection, number)
        if present is not None and present.is_usable:
            return
        lines: list[bytes] = []
        for table in _TABLES:
            rows = connection.execute(f"SELECT * FROM {table} WHERE sid = ?", (number,))  # noqa: S608 - ours
            columns = [column for column, *_ in rows.description]
            lines += [row_line(table, dict(zip(columns, row, strict=True))) for row in rows]
        append_lines(target, lines, sync=True)
        for table in _TABLES:
            connection.execute(f"DELETE FROM {table} WHERE sid = ?", (number,))  # noqa: S608 - ours


@contextmanager
def _writing(path: Path) -> Iterator[sqlite3.Connection]:
    """Begin a transaction, and commit it at the end."""
    with _locked(path), closing(python_connect(str(path))) as connection:
        try:
            apply_settings(connection).text_factory = any_text
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        except Exception as error:
            if is_database_error(error):
                raise explain_error(error, path) from error
            raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Take the lock of the processes that write the file; also a close of it may write."""
    lock = WriteLock(f"{path}.lock")
    lock.open()
    try:
        if not lock.acquire_within(BUSY_S):
            raise Unavailable(
                f"process {lock.holder()} keeps {path} locked", hint="end it, or try again later"
            )
        yield
        lock.release()
    finally:
        lock.close()
