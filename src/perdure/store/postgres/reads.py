"""The questions that the PostgreSQL store answers without changing anything."""

from collections.abc import Awaitable, Sequence
from functools import cache
from typing import Any, Protocol, TypeVar

from perdure.store.base import Census, Entry, Gone, NoStream, Page, Record, Slice, StreamState
from perdure.store.postgres.batch import entry_of
from perdure.store.postgres.connection import PooledConnection
from perdure.store.postgres.sql import packed, statement, unpacked
from perdure.store.shared.paging import check_whole, cursor_of, place_of

T_co = TypeVar("T_co", covariant=True)

_ALL = 2**62


class Question(Protocol[T_co]):
    """Something to be asked on a connection."""

    def __call__(self, line: PooledConnection, /) -> Awaitable[T_co]:
        """The answer."""
        ...


async def read(line: PooledConnection, stream: str, after: int, limit: int | None) -> Slice:
    """The records after `after`, and where the stream stands at the same moment."""
    after = max(after, 0)
    last = _ALL if limit is None else after + max(limit, 0)
    rows = await line.fetch(statement("read"), packed(stream), after, last)
    if not rows:
        raise NoStream(f"there is no stream {stream}", stream=stream)
    head, holder, due, gone = rows[0][:4]
    if gone:
        raise Gone(f"the stream {stream} was erased", stream=stream)
    records = tuple(
        Record(unpacked(type_), data, at, seq, pos, stream)
        for _, _, _, _, type_, data, at, seq, pos in rows
        if seq is not None
    )
    check_whole(records, stream, after, min(head, last))
    return Slice(records, head, None if holder is None else unpacked(holder), due)


async def get(line: PooledConnection, asked: Sequence[tuple[str, str]]) -> list[Entry | None]:
    """Entries by kind and key."""
    kinds, keys = ([packed(one[place]) for one in asked] for place in range(2))
    rows = await line.fetch(statement("look_at_entries"), kinds, keys)
    found = {(entry.kind, entry.key): entry for entry in map(entry_of, rows)}
    return [found.get(one) for one in asked]


async def find(
    line: PooledConnection, conditions: dict[str, Any], after: str | None, limit: int
) -> Page:
    """A page of the entries that meet the conditions: kind, perhaps state, stream, due_before."""
    wanted = {name: value for name, value in conditions.items() if value is not None}
    by_due = "due_before" in wanted
    start, limit = place_of(after), max(limit, 0)
    values = [packed(value) if isinstance(value, str) else value for value in wanted.values()]
    if start is not None:
        values += [start[0], packed(start[1])] if by_due else [packed(start[1])]
    sql = _find(tuple(wanted), is_first=start is None)
    rows = await line.fetch(sql, *values, limit + 1)
    entries = tuple(entry_of(row) for row in rows[:limit])
    if not entries or len(rows) <= limit:
        return Page(entries, None)
    last = entries[-1]
    return Page(entries, cursor_of((last.due or 0, last.key) if by_due else (0, last.key)))


async def entries_of(line: PooledConnection, stream: str) -> Sequence[Entry]:
    """Every entry of a stream, by (kind, key)."""
    return [entry_of(row) for row in await line.fetch(statement("entries_of"), packed(stream))]


async def streams(line: PooledConnection, after: str, limit: int) -> Sequence[StreamState]:
    """Streams by their ids."""
    rows = await line.fetch(statement("streams"), packed(after), max(limit, 0))
    return [
        StreamState(
            unpacked(name),
            unpacked(kind),
            head,
            epoch,
            None if holder is None else unpacked(holder),
            due,
            gone=gone,
        )
        for name, kind, head, epoch, holder, due, gone in rows
    ]


async def census(line: PooledConnection, kinds: list[str], now: int, commits: int) -> Census:
    """Numbers of what there is; `commits` is known elsewhere."""
    names = [packed(kind) for kind in kinds]
    states = await line.fetch(statement("states"), names)
    overdue = await line.fetch(statement("overdue"), names, now)
    held, due, alive, records = await line.fetchrow(statement("totals"), now)
    return Census(
        {(unpacked(kind), unpacked(state)): count for kind, state, count in states},
        {unpacked(kind): count for kind, count in overdue},
        held=held,
        due=due,
        alive=tuple(unpacked(name) for name in alive),
        records=records,
        commits=commits,
    )


# A condition that is an expression takes part in no index: so the one that is meant is used,
# whatever the planner knows of the tables. A stream has few entries, so they may be sorted.
_INDEXED = {
    "kind": "e.kind = {}",
    "state": "e.state = {}",
    "stream": "e.sid = (SELECT sid FROM stream WHERE id = {})",
    "due_before": "e.due <= {}",
}
_FILTERED = {"state": "e.state || '' = {}", "due_before": "e.due + 0 <= {}"}


@cache
def _find(wanted: tuple[str, ...], *, is_first: bool) -> str:
    by_due, by_stream = "due_before" in wanted, "stream" in wanted
    filtered = {"due_before"} if by_stream else {"state"} if by_due else set()
    forms = {**_INDEXED, **{name: _FILTERED[name] for name in filtered}}
    where = [forms[name].format(f"${place}") for place, name in enumerate(wanted, 1)]
    free = len(wanted) + 1
    if not is_first:
        where.append(f"(e.due, e.key) > (${free}, ${free + 1})" if by_due else f"e.key > ${free}")
        free += 2 if by_due else 1
    key = "e.key || ''" if by_stream else "e.key"
    order = f"e.due, {key}" if by_due else key
    return (
        "SELECT e.kind, e.key, s.id, e.version, e.state, e.due, e.data "  # noqa: S608 - no value
        "FROM entry e JOIN stream s ON s.sid = e.sid "
        f"WHERE {' AND '.join(where)} ORDER BY {order} LIMIT ${free}"
    )
