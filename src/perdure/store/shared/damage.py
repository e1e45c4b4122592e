"""Damaged rows, the same for the backends that notice them."""

from typing import Any, Final

from perdure.errors import Corrupt

DAMAGED: Final = b"\0damaged"  # instead of the data of a damaged entry: no decoder accepts it
MOST_LOST: Final = 1_000_000  # records of a stream: a greater number is not one of its records


def stated_head(head: Any, last: int) -> int:
    """Return the head that a row states, if records after the last one may be lost; else `last`."""
    return head if isinstance(head, int) and last < head <= last + MOST_LOST else last


def damaged_stream(stream: str) -> Corrupt:
    """Return the error of a stream whose row is damaged."""
    return Corrupt(
        f"the row of the stream {stream} is damaged",
        hint="run perdure doctor",
        details={"stream": stream},
    )


def damaged_record(stream: str, seq: int) -> Corrupt:
    """Return the error of a record whose row is damaged."""
    return Corrupt(
        f"event {seq} of {stream} cannot be read: its row is damaged",
        hint="run perdure doctor",
        details={"stream": stream, "seq": seq},
    )
