"""Read queries of the PostgreSQL backend."""

from collections.abc import Awaitable, Sequence
from functools import cache
from typing import Any, Protocol, TypeVar

from perdure.errors import Corrupt
from perdure.store.base import (
    Census,
    Entry,
    Gone,
    NoStream,
    Order,
    Page,
    Record,
    Slice,
    StreamState,
)
from perdure.store.postgres.batch import entry_from_row
from perdure.store.postgres.connection import PooledConnection
from perdure.store.postgres.sql import pack_text, statement, unpack_text
from perdure.store.shared.damage import DAMAGED, damaged_record, damaged_stream
from perdure.store.shared.paging import (
    LAST_DUE,
    check_complete,
)
from perdure.store.shared.queries import EntryQuery, ListingQuery

T_co = TypeVar("T_co", covariant=True)

_ALL = 2**62


class ReadQuery(Protocol[T_co]):
    """Query that runs on one connection."""

    def __call__(self, connection: PooledConnection, /) -> Awaitable[T_co]:
        """Run the query and return its result."""
        ...


async def read(connection: PooledConnection, stream: str, after: int, limit: int | None) -> Slice:
    """Return the records after `after`, with head, holder and due of the same moment."""
    after = max(after, 0)
    last = _ALL if limit is None else after + max(limit, 0)
    rows = await connection.fetch(statement("read"), pack_text(stream), after, last)
    if not rows:
        raise NoStream(f"there is no stream {stream}", stream=stream)
    head, holder, due, tries, gone, is_sound = rows[0][:6]
    if not is_sound:
        raise damaged_stream(stream)
    if gone:
        raise Gone(f"the stream {stream} was erased", stream=stream)
    records = tuple(
        _checked_record(is_same, Record(unpack_text(type_), data, at, seq, pos, stream))
        for _, _, _, _, _, _, is_same, type_, data, at, seq, pos in rows
        if seq is not None
    )
    if records and records[-1].seq > head:  # of the same moment
        raise damaged_stream(stream)
    check_complete(records, stream, after, min(head, last))
    return Slice(records, head, None if holder is None else unpack_text(holder), due, tries)


def _checked_record(is_same: bool | None, record: Record) -> Record:
    """Return the record if its checksum is right, or it has none. Raises Corrupt."""
    if is_same is False:
        raise damaged_record(record.stream, record.seq)
    return record


async def get(connection: PooledConnection, keys: Sequence[tuple[str, str]]) -> list[Entry | None]:
    """Return entries by (kind, key)."""
    columns = ([pack_text(key[column]) for key in keys] for column in range(2))
    rows = await connection.fetch(statement("load_entries"), *columns)
    entries = {(entry.kind, entry.key): entry for entry in map(entry_from_row, rows)}
    return [entries.get(key) for key in keys]


def checked_entry(entry: Entry | None) -> Entry | None:
    """Return an entry for the caller that asked for it alone. Raises Corrupt."""
    if entry is not None and entry.data is DAMAGED:
        raise Corrupt(
            f"the stream of the entry {entry.kind} {entry.key} is lost", hint="run perdure doctor"
        )
    return entry


async def find(connection: PooledConnection, query: EntryQuery) -> Page:
    """Return a page of entries by conditions."""
    if query.skip:
        sql = _skip(tuple(query.conditions), is_first=query.start is None)
        skipped = await connection.fetchrow(sql, *_values(query), query.skip - 1)
        if skipped is None:
            return Page((), None)
        query = query._replace(start=query.position(unpack_text(skipped[0]), skipped[1]))
    conditions, limit = tuple(query.conditions), query.limit
    sql = _find(conditions, is_first=query.start is None)
    rows = await connection.fetch(sql, *_values(query), limit + 1)
    entries = tuple(entry_from_row(row) for row in rows[:limit])
    return query.page(entries, has_more=len(rows) > limit)


def _values(query: EntryQuery) -> list[Any]:
    """Return the values of the conditions of a query, and those of its position."""
    values = [*query.conditions.values()]
    if query.start is not None:
        values += query.start if query.is_by_due else query.start[1:]
    return [pack_text(value) if isinstance(value, str) else value for value in values]


async def find_listed(connection: PooledConnection, query: ListingQuery) -> Page:
    """Return a page of the entries of a listing, after a position."""
    kind, listing, order, start, limit = query
    values: list[Any] = [pack_text(kind), pack_text(listing)]
    if start is not None:
        due, at, key = start
        values += [due, at, pack_text(key)] if order == "due" else [at, pack_text(key)]
    rows = await connection.fetch(_find_listed(order, is_first=start is None), *values, limit + 1)
    entries = tuple(entry_from_row(row) for row in rows[:limit])
    return query.page(entries, has_more=len(rows) > limit)


async def entries_of(connection: PooledConnection, stream: str) -> Sequence[Entry]:
    """Return every entry of a stream by (kind, key)."""
    return [
        entry_from_row(row)
        for row in await connection.fetch(statement("entries_of"), pack_text(stream))
    ]


async def streams(connection: PooledConnection, after: str, limit: int) -> Sequence[StreamState]:
    """Return streams by id. Raises Corrupt."""
    rows = await connection.fetch(statement("streams"), pack_text(after), max(limit, 0))
    for name, *_, is_sound in rows:
        if not is_sound:
            raise damaged_stream(unpack_text(name))
    return [
        StreamState(
            unpack_text(name),
            unpack_text(kind),
            head,
            epoch,
            None if holder is None else unpack_text(holder),
            due,
            gone=gone,
        )
        for name, kind, head, epoch, holder, due, gone, _ in rows
    ]


async def census(connection: PooledConnection, kinds: list[str], now: int, commits: int) -> Census:
    """Count what exists; the caller passes the number of commits."""
    names = [pack_text(kind) for kind in kinds]
    states = await connection.fetch(statement("states"), names)
    listings = await connection.fetch(statement("listings"), names)
    overdue = await connection.fetch(statement("overdue"), names, now)
    held, due, alive, records = await connection.fetchrow(statement("totals"), now)
    return Census(
        {(unpack_text(kind), unpack_text(state)): count for kind, state, count in states},
        {(unpack_text(kind), unpack_text(listing)): count for kind, listing, count in listings},
        {unpack_text(kind): count for kind, count in overdue},
        held=held,
        due=due,
        alive=tuple(unpack_text(name) for name in alive),
        records=records,
        commits=commits,
    )


# A condition on an expression uses no index, so that the planner takes the intended index whatever
# its statistics. A stream has few entries, so they may be sorted.
_INDEXED = {
    "kind": "e.kind = {}",
    "state": "e.state = {}",
    "stream": "e.sid = (SELECT sid FROM stream WHERE id = {})",
    "due_before": "e.due <= {}",
}
_FILTERED = {"state": "e.state || '' = {}", "due_before": "e.due + 0 <= {}"}


@cache
def _find(conditions: tuple[str, ...], *, is_first: bool) -> str:
    rest, free = _rest(conditions, is_first=is_first)
    return (
        "SELECT e.kind, e.key, s.id, e.version, e.state, e.due, e.data, e.listing, e.at "  # noqa: S608
        f"FROM entry e LEFT JOIN stream s ON s.sid = e.sid {rest} LIMIT ${free}"
    )


@cache
def _skip(conditions: tuple[str, ...], *, is_first: bool) -> str:
    due = "e.due" if "due_before" in conditions else "NULL"  # only an index is read
    rest, free = _rest(conditions, is_first=is_first)
    return f"SELECT e.key, {due} FROM entry e {rest} LIMIT 1 OFFSET ${free}"  # noqa: S608


def _rest(conditions: tuple[str, ...], *, is_first: bool) -> tuple[str, int]:
    """Return the conditions and the order of a query, and the number of the next parameter."""
    by_due, by_stream = "due_before" in conditions, "stream" in conditions
    filtered = {"due_before"} if by_stream else {"state"} if by_due else set()
    forms = {**_INDEXED, **{name: _FILTERED[name] for name in filtered}}
    where = [forms[name].format(f"${number}") for number, name in enumerate(conditions, 1)]
    free = len(conditions) + 1
    if not is_first:
        where.append(f"(e.due, e.key) > (${free}, ${free + 1})" if by_due else f"e.key > ${free}")
        free += 2 if by_due else 1
    key = "e.key || ''" if by_stream else "e.key"
    order = f"e.due, {key}" if by_due else key
    return f"WHERE {' AND '.join(where)} ORDER BY {order}", free


@cache
def _find_listed(order: Order, *, is_first: bool) -> str:
    columns = ["e.at", "e.key"]
    if order == "due":  # the expression of the index
        columns.insert(0, f"coalesce(e.due, {LAST_DUE})")
    free, sign, direction = 3, ("<" if order == "newest" else ">"), ""
    where = "e.kind = $1 AND e.listing = $2"
    if not is_first:
        values = ", ".join(f"${free + number}" for number in range(len(columns)))
        where += f" AND ({', '.join(columns)}) {sign} ({values})"
        free += len(columns)
    direction = " DESC" if order == "newest" else ""
    ordered = ", ".join(f"{column}{direction}" for column in columns)
    return (
        "SELECT e.kind, e.key, s.id, e.version, e.state, e.due, e.data, e.listing, e.at "  # noqa: S608
        "FROM entry e LEFT JOIN stream s ON s.sid = e.sid "
        f"WHERE {where} ORDER BY {ordered} LIMIT ${free}"
    )
