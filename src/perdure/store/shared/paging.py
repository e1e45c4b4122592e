"""The opaque cursors of pages and feeds: what the backends hand out and take back."""

from collections.abc import Sequence

from perdure.errors import Corrupt
from perdure.store.base import Record

END = "$"  # a feed's cursor: from now on

Place = tuple[int, str]  # where a page ended: due time (0 where pages go by key alone) and key


def cursor_of(place: Place) -> str:
    """The cursor that goes on after this place."""
    return f"{place[0]}:{place[1]}"


def place_of(cursor: str | None) -> Place | None:
    """The place that the cursor names; None for the beginning. ValueError if it is no cursor."""
    if cursor is None:
        return None
    due, colon, key = cursor.partition(":")
    if not colon:
        raise ValueError(f"{cursor!r} is not a cursor of this store")
    return _number(due, cursor), key


def position_of(cursor: str) -> int:
    """The feed position that the cursor names; the empty one is the beginning."""
    return _number(cursor, cursor) if cursor else 0


def _number(text: str, cursor: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{cursor!r} is not a cursor of this store") from None


def check_whole(records: Sequence[Record], stream: str, after: int, last: int) -> None:
    """Corrupt if one of the records after `after` up to `last` is missing."""
    if len(records) >= last - after:
        return
    there = {record.seq for record in records}
    for seq in range(after + 1, last + 1):
        if seq not in there:
            raise Corrupt(
                f"record {seq} of {stream} is missing", hint="restore a backup of the database"
            )
