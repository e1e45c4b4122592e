"""Pages of the listings of a SQLite file: entries of a kind by instant or by due time."""

import sqlite3
from functools import cache

from perdure.store.base import Order, Page
from perdure.store.shared.paging import LAST_DUE, ListingQuery, listing_cursor
from perdure.store.sqlite.reads import ENTRY, Bounds, TooLarge, entry_from_row

_BY_TIME = ("at", "key")
_BY_DUE = (f"coalesce(due, {LAST_DUE})", "at", "key")  # the expression of the index


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
    has_more = bool(entries) and len(rows) > limit
    return Page(entries, listing_cursor(entries[-1], order) if has_more else None)


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
