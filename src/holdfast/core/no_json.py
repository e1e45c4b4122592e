"""Where a value is no JSON."""

from collections.abc import Mapping
from math import isfinite
from typing import Any


def no_json(value: Any, where: str) -> str | None:
    """What is wrong with it, and where, as in `a.b[0] is a date, which is no JSON`; None: nothing.

    Lists and mappings of any kind will do, as they do for every encoder.
    """
    if isinstance(value, Mapping):
        strange = next((key for key in value if not isinstance(key, str)), None)
        if strange is not None:
            return f"{where} has the key {strange!r}, which is no text"
        return _first(no_json(one, f"{where}.{key}") for key, one in value.items())
    if isinstance(value, list | tuple):
        return _first(no_json(one, f"{where}[{n}]") for n, one in enumerate(value))
    if isinstance(value, float) and not isfinite(value):
        return f"{where} is {value}, which is no JSON"
    if value is None or isinstance(value, str | int | float):
        return None
    return f"{where} is a {type(value).__name__}, which is no JSON"


def _first(found: Any) -> str | None:
    return next((one for one in found if one is not None), None)
