"""Cursors of lists: opaque to clients, and refused if they are malformed."""

import re
from typing import Annotated, Final

from msgspec import Meta, UnsetType

from perdure.errors import Refused

_CURSOR: Final = r"^[0-9]{1,15}(?:\.(?:[0-9a-f]{2}){0,2500}){2}$"


def cursor_meta(pattern: str) -> Meta:
    """Return the description of the cursors of a list, which have this pattern."""
    return Meta(
        max_length=10_100,
        description="The `next` of the previous page.",
        extra_json_schema={"pattern": pattern},
    )


Cursor = Annotated[str, cursor_meta(_CURSOR)] | UnsetType
PagePosition = tuple[int, str, str]


def encode_cursor(position: PagePosition) -> str:
    """Return the cursor of the page after this position."""
    number, first, second = position
    return f"{number}.{first.encode().hex()}.{second.encode().hex()}"


def decode_cursor(cursor: str | UnsetType | None) -> PagePosition | None:
    """Return the position in a cursor; None for the beginning. Raises Refused."""
    if cursor is None or isinstance(cursor, UnsetType):
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
