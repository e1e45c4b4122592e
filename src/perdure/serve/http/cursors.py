"""The cursors of lists: opaque to clients, and refused where they are not ours."""

import re
from typing import Annotated, Final

from fastapi import Query

from perdure.errors import Refused

_CURSOR: Final = r"^[0-9]{1,15}(?:\.(?:[0-9a-f]{2}){0,900}){2}$"

Cursor = Annotated[
    str | None,
    Query(
        max_length=4000,
        description="The `next` of the page before.",
        json_schema_extra={"pattern": _CURSOR},
    ),
]
Place = tuple[int, str, str]


def cursor_of(place: Place) -> str:
    """The cursor that goes on after this place."""
    number, first, second = place
    return f"{number}.{first.encode().hex()}.{second.encode().hex()}"


def place_of(cursor: str | None) -> Place | None:
    """The place that a cursor names; None for the beginning. Raises Refused."""
    if cursor is None:
        return None
    if re.fullmatch(_CURSOR, cursor) is None:
        raise Refused(
            "this cursor is none of ours", code="CURSOR_INVALID", hint="begin without one"
        )
    number, first, second = cursor.split(".")
    return int(number), _text(first), _text(second)


def _text(digits: str) -> str:
    return bytes.fromhex(digits).decode(errors="replace")
