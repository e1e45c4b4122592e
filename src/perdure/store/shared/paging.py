"""Opaque cursors of pages and feeds, and the check that a page of records is complete."""

from collections.abc import Sequence
from typing import Final

from perdure.errors import Corrupt
from perdure.store.base import Entry, Feed, Growth, Order, Record

END = "$"  # the feed's cursor of the present end

LAST_DUE: Final = 2**63 - 1  # the place of entries without a due time

PagePosition = tuple[int, str]  # end of a page: due time (0 for pages by key alone) and key
ListingPosition = tuple[int, int, str]  # end of a page of a listing: due time, instant and key


def page_cursor(position: PagePosition) -> str:
    """Return the cursor that continues after this position."""
    return f"{position[0]}:{position[1]}"


def page_position(cursor: str | None) -> PagePosition | None:
    """Return the position of a cursor, None for the beginning. Raises ValueError."""
    if cursor is None:
        return None
    due, colon, key = cursor.partition(":")
    if not colon:
        raise ValueError(f"{cursor!r} is not a cursor of this store")
    return _number(due, cursor), key


def growth_of(feed: Feed, limit: int) -> Growth:
    """Return the streams of a page of the feed, for a backend that reads no less for them."""
    heads = {record.stream: record.seq for record in feed.records}
    return Growth(heads, feed.cursor, more=0 < limit <= len(feed.records))


def listing_position(cursor: str | None, order: Order) -> ListingPosition | None:
    """Return the position of a cursor of a listing, None for the beginning.

    Raises ValueError, also for an unknown order.
    """
    if order not in ("oldest", "newest", "due"):
        raise ValueError(f"{order!r} is not an order: oldest, newest or due")
    if cursor is None:
        return None
    due, _, rest = cursor.partition(":")
    at, colon, key = rest.partition(":")
    if not colon:
        raise ValueError(f"{cursor!r} is not a cursor of a listing")
    return _bounded(_number(due, cursor)), _bounded(_number(at, cursor)), key


def _bounded(number: int) -> int:
    return max(-LAST_DUE, min(number, LAST_DUE))


def listing_cursor(entry: Entry, order: Order) -> str:
    """Return the cursor that continues a listing after this entry."""
    due, at, key = listing_place(entry, order)
    return f"{due}:{at}:{key}"


def listing_place(entry: Entry, order: Order) -> ListingPosition:
    """Return the place of an entry in its listing."""
    due = entry.due if entry.due is not None else LAST_DUE
    return (due if order == "due" else 0, entry.at or 0, entry.key)


def feed_position(cursor: str) -> int:
    """Return the feed position of a cursor; the empty one is the beginning. Raises ValueError."""
    return _number(cursor, cursor) if cursor else 0


def _number(text: str, cursor: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{cursor!r} is not a cursor of this store") from None


def check_complete(records: Sequence[Record], stream: str, after: int, last: int) -> None:
    """Raise Corrupt if one of the records after `after` up to `last` is missing."""
    if len(records) >= last - after:
        return
    present = {record.seq for record in records}
    for seq in range(after + 1, last + 1):
        if seq not in present:
            raise Corrupt(
                f"record {seq} of {stream} is missing", hint="restore a backup of the database"
            )
