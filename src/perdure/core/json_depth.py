"""Depth of JSON: how deeply objects and lists may be nested in each other.

Parsers and encoders stop at about 1,000 levels, less what the stack holds at that moment, so a
value near that limit may be stored and then not be read. What enters is therefore bounded far
below it, and what was stored before is reported as damaged instead of failing somewhere else.
"""

import re
from math import isfinite
from typing import Any, Final

import msgspec

from perdure.errors import Corrupt, Refused

MAX_DEPTH: Final = 100  # of a value: metadata, arguments, a result
ENVELOPE: Final = 10  # levels that a body, an event or a line of a file adds around a value
READABLE_DEPTH: Final = 500  # of stored data; earlier versions had no limit
TOO_DEEP: Final = f"nested deeper than {MAX_DEPTH} levels"
_HINT: Final = "flatten it, or pass the nested part as JSON text"
# Possessive, and a string without its end goes to the end: no data is matched in two ways.
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)'
_NOT_BRACKETS: Final = re.compile(_STRING + rb'|[^\[\]{}"]+', re.DOTALL)
_TOKENS: Final = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)
_PRUNED: Final = b'"[nested too deeply]"'
_AS_LISTS: Final = bytes.maketrans(b"{}", b"[]")


def is_deeper(data: bytes | str, limit: int) -> bool:
    """Return whether JSON is nested deeper than `limit`; data that is not JSON may be either."""
    raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
    if len(raw) <= limit or raw.count(b"[") + raw.count(b"{") <= limit:
        return False
    brackets = _NOT_BRACKETS.sub(b"", raw).translate(_AS_LISTS)
    for _ in range(limit):  # each round removes the innermost level
        shorter = brackets.replace(b"[]", b"")
        if len(shorter) == len(brackets):
            break
        brackets = shorter
    return brackets.count(b"[") > 0


def check_body_depth(data: bytes, label: str) -> None:
    """Check JSON that contains values, such as a body or a line. Raises Refused TOO_DEEP."""
    if is_deeper(data, MAX_DEPTH + ENVELOPE):
        raise too_deep(label)


def encode_value(value: Any, label: str) -> bytes:
    """Return a value as JSON. Raises Refused TOO_DEEP, TypeError or ValueError.

    JSON has no NaN and no infinity, which the encoder writes as null.
    """
    try:
        data = msgspec.json.encode(value)
    except RecursionError as error:  # also a value that contains itself
        raise too_deep(label) from error
    if is_deeper(data, MAX_DEPTH):
        raise too_deep(label)
    if b"null" in data and (number := _non_finite(msgspec.to_builtins(value))) is not None:
        raise ValueError(f"{number} is not a number of JSON")
    return data


def _non_finite(value: Any) -> float | None:
    """Return the first number in a value that JSON does not have."""
    if isinstance(value, float):
        return None if isfinite(value) else value
    if not isinstance(value, dict | list | tuple | set | frozenset):
        return None
    items = value.values() if isinstance(value, dict) else value
    numbers = (_non_finite(item) for item in items)
    return next((number for number in numbers if number is not None), None)


def too_deep(label: str) -> Refused:
    """Return the error for a value that is nested too deeply."""
    return Refused(f"{label} is {TOO_DEEP}", code="TOO_DEEP", hint=_HINT)


def check_readable(data: bytes) -> None:
    """Check stored JSON before it is decoded. Raises Corrupt."""
    if is_deeper(data, READABLE_DEPTH):
        raise Corrupt(
            f"it is nested deeper than {READABLE_DEPTH} levels", hint="perdure doctor reports it"
        )


def pruned(data: bytes) -> bytes:
    """Return JSON in which a mark replaces what is nested too deeply; for display only."""
    parts: list[bytes] = []
    depth, start = 0, 0
    for token in _TOKENS.finditer(data):
        bracket = token[0]
        if bracket in (b"[", b"{"):
            depth += 1
            if depth == MAX_DEPTH + 1:
                parts += (data[start : token.start()], _PRUNED)
        elif bracket in (b"]", b"}"):
            if depth == MAX_DEPTH + 1:
                start = token.end()
            depth -= 1
    return b"".join([*parts, data[start:]])
