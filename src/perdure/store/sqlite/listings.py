"""Lists of a SQLite file: pages of listings, and for copies all streams and the entries of one."""

import sqlite3
from collections.abc import Sequence
from functools import cache

from perdure.store.base import Entry, Order, Page, StreamState
from perdure.store.shared.damage import damaged_stream
from perdure.store.shared.paging import LAST_DUE
from perdure.store.shared.queries import ListingQuery
from perdure.store.sqlite.checksums import HEAD, StoredStream
from perdure.store.sqlite.reads import ENTRY, Bounds, TooLarge, entry_from_row

_BY_TIME = ("at", "key")
_BY_DUE = (f"coalesce(due, {LAST_DUE})", "at", "key")  # the expression of the index

_OF_STREAM = f"""
    {ENTRY} INDEXED BY entry_stream WHERE sid = (SELECT sid FROM stream WHERE id = ?)
    ORDER BY kind, key LIMIT ?
"""  # noqa: S608 - no value in it
_STATES = f"""
    SELECT sid, id, kind, {HEAD}, epoch, holder, due, tries, gone, crc
    FROM stream WHERE id > ? ORDER BY id LIMIT ?
"""  # noqa: S608 - no value in it


def find_listed(connection: sqlite3.Connection, bounds: Bounds, query: ListingQuery) -> Page:
    """Return a page of the entries of a listing. Raises TooLarge."""
    kind, listing, order, start, limit = query
    most = min(limit, bounds.rows) + 1
    position = () if start is None else start if order == "due" else start[1:]
    values = (bounds.bytes, kind, listing, *position, most)
    rows = connection.execute(_find(order, is_first=start is None), values).fetchall()
    if len(rows) == most <= limit:
        raise TooLarge
    entries = tuple(entry_from_row(row, bounds) for row in rows[:limit])
    return query.page(entries, has_more=len(rows) > limit)


@cache
def _find(order: Order, *, is_first: bool) -> str:
    columns, index = (
        (_BY_DUE, "entry_listing_due") if order == "due" else (_BY_TIME, "entry_listing")
    )
    sign, direction = ("<", " DESC") if order == "newest" else (">", "")
    where = "kind = ? AND listing = ?"
    if not is_first:
        marks = ", ".join("?" for _ in columns)
        where += f" AND ({', '.join(columns)}) {sign} ({marks})"
    ordered = ", ".join(f"{column}{direction}" for column in columns)
    return f"{ENTRY} INDEXED BY {index} WHERE {where} ORDER BY {ordered} LIMIT ?"


def entries_of(connection: sqlite3.Connection, bounds: Bounds, stream: str) -> Sequence[Entry]:
    """Return every entry of a stream by (kind, key)."""
    rows = connection.execute(_OF_STREAM, (bounds.bytes, stream, bounds.rows + 1)).fetchall()
    if len(rows) > bounds.rows:
        raise TooLarge
    return [entry_from_row(row, bounds) for row in rows]


def stream_states(
    connection: sqlite3.Connection, bounds: Bounds, after: str, limit: int
) -> Sequence[StreamState]:
    """Return streams by id; the head of a gone stream was deleted with its records.

    Raises Corrupt.
    """
    most = max(limit, 0)
    if most > bounds.rows:
        raise TooLarge
    rows = [StoredStream(*row) for row in connection.execute(_STATES, (after, most)).fetchall()]
    for row in rows:
        if not row.is_sound:
            raise damaged_stream(str(row.stream))
    return [
        StreamState(
            row.stream, row.kind, row.head or 0, row.epoch, row.holder, row.due, gone=bool(row.gone)
        )
        for row in rows
    ]
