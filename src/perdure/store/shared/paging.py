"""Opaque cursors of pages and feeds, and the check that a page of records is complete."""

from collections.abc import Sequence

from perdure.errors import Corrupt
from perdure.store.base import Record

END = "$"  # the feed's cursor of the present end

PagePosition = tuple[int, str]  # end of a page: due time (0 for pages by key alone) and key


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
