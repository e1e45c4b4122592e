"""The SQL of the SQLite store that only reads, and the connections it uses."""

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.errors import Corrupt
from holdfast.store.base import Entry, Feed, Gone, NoStream, Page, Record, Slice
from holdfast.store.cursors import Place, cursor_of, place_of

T = TypeVar("T")

_STREAM = """
    SELECT sid, (SELECT max(seq) FROM record WHERE record.sid = stream.sid), holder, due, gone
    FROM stream WHERE id = ?
"""
_RECORDS = """
    SELECT type, data, at, seq, pos FROM record WHERE sid = ? AND seq > ? ORDER BY seq LIMIT ?
"""
_ENTRY = """
    SELECT kind, key, (SELECT id FROM stream WHERE stream.sid = entry.sid),
           version, state, due, data
    FROM entry
"""
_FEED = """
    SELECT type, data, at, seq, pos, (SELECT id FROM stream WHERE stream.sid = record.sid)
    FROM record WHERE pos > ? ORDER BY pos LIMIT ?
"""
_NO_LIMIT = -1


class Readers:
    """A few connections that only read, each used by one thread at a time."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    def run(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Ask one question, all of it about the same moment."""
        connection = self._idle.pop() if self._idle else self._connect()
        try:
            answer = _at_one_moment(connection, query)
        except connection.Error:
            connection.close()  # whatever state it is in, the next question gets a fresh one
            raise
        except BaseException:
            self._put_back(connection)
            raise
        self._put_back(connection)
        return answer

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it comes back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _put_back(self, connection: sqlite3.Connection) -> None:
        if self._closed:
            connection.close()
        else:
            self._idle.append(connection)


def _at_one_moment(connection: sqlite3.Connection, query: Callable[[sqlite3.Connection], T]) -> T:
    connection.execute("BEGIN")
    try:
        return query(connection)
    finally:
        if connection.in_transaction:  # SQLite ends it by itself after some errors
            connection.execute("ROLLBACK")


def read(connection: sqlite3.Connection, stream: str, after: int, limit: int | None) -> Slice:
    """The records after `after`; raises NoStream, Gone, or Corrupt where some are missing."""
    row = connection.execute(_STREAM, (stream,)).fetchone()
    if row is None:
        raise NoStream(f"there is no stream {stream}", stream=stream)
    sid, head, holder, due, gone = row
    if gone:
        raise Gone(f"the stream {stream} was erased", stream=stream)
    after = max(after, 0)
    most = _NO_LIMIT if limit is None else max(limit, 0)
    found = connection.execute(_RECORDS, (sid, after, most)).fetchall()
    records = tuple(_record((*values, stream)) for values in found)
    for seq, record in enumerate(records, after + 1):
        if record.seq != seq:
            raise Corrupt(
                f"record {seq} of {stream} is missing", hint="restore a backup of the database"
            )
    return Slice(records, head or 0, holder, due)


def get(connection: sqlite3.Connection, kind: str, key: str) -> Entry | None:
    """One entry by its key."""
    sql = f"{_ENTRY} WHERE kind = ? AND key = ?"
    row = connection.execute(sql, (kind, key)).fetchone()
    return None if row is None else _entry(row)


def find(
    connection: sqlite3.Connection, conditions: dict[str, Any], after: str | None, limit: int
) -> Page:
    """A page of the entries that meet the conditions: kind, perhaps state, stream, due_before."""
    wanted = {name: value for name, value in conditions.items() if value is not None}
    by_due = "due_before" in wanted
    where = [_CONDITIONS[name] for name in wanted]
    values = list(wanted.values())
    start = place_of(after)
    if start is not None:
        where.append("(due, key) > (?, ?)" if by_due else "key > ?")
        values += start if by_due else start[1:]
    sql = (
        f"{_ENTRY} {_index(wanted)} WHERE {' AND '.join(where)} "
        f"ORDER BY {'due, key' if by_due else 'key'} LIMIT ?"
    )
    limit = max(limit, 0)
    rows = connection.execute(sql, (*values, limit + 1)).fetchall()
    entries = tuple(_entry(row) for row in rows[:limit])
    more = bool(entries) and len(rows) > limit
    return Page(entries, cursor_of(_place(entries[-1], by_due=by_due)) if more else None)


def tail(connection: sqlite3.Connection, position: int, limit: int) -> Feed:
    """Records of all streams after a position; one writer at a time keeps positions in order."""
    rows = connection.execute(_FEED, (position, max(limit, 0))).fetchall()
    records = tuple(_record(row) for row in rows)
    return Feed(records, str(records[-1].pos if records else position))


def end(connection: sqlite3.Connection) -> Feed:
    """Where the feed ends now."""
    (position,) = connection.execute("SELECT coalesce(max(pos), 0) FROM record").fetchone()
    return Feed((), str(position))


_CONDITIONS = {
    "kind": "kind = ?",
    "state": "state = ?",
    "stream": "sid = (SELECT sid FROM stream WHERE id = ?)",
    "due_before": "due <= ?",
}


def _index(wanted: dict[str, Any]) -> str:
    # Said outright: without statistics SQLite would take entry_state for "open and due", and walk
    # over everything that is open.
    for condition, index in (
        ("stream", "entry_stream"),
        ("due_before", "entry_due"),
        ("state", "entry_state"),
    ):
        if condition in wanted:
            return f"INDEXED BY {index}"
    return ""


def _place(entry: Entry, *, by_due: bool) -> Place:
    return (entry.due or 0, entry.key) if by_due else (0, entry.key)


def _record(row: tuple[Any, ...]) -> Record:
    record = Record(*row)
    if not isinstance(record.data, bytes):
        raise Corrupt(
            f"record {record.seq} of {record.stream} is damaged",
            hint="restore a backup of the database",
        )
    return record


def _entry(row: tuple[Any, ...]) -> Entry:
    entry = Entry(*row)
    if not isinstance(entry.data, bytes):
        raise Corrupt(
            f"{entry.kind} {entry.key} is damaged", hint="restore a backup of the database"
        )
    return entry
