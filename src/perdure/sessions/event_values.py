"""Values in events: Python objects that JSON does not know keep their value as text or a list."""

import base64
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

from perdure.core.conversation.repair.json_values import json_value


def event_value(event: object) -> Any:
    """Return an event as JSON values. Never raises.

    Dates and times become ISO text; Decimal, UUID, Path and the like their text; a timedelta its
    seconds; bytes base64; sets lists; an Enum its value; a dataclass an object. Anything else that
    is not JSON becomes the name of its type in brackets.
    """
    return json_value(event, _simplify)


def _simplify(value: object) -> object:
    try:
        for types, convert in _CONVERTERS:
            if isinstance(value, types):
                return convert(value)
        is_record = is_dataclass(value) and not isinstance(value, type)
        return _fields(value) if is_record else value
    except Exception:  # noqa: BLE001 - a user's type may raise anything
        return value


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _base64(value: Any) -> str:
    return base64.b64encode(bytes(value)).decode("ascii")


def _sorted(items: Any) -> list[Any]:
    """Return the items in a stable order if they have one."""
    try:
        return sorted(items)
    except TypeError:
        return list(items)


_CONVERTERS: Final[tuple[tuple[tuple[type, ...], Callable[[Any], object]], ...]] = (
    ((datetime, date, time), lambda value: value.isoformat()),
    ((timedelta,), lambda value: value.total_seconds()),
    ((Decimal, Fraction, UUID, PurePath, complex), str),
    ((bytes, bytearray, memoryview), _base64),
    ((Enum,), lambda value: value.value),
    ((AbstractSet,), _sorted),
    ((Mapping,), dict),
    ((BaseException,), lambda value: f"{type(value).__name__}: {value}"),
)
