"""Cursors of lists: opaque to clients, and refused if they are malformed."""

import re
from typing import Annotated, Any, Final

from fastapi import Query

from perdure.errors import Refused

_CURSOR: Final = r"^[0-9]{1,15}(?:\.(?:[0-9a-f]{2}){0,2500}){2}$"


def query_cursor(pattern: str) -> Any:
    """Return the query parameter of a list whose cursors have this pattern."""
    return Query(
        max_length=10_100,
        description="The `next` of the previous page.",
        json_schema_extra={"pattern": pattern},
    )


Cursor = Annotated[str | None, query_cursor(_CURSOR)]
PagePosition = tuple[int, str, str]


def encode_cursor(position: PagePosition) -> str:
    """Return the cursor of the page after this position."""
    number, first, second = position
    return f"{number}.{first.encode().hex()}.{second.encode().hex()}"


def decode_cursor(cursor: str | None) -> PagePosition | None:
    """Return the position in a cursor; None for the beginning. Raises Refused."""
    if cursor is None:
        return None
    if re.fullmatch(_CURSOR, cursor) is None:
        raise bad_cursor()
    number, first, second = cursor.split(".")
    return int(number), _decode_hex(first), _decode_hex(second)


def bad_cursor() -> Refused:
    """Return the error for a cursor that no page has returned."""
    return Refused(
        "the cursor is not valid",
        code="CURSOR_INVALID",
        hint="pass the `next` of the previous page, or start without a cursor",
    )


def _decode_hex(digits: str) -> str:
    return bytes.fromhex(digits).decode(errors="replace")
