"""The cursors of lists: opaque to clients, and refused where they are not ours."""

import base64
import binascii
from typing import Annotated

import msgspec
from fastapi import Query

from holdfast.errors import Refused

Cursor = Annotated[str | None, Query(max_length=2000, description="The `next` of the page before.")]
Place = tuple[int, str, str]

_decoder: msgspec.json.Decoder[Place] = msgspec.json.Decoder(Place)


def cursor_of(place: Place) -> str:
    """The cursor that goes on after this place."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def place_of(cursor: str | None) -> Place | None:
    """The place that a cursor names; None for the beginning. Raises Refused."""
    if cursor is None:
        return None
    padded = cursor + "=" * (-len(cursor) % 4)
    try:
        return _decoder.decode(base64.urlsafe_b64decode(padded.encode()))
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise Refused(
            "this cursor is none of ours", code="CURSOR_INVALID", hint="begin without one"
        ) from error
