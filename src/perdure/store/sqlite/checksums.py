"""Checksums of the rows of a SQLite file: SQLite itself checks the form of a page, not its content.

Rows of an older schema have no checksum, and are accepted as they are.
"""

import sqlite3
from typing import Final
from zlib import crc32

from msgspec import structs

from perdure.store.base import Entry

_FIRST_SCHEMA: Final = 3  # with the column `crc`
_LISTINGS_SCHEMA: Final = 5  # with the columns `listing` and `at`
DAMAGED: Final = b"\0damaged"  # instead of the data of a damaged row: no decoder accepts it


def record_checksum(sid: int, seq: int, type_: str, at: int, data: bytes) -> int:
    """Return the checksum of a record's row."""
    return crc32(data, crc32(f"{sid} {seq} {at} {type_}".encode()))


def entry_checksum(entry: Entry, sid: int) -> int:
    """Return the checksum of an entry's row."""
    columns = f"{entry.version} {entry.due} {sid} {entry.state}\n{entry.kind}\n{entry.key}"
    return crc32(entry.data, crc32(columns.encode()))


def checked_entry(entry: Entry, sid: int, crc: int | None) -> Entry:
    """Return the entry if its checksum is right; else without its data.

    Then a list can name it among the others, and a put can replace it.
    """
    if crc is None or crc == entry_checksum(entry, sid):
        return entry
    return structs.replace(entry, data=DAMAGED)


def listing_columns(connection: sqlite3.Connection) -> str:
    """Return the columns of an entry's place in its listing; NULL if the schema has none."""
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    return "listing, at" if schema >= _LISTINGS_SCHEMA else "NULL, NULL"


def checksum_column(connection: sqlite3.Connection) -> str:
    """Return the column of a database's checksums; NULL if its schema has none."""
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    return "crc" if schema >= _FIRST_SCHEMA else "NULL"
