"""Read queries of the SQLite backend, and the connections that run them."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

from perdure.errors import Corrupt
from perdure.store.base import Census, Entry, Feed, Gone, Growth, NoStream, Page, Record, Slice
from perdure.store.shared.damage import DAMAGED, damaged_record, damaged_stream
from perdure.store.shared.paging import PagePosition, check_complete
from perdure.store.shared.queries import EntryQuery
from perdure.store.sqlite.checksums import (
    HEAD,
    StoredStream,
    checked_entry,
    record_checksum,
    without_data,
)
from perdure.store.sqlite.packed_data import PLAIN, is_repeating, unpack

T = TypeVar("T")

# A large blob is left out of a small query; its length is known without reading it.
_DATA = "CASE WHEN length(data) <= ? THEN data END"
# One row for each record, or one without a record. The head is that of the same moment.
_SLICE = f"""
    SELECT type, {_DATA}, at, seq, pos, stream.sid, record.crc, stream.id, kind,
           {HEAD}, epoch, holder, due, tries, gone, stream.crc
    FROM stream LEFT JOIN record ON record.sid = stream.sid AND seq > ?3
    WHERE stream.id = ?2 ORDER BY seq LIMIT ?4
"""  # noqa: S608 - no value in it
ENTRY = f"""
    SELECT kind, key, (SELECT id FROM stream WHERE stream.sid = entry.sid),
           version, state, due, {_DATA}, listing, at, sid, crc
    FROM entry
"""  # noqa: S608 - no value in it
_GET = f"{ENTRY} WHERE kind = ? AND key = ?"
_FEED = f"""
    SELECT type, {_DATA}, at, seq, pos, sid, crc,
           (SELECT id FROM stream WHERE stream.sid = record.sid)
    FROM record WHERE pos > ? ORDER BY pos LIMIT ?
"""  # noqa: S608 - no value in it
# Without bounds: the columns come before the data, whose pages are not read.
_GROWTH_ROWS = 1_000  # at most: less than a millisecond
_GROWTH = """
    SELECT (SELECT id FROM stream WHERE stream.sid = new.sid), max(seq), max(pos), count(*)
    FROM (SELECT sid, seq, pos FROM record WHERE pos > ? ORDER BY pos LIMIT ?) AS new GROUP BY sid
"""
_RECORD = f"""
    SELECT type, {_DATA}, at, seq, pos, sid, crc FROM record WHERE sid = ? AND seq = ?
"""  # noqa: S608 - no value in it
_ONE_MORE = """
    SELECT 1 FROM entry INDEXED BY entry_stream
    WHERE sid = (SELECT sid FROM stream WHERE id = ?) AND kind = ? LIMIT 1 OFFSET ?
"""

# Each reads one index only. The few values of a column are found by one look-up each: a count of
# the rows that have one value takes fewer steps than a grouping of all rows.
_VALUES = """
    WITH RECURSIVE present (value) AS (
        SELECT min({column}) FROM entry INDEXED BY {index} WHERE kind = ?1 AND {column} IS NOT NULL
        UNION ALL
        SELECT (SELECT min({column}) FROM entry INDEXED BY {index}
                WHERE kind = ?1 AND {column} > present.value)
        FROM present WHERE value IS NOT NULL
    )
    SELECT value, (SELECT count(*) FROM entry INDEXED BY {index}
                   WHERE kind = ?1 AND {column} = present.value)
    FROM present WHERE value IS NOT NULL
"""
_STATES = _VALUES.format(column="state", index="entry_state")
_LISTINGS = _VALUES.format(column="listing", index="entry_listing")
_OVERDUE = "SELECT count(*) FROM entry INDEXED BY entry_due WHERE kind = ? AND due <= ?"
_HELD = "SELECT count(*) FROM stream INDEXED BY stream_holder WHERE holder IS NOT NULL"
_CLAIMABLE = """
    SELECT count(*) FROM stream INDEXED BY stream_due
    WHERE holder IS NULL AND due IS NOT NULL AND due <= ?
"""
_ALIVE = "SELECT name FROM holder WHERE until > ? ORDER BY name"
_EVER = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'record'"
# At least as many as there are, found without a scan.
_MOST_ROWS = """
    SELECT coalesce((SELECT max(rowid) FROM entry), 0) + coalesce((SELECT max(sid) FROM stream), 0)
"""
COUNTED_ROWS = 4_000  # by a small query: less than a millisecond


class Bounds(NamedTuple):
    """Limits on what one query may read."""

    rows: int
    bytes: int  # of each row's data


SMALL = Bounds(rows=256, bytes=16 * 1024)  # for queries in the event loop
ANY = Bounds(rows=2**62, bytes=2**62)

Query = Callable[[sqlite3.Connection, Bounds], T]


class TooLarge(Exception):
    """The result of a query exceeds its bounds."""


class Readers:
    """Pool of read-only connections, each used by one thread at a time."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._idle: list[sqlite3.Connection] = []
        self._reserved: list[sqlite3.Connection] = []  # for `run_small`: one, which no thread takes

    def run(self, query: Query[T]) -> T:
        """Run a query on one snapshot of the database; it may wait for the disk."""
        connection = _last(self._idle) or self._connect()

        def on_snapshot(connection: sqlite3.Connection, bounds: Bounds) -> T:
            connection.execute("BEGIN")
            try:
                return query(connection, bounds)
            finally:
                if connection.in_transaction:  # SQLite itself ends it after some errors
                    connection.execute("ROLLBACK")

        return self._run(connection, on_snapshot, ANY)

    def run_small(self, query: Query[T]) -> T:
        """Run a query within SMALL bounds in the caller's thread. Raises TooLarge, or any error."""
        connection = _last(self._reserved)
        if connection is None:  # the first query runs in a thread and leaves its connection here
            raise TooLarge
        return self._run(connection, query, SMALL)

    def run_together(self, queries: Sequence[Query[Any]]) -> list[Any]:
        """Run queries within SMALL bounds on one snapshot; return each result or its error."""
        outcomes: list[Any] = []

        def on_snapshot(connection: sqlite3.Connection, bounds: Bounds) -> None:
            connection.execute("BEGIN")
            for query in queries:
                try:
                    outcomes.append(query(connection, bounds))
                except connection.Error:
                    raise
                except Exception as error:  # noqa: BLE001 - it is for the caller of that query
                    outcomes.append(error)
            connection.execute("ROLLBACK")

        try:
            self._run(_last(self._idle) or self._connect(), on_snapshot, SMALL)
        except Exception:  # noqa: BLE001 - a thread has the time to retry
            outcomes += [TooLarge() for _ in range(len(queries) - len(outcomes))]
        return outcomes

    def close(self) -> None:
        """Close all connections; no query may be running."""
        while connection := _last(self._idle) or _last(self._reserved):
            connection.close()

    def _run(self, connection: sqlite3.Connection, query: Query[T], bounds: Bounds) -> T:
        try:
            result = query(connection, bounds)
        except connection.Error:
            connection.close()  # its state is unknown, so the next query gets a new one
            raise
        except BaseException:
            self._put_back(connection)
            raise
        self._put_back(connection)
        return result

    def _put_back(self, connection: sqlite3.Connection) -> None:
        (self._idle if self._reserved else self._reserved).append(connection)


def _last(connections: list[sqlite3.Connection]) -> sqlite3.Connection | None:
    try:
        return connections.pop()
    except IndexError:  # perhaps another thread took the last one
        return None


def read(
    connection: sqlite3.Connection, bounds: Bounds, stream: str, after: int, limit: int | None
) -> Slice:
    """Return the records after `after`. Raises NoStream, Gone, or Corrupt if some are missing."""
    after, limit = max(after, 0), ANY.rows if limit is None else max(limit, 0)
    most = min(bounds.rows + 1, max(limit, 1))
    values = (bounds.bytes, stream, after, most)
    rows: list[Any] = connection.execute(_SLICE, values).fetchall()
    if not rows:
        raise NoStream(f"there is no stream {stream}", stream=stream)
    row = StoredStream(rows[0][5], *rows[0][7:])
    if not row.is_sound:
        raise damaged_stream(stream)
    head = row.head or 0
    if row.gone:
        raise Gone(f"the stream {stream} was erased", stream=stream)
    if len(rows) > bounds.rows:
        raise TooLarge
    records: tuple[Record, ...] = ()
    if limit:
        if rows[0][3] is not None:
            records = tuple(_records(rows, bounds, stream, connection))
        check_complete(records, stream, after, min(head, after + limit))
    return Slice(records, head, row.holder, row.due, row.tries)


def get(connection: sqlite3.Connection, bounds: Bounds, kind: str, key: str) -> Entry | None:
    """Return the entry with this key, or None. Raises Corrupt."""
    row = connection.execute(_GET, (bounds.bytes, kind, key)).fetchone()
    if row is None:
        return None
    entry = entry_from_row(row, bounds)
    if entry.data is DAMAGED:
        raise Corrupt(f"the entry {kind} {key} is damaged", hint="run perdure doctor")
    return entry


def find(connection: sqlite3.Connection, bounds: Bounds, query: EntryQuery) -> Page:
    """Return a page of entries by conditions. Raises TooLarge."""
    if bounds is not ANY:
        _check_few(connection, bounds, query)
    if query.skip:
        position = _skipped(connection, query)
        if position is None:
            return Page((), None)
        query = query._replace(start=position)
    conditions, limit = tuple(query.conditions), query.limit
    most = min(limit, bounds.rows) + 1
    sql = _find(conditions, is_first=query.start is None)
    rows = connection.execute(sql, (bounds.bytes, *_values(query), most)).fetchall()
    if len(rows) == most <= limit:
        raise TooLarge
    entries = tuple(entry_from_row(row, bounds) for row in rows[:limit])
    return query.page(entries, has_more=len(rows) > limit)


def tail(connection: sqlite3.Connection, bounds: Bounds, position: int, limit: int) -> Feed:
    """Return records of all streams after a position; a single writer keeps positions in order."""
    most = min(max(limit, 0), bounds.rows + 1)
    rows = connection.execute(_FEED, (bounds.bytes, position, most)).fetchall()
    if len(rows) > bounds.rows:
        raise TooLarge
    records: list[Record] = []
    for row in rows:
        records.append(_feed_record(row, bounds, connection, records[-1:]))
    return Feed(tuple(records), str(records[-1].pos if records else position))


def growth(connection: sqlite3.Connection, _: Bounds, position: int, limit: int) -> Growth:
    """Return the streams of the records after a position, each with its newest seq."""
    most = min(max(limit, 0), _GROWTH_ROWS)
    rows = connection.execute(_GROWTH, (position, most)).fetchall()
    heads = {stream or "": seq for stream, seq, _, _ in rows}
    last = max((pos for _, _, pos, _ in rows), default=position)
    return Growth(heads, str(last), more=0 < most <= sum(count for *_, count in rows))


def end(connection: sqlite3.Connection, _: Bounds) -> Feed:
    """Return the cursor of the feed's present end."""
    (position,) = connection.execute("SELECT coalesce(max(pos), 0) FROM record").fetchone()
    return Feed((), str(position))


def census(
    connection: sqlite3.Connection, bounds: Bounds, kinds: list[str], now: int, commits: int
) -> Census:
    """Count what exists; the caller passes the number of commits. Raises TooLarge."""

    def number(sql: str, *values: Any) -> int:
        return int(connection.execute(sql, values).fetchone()[0])

    # Counting scans an index, which is too slow for the event loop where there is much.
    if bounds is not ANY and number(_MOST_ROWS) > COUNTED_ROWS:
        raise TooLarge
    entries = {
        (kind, state): count
        for kind in kinds
        for state, count in connection.execute(_STATES, (kind,)).fetchall()
    }
    listings = {
        (kind, listing): count
        for kind in kinds
        for listing, count in connection.execute(_LISTINGS, (kind,)).fetchall()
    }
    overdue = {kind: number(_OVERDUE, kind, now) for kind in kinds}
    return Census(
        entries,
        listings,
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


def _values(query: EntryQuery) -> list[Any]:
    """Return the values of the conditions of a query, and those of its position."""
    values = list(query.conditions.values())
    if query.start is not None:
        values += query.start if query.is_by_due else query.start[1:]
    return values


def _skipped(connection: sqlite3.Connection, query: EntryQuery) -> PagePosition | None:
    """Return the position of the last entry that a query leaves out; None if there are fewer."""
    sql = _skip(tuple(query.conditions), is_first=query.start is None)
    row = connection.execute(sql, (*_values(query), query.skip - 1)).fetchone()
    return None if row is None else query.position(*row)


@cache
def _skip(conditions: tuple[str, ...], *, is_first: bool) -> str:
    due = "due" if "due_before" in conditions else "NULL"  # only an index is read
    rest = _from(conditions, is_first=is_first)
    return f"SELECT key, {due} FROM entry {rest} LIMIT 1 OFFSET ?"  # noqa: S608 - no value in it


@cache
def _find(conditions: tuple[str, ...], *, is_first: bool) -> str:
    return f"{ENTRY} {_from(conditions, is_first=is_first)} LIMIT ?"


def _from(conditions: tuple[str, ...], *, is_first: bool) -> str:
    by_due = "due_before" in conditions
    where = [_CONDITIONS[name] for name in conditions]
    if not is_first:
        where.append("(due, key) > (?, ?)" if by_due else "key > ?")
    order = "due, key" if by_due else "key"
    return f"{_index(conditions)} WHERE {' AND '.join(where)} ORDER BY {order}"


def _index(conditions: tuple[str, ...]) -> str:
    # Named explicitly: without statistics SQLite would use entry_state for "open and due", and
    # scan everything that is open.
    for condition, index in (
        ("stream", "entry_stream"),
        ("due_before", "entry_due"),
        ("state", "entry_state"),
    ):
        if condition in conditions:
            return f"INDEXED BY {index}"
    return ""


def _check_few(connection: sqlite3.Connection, bounds: Bounds, query: EntryQuery) -> None:
    if query.skip > COUNTED_ROWS:
        raise TooLarge
    if query.stream is None:
        return
    # The entries of a stream are sorted before the first one can be returned.
    values = (query.stream, query.kind, bounds.rows)
    if connection.execute(_ONE_MORE, values).fetchone() is not None:
        raise TooLarge


def _records(
    rows: Iterable[tuple[Any, ...]],
    bounds: Bounds,
    stream: str,
    connection: sqlite3.Connection,
    before: Sequence[Record] = (),
) -> list[Record]:
    """Return the records of rows of one stream, after those before. Raises TooLarge, Corrupt."""
    records: list[Record] = []
    for type_, data, at, seq, pos, sid, crc, *_ in rows:
        if data is None and bounds is not ANY:
            raise TooLarge
        is_intact = isinstance(data, bytes) and isinstance(stream, str)
        if not is_intact or (crc is not None and crc != record_checksum(sid, seq, type_, at, data)):
            raise damaged_record(stream, seq)
        if crc is not None and data[:1] < PLAIN:
            other = b""
            if is_repeating(data):
                place, near = (sid, seq - 1), (records or before)[-1:]
                other = _data_at(place, bounds, stream, connection, near)
            data = unpack(data, 0 if bounds is ANY else bounds.bytes, other)  # noqa: PLW2901 - packed
            if data is None:
                raise TooLarge
        records.append(Record(type_, data, at, seq, pos, stream))
    return records


def _data_at(
    place: tuple[int, int],
    bounds: Bounds,
    stream: str,
    connection: sqlite3.Connection,
    near: Sequence[Record],
) -> bytes:
    """Return the data of a record, by sid and seq, that the next one repeats; perhaps it is near.

    Raises TooLarge, Corrupt.
    """
    for record in near:
        if (record.stream, record.seq) == (stream, place[1]) and record.data != DAMAGED:
            return record.data
    row = connection.execute(_RECORD, (bounds.bytes, *place)).fetchone()
    if row is None and bounds is not ANY:
        raise TooLarge  # erased since the rows were read: to be read again, in one snapshot
    if row is None or is_repeating(row[1] or b""):
        raise Corrupt(
            f"event {place[1] + 1} of {stream} cannot be read: the event before it is missing",
            hint="run perdure doctor",
            details={"stream": stream, "seq": place[1] + 1},
        )
    return _records((row,), bounds, stream, connection)[0].data


def _feed_record(
    row: tuple[Any, ...],
    bounds: Bounds,
    connection: sqlite3.Connection,
    before: Sequence[Record],
) -> Record:
    """Return a record of the feed; a damaged one has no data, so that the others can be read."""
    stream = row[-1]
    try:
        (record,) = _records((row,), bounds, stream, connection, before)
    except Corrupt:
        _, _, at, seq, pos, *_ = row
        return Record("user", DAMAGED, at, seq, pos, stream or "")
    return record


def entry_from_row(row: tuple[Any, ...], bounds: Bounds) -> Entry:
    """Return the entry of a row of `ENTRY`. Raises TooLarge if data was left out.

    A damaged entry has the data DAMAGED, so that a list can name it among the others.
    """
    kind, key, stream, version, state, due, data, listing, at, sid, crc = row
    if data is None and bounds is not ANY:
        raise TooLarge
    entry = Entry(kind, key, stream or "", version, state, due, data, listing, at)
    if isinstance(data, bytes) and isinstance(stream, str):
        return checked_entry(entry, sid, crc)
    return without_data(entry)
