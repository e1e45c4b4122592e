"""The SQL of the SQLite store that only reads, and the connections it uses."""

import sqlite3
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

from perdure.errors import Corrupt
from perdure.store.base import Census, Entry, Feed, Gone, NoStream, Page, Record, Slice
from perdure.store.shared.paging import Place, check_whole, cursor_of, place_of

T = TypeVar("T")

# A large blob is left out where only small ones are wanted; its length is known without reading it.
_DATA = "CASE WHEN length(data) <= ? THEN data END"
_STREAM = """
    SELECT sid, (SELECT max(seq) FROM record WHERE record.sid = stream.sid), holder, due, gone
    FROM stream WHERE id = ?
"""
_RECORDS = f"""
    SELECT type, {_DATA}, at, seq, pos FROM record WHERE sid = ? AND seq > ? AND seq <= ?
    ORDER BY seq
"""  # noqa: S608 - no value in it
ENTRY = f"""
    SELECT kind, key, (SELECT id FROM stream WHERE stream.sid = entry.sid),
           version, state, due, {_DATA}
    FROM entry
"""  # noqa: S608 - no value in it
_GET = f"{ENTRY} WHERE kind = ? AND key = ?"
_FEED = f"""
    SELECT type, {_DATA}, at, seq, pos, (SELECT id FROM stream WHERE stream.sid = record.sid)
    FROM record WHERE pos > ? ORDER BY pos LIMIT ?
"""  # noqa: S608 - no value in it
_ONE_MORE = """
    SELECT 1 FROM entry INDEXED BY entry_stream
    WHERE sid = (SELECT sid FROM stream WHERE id = ?) AND kind = ? LIMIT 1 OFFSET ?
"""

# Each is answered by an index alone.
_STATES = """
    SELECT state, count(*) FROM entry INDEXED BY entry_state WHERE kind = ? GROUP BY state
"""
_OVERDUE = "SELECT count(*) FROM entry INDEXED BY entry_due WHERE kind = ? AND due <= ?"
_HELD = "SELECT count(*) FROM stream INDEXED BY stream_holder WHERE holder IS NOT NULL"
_CLAIMABLE = """
    SELECT count(*) FROM stream INDEXED BY stream_due
    WHERE holder IS NULL AND due IS NOT NULL AND due <= ?
"""
_ALIVE = "SELECT name FROM holder WHERE until > ? ORDER BY name"
_EVER = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'record'"


class Bounds(NamedTuple):
    """How much one question may read."""

    rows: int
    bytes: int  # of each row's data


SMALL = Bounds(rows=256, bytes=16 * 1024)  # what the event loop can wait for
ANY = Bounds(rows=2**62, bytes=2**62)

Query = Callable[[sqlite3.Connection, Bounds], T]


class TooLong(Exception):
    """There is more to read than the bounds allow."""


class Readers:
    """A few connections that only read, each used by one thread at a time."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._idle: list[sqlite3.Connection] = []
        self._kept: list[sqlite3.Connection] = []  # for `at_once`: one, which no thread takes

    def run(self, query: Query[T]) -> T:
        """Ask one question, all of it about the same moment; may wait for the disk."""
        connection = _last(self._idle) or self._connect()

        def at_one_moment(connection: sqlite3.Connection, bounds: Bounds) -> T:
            connection.execute("BEGIN")
            try:
                return query(connection, bounds)
            finally:
                if connection.in_transaction:  # SQLite ends it by itself after some errors
                    connection.execute("ROLLBACK")

        return self._ask(connection, at_one_moment, ANY)

    def at_once(self, query: Query[T]) -> T:
        """Ask a question that is answered in no time; raises anything if it is not, TooLong too."""
        connection = _last(self._kept)
        if connection is None:  # nobody has asked yet; who does it in a thread leaves one here
            raise TooLong
        return self._ask(connection, query, SMALL)

    def close(self) -> None:
        """Close them all; nobody may be asking."""
        while connection := _last(self._idle) or _last(self._kept):
            connection.close()

    def _ask(self, connection: sqlite3.Connection, query: Query[T], bounds: Bounds) -> T:
        try:
            answer = query(connection, bounds)
        except connection.Error:
            connection.close()  # whatever state it is in, the next question gets a fresh one
            raise
        except BaseException:
            self._put_back(connection)
            raise
        self._put_back(connection)
        return answer

    def _put_back(self, connection: sqlite3.Connection) -> None:
        (self._idle if self._kept else self._kept).append(connection)


def _last(connections: list[sqlite3.Connection]) -> sqlite3.Connection | None:
    try:
        return connections.pop()
    except IndexError:  # perhaps by another thread's doing
        return None


def read(
    connection: sqlite3.Connection, bounds: Bounds, stream: str, after: int, limit: int | None
) -> Slice:
    """The records after `after`; raises NoStream, Gone, or Corrupt where some are missing.

    What it says is true of the moment of its first statement, unless the stream is erased before
    the second: then it seems corrupt, outside a transaction.
    """
    row = connection.execute(_STREAM, (stream,)).fetchone()
    if row is None:
        raise NoStream(f"there is no stream {stream}", stream=stream)
    sid, head, holder, due, gone = row
    if gone:
        raise Gone(f"the stream {stream} was erased", stream=stream)
    head, after = head or 0, max(after, 0)
    last = head if limit is None else min(head, after + max(limit, 0))
    if last - after > bounds.rows:
        raise TooLong
    records: tuple[Record, ...] = ()
    if last > after:
        found = connection.execute(_RECORDS, (bounds.bytes, sid, after, last)).fetchall()
        records = tuple(_record((*values, stream), bounds) for values in found)
        check_whole(records, stream, after, last)
    return Slice(records, head, holder, due)


def get(connection: sqlite3.Connection, bounds: Bounds, kind: str, key: str) -> Entry | None:
    """One entry by its key."""
    row = connection.execute(_GET, (bounds.bytes, kind, key)).fetchone()
    return None if row is None else entry_of(row, bounds)


def find(
    connection: sqlite3.Connection,
    bounds: Bounds,
    conditions: dict[str, Any],
    after: str | None,
    limit: int,
) -> Page:
    """A page of the entries that meet the conditions: kind, perhaps state, stream, due_before."""
    wanted = {name: value for name, value in conditions.items() if value is not None}
    by_due = "due_before" in wanted
    values = [bounds.bytes, *wanted.values()]
    start = place_of(after)
    if start is not None:
        values += start if by_due else start[1:]
    limit = max(limit, 0)
    most = min(limit, bounds.rows) + 1
    if bounds is not ANY and "stream" in wanted:
        _check_few(connection, bounds, wanted)
    sql = _find(tuple(wanted), is_first=start is None)
    rows = connection.execute(sql, (*values, most)).fetchall()
    if len(rows) == most <= limit:
        raise TooLong
    entries = tuple(entry_of(row, bounds) for row in rows[:limit])
    more = bool(entries) and len(rows) > limit
    return Page(entries, cursor_of(_place(entries[-1], by_due=by_due)) if more else None)


def tail(connection: sqlite3.Connection, bounds: Bounds, position: int, limit: int) -> Feed:
    """Records of all streams after a position; one writer at a time keeps positions in order."""
    most = min(max(limit, 0), bounds.rows + 1)
    rows = connection.execute(_FEED, (bounds.bytes, position, most)).fetchall()
    if len(rows) > bounds.rows:
        raise TooLong
    records = tuple(_record(row, bounds) for row in rows)
    return Feed(records, str(records[-1].pos if records else position))


def end(connection: sqlite3.Connection, _: Bounds) -> Feed:
    """Where the feed ends now."""
    (position,) = connection.execute("SELECT coalesce(max(pos), 0) FROM record").fetchone()
    return Feed((), str(position))


def census(
    connection: sqlite3.Connection, bounds: Bounds, kinds: list[str], now: int, commits: int
) -> Census:
    """Numbers of what there is; `commits` is known elsewhere."""
    if bounds is not ANY:  # counting walks through an index: not while the event loop waits
        raise TooLong

    def number(sql: str, *values: Any) -> int:
        return int(connection.execute(sql, values).fetchone()[0])

    entries = {
        (kind, state): count
        for kind in kinds
        for state, count in connection.execute(_STATES, (kind,)).fetchall()
    }
    overdue = {kind: number(_OVERDUE, kind, now) for kind in kinds}
    return Census(
        entries,
        {kind: count for kind, count in overdue.items() if count},
        held=number(_HELD),
        due=number(_CLAIMABLE, now),
        alive=tuple(name for (name,) in connection.execute(_ALIVE, (now,))),
        records=number(_EVER),
        commits=commits,
    )


_CONDITIONS = {
    "kind": "kind = ?",
    "state": "state = ?",
    "stream": "sid = (SELECT sid FROM stream WHERE id = ?)",
    "due_before": "due <= ?",
}


@cache
def _find(wanted: tuple[str, ...], *, is_first: bool) -> str:
    by_due = "due_before" in wanted
    where = [_CONDITIONS[name] for name in wanted]
    if not is_first:
        where.append("(due, key) > (?, ?)" if by_due else "key > ?")
    return (
        f"{ENTRY} {_index(wanted)} WHERE {' AND '.join(where)} "
        f"ORDER BY {'due, key' if by_due else 'key'} LIMIT ?"
    )


def _index(wanted: tuple[str, ...]) -> str:
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


def _check_few(connection: sqlite3.Connection, bounds: Bounds, wanted: dict[str, Any]) -> None:
    # What a stream has of a kind is sorted before the first of it can be answered.
    values = (wanted["stream"], wanted["kind"], bounds.rows)
    if connection.execute(_ONE_MORE, values).fetchone() is not None:
        raise TooLong


def _record(row: tuple[Any, ...], bounds: Bounds) -> Record:
    record = Record(*row)
    if not isinstance(record.data, bytes):
        raise _misfit(record.data, bounds, f"record {record.seq} of {record.stream}")
    return record


def entry_of(row: tuple[Any, ...], bounds: Bounds) -> Entry:
    """The entry of a row that `ENTRY` selects; Corrupt, or TooLong where it was left out."""
    entry = Entry(*row)
    if not isinstance(entry.data, bytes):
        raise _misfit(entry.data, bounds, f"{entry.kind} {entry.key}")
    return entry


def _misfit(data: object, bounds: Bounds, what: str) -> Exception:
    if data is None and bounds is not ANY:
        return TooLong()
    return Corrupt(f"{what} is damaged", hint="restore a backup of the database")
