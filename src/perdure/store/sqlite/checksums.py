"""Checksums of the rows of a SQLite file: SQLite itself checks the form of a page, not its content.

Rows of an older schema have no checksum, and are accepted as they are.
"""

import sqlite3
from typing import Any, Final, NamedTuple
from zlib import crc32

from msgspec import structs

from perdure.store.base import Entry
from perdure.store.shared.damage import DAMAGED, MOST_LOST
from perdure.store.shared.paging import LAST_DUE

_FIRST_SCHEMA: Final = 3  # with the column `crc`
_LISTINGS_SCHEMA: Final = 5  # with the columns `listing` and `at`
_STREAMS_SCHEMA: Final = 7  # with the column `crc` of streams
_HEADS_SCHEMA: Final = 8  # with the column `head`

# The head of a stream in a query that names its row. It is above all records that are left, also if
# they are numbered wrongly; above the last one if that is lost.
HEAD: Final = """
    max(coalesce(stream.head, 0),
        coalesce((SELECT max(seq) FROM record WHERE record.sid = stream.sid), 0))
"""


def record_checksum(sid: int, seq: int, type_: str, at: int, data: bytes) -> int:
    """Return the checksum of a record's row."""
    return crc32(data, crc32(f"{sid} {seq} {at} {type_}".encode()))


def entry_checksum(entry: Entry, sid: int) -> int:
    """Return the checksum of an entry's row."""
    columns = f"{entry.version} {entry.due} {sid} {entry.state}\n{entry.kind}\n{entry.key}"
    return crc32(entry.data, crc32(columns.encode()))


def stream_checksum(sid: int, stream: str, kind: str, *, gone: bool) -> int:
    """Return the checksum of what a stream's row says for as long as the stream exists."""
    return crc32(f"{sid} {gone:d} {kind}\n{stream}".encode("utf-8", "surrogateescape"))


class StoredStream(NamedTuple):
    """The row of a stream as it is stored: in a damaged one, values of any type."""

    sid: int
    stream: Any
    kind: Any
    head: Any
    epoch: Any
    holder: Any
    due: Any
    tries: Any
    gone: Any
    crc: int | None

    @property
    def is_sound(self) -> bool:
        """Report whether the row can be used: its types and its checksum are right."""
        sid, stream, kind, head, epoch, holder, due, tries, gone, crc = self
        if type(stream) is not str or type(kind) is not str:
            return False
        if not (type(epoch) is type(tries) is type(gone) is int):
            return False
        if not (head is None or type(head) is int):
            return False
        if not (due is None or type(due) is int) or not (holder is None or type(holder) is str):
            return False
        return crc is None or crc == stream_checksum(sid, stream, kind, gone=bool(gone))

    @property
    def is_named(self) -> bool:
        """Report whether a checksum says that the name and the kind of the stream are right."""
        if type(self.stream) is not str or type(self.kind) is not str or self.crc is None:
            return False
        return self.crc == stream_checksum(self.sid, self.stream, self.kind, gone=False)


class InspectedRow(NamedTuple):
    """The row of a stream, and what it must agree with."""

    row: StoredStream
    last: int  # seq of its last record
    until: int | None  # of its holder; None: the holder has no row

    @property
    def is_usable(self) -> bool:
        """Report whether the row is sound. No worker would end the leases of a lost holder."""
        has_holder = self.row.holder is None or self.until is not None
        return self.row.is_sound and has_holder and (self.row.head or 0) <= self.last + MOST_LOST


_ROW: Final = """
    SELECT sid, id, kind, {head}, epoch, holder, due, tries, gone, {crc},
           (SELECT coalesce(max(seq), 0) FROM record
            WHERE record.sid = stream.sid AND typeof(seq) = 'integer'),
           (SELECT until FROM holder WHERE name = stream.holder AND typeof(until) = 'integer')
    FROM stream WHERE sid = ?
"""


def load_row(connection: sqlite3.Connection, number: int) -> InspectedRow | None:
    """Return the row of a stream, with its head as it is stored; None if it is lost."""
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    crc = "crc" if schema >= _STREAMS_SCHEMA else "NULL"
    sql = _ROW.format(crc=crc, head=head_column(connection))
    values = connection.execute(sql, (number,)).fetchone()
    return None if values is None else InspectedRow(StoredStream(*values[:-2]), *values[-2:])


def any_text(data: bytes) -> str:
    """Return a text of a row, for connections that read damaged rows: it may not be UTF-8."""
    return data.decode("utf-8", "replace")


def checked_entry(entry: Entry, sid: int, crc: int | None) -> Entry:
    """Return the entry if its checksum is right; else without its data.

    The checksum leaves out its place in a list.
    """
    is_placed = isinstance(entry.at, int | None)
    if is_placed and (crc is None or crc == entry_checksum(entry, sid)):
        return entry
    return without_data(entry)


def without_data(entry: Entry) -> Entry:
    """Return a damaged entry so that a list can name it among the others, and a put replace it.

    Where numbers are ordered, SQLite places all else after them.
    """
    at = entry.at if isinstance(entry.at, int | None) else LAST_DUE
    due = entry.due if isinstance(entry.due, int) else None
    return structs.replace(entry, data=DAMAGED, at=at, due=due)


def head_column(connection: sqlite3.Connection) -> str:
    """Return the column of a stream's head; NULL if the schema has none."""
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    return "head" if schema >= _HEADS_SCHEMA else "NULL"


def listing_columns(connection: sqlite3.Connection) -> str:
    """Return the columns of an entry's place in its listing; NULL if the schema has none."""
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    return "listing, at" if schema >= _LISTINGS_SCHEMA else "NULL, NULL"


def checksum_column(connection: sqlite3.Connection) -> str:
    """Return the column of a database's checksums; NULL if its schema has none."""
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    return "crc" if schema >= _FIRST_SCHEMA else "NULL"
