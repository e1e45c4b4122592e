"""Values that JSON can represent: valid Unicode, finite numbers, no cycles, no objects."""

import json
from collections.abc import Callable
from math import isfinite
from typing import Any, Final

from perdure.core.json_depth import MAX_DEPTH

MAX_NODES: Final = 1_000_000  # objects and lists; a value with more of them is treated as cyclic
_DEPTH_RESERVE: Final = 10  # a converted value must still fit into a message
_TOO_DEEP: Final = "[nested too deeply]"
_MAX_BITS: Final = 1_024  # most parsers do not accept longer integers

# Returns a simpler value for an object, or the object itself; it must not raise.
Simplify = Callable[[object], object]


def is_valid_text(text: str) -> bool:
    """Report whether the text is valid Unicode, without lone surrogates."""
    return text.isascii() or _is_encodable(text)


def valid_text(text: str) -> str:
    """Return the text with surrogate pairs joined and lone surrogates replaced."""
    if is_valid_text(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def is_json_value(value: object) -> bool:
    """Report whether JSON can represent the value as it is."""
    if type(value) is str:
        return value.isascii() or _is_encodable(value)
    level: list[Any] = [[value]]
    nodes = 0
    for _ in range(MAX_DEPTH + 1):
        deeper: list[Any] = []
        for node in level:
            if not _is_json_container(node, deeper):
                return False
        nodes += len(deeper)
        if not deeper or nodes > MAX_NODES:
            return not deeper
        level = deeper
    return False


def json_value(value: object, simplify: Simplify | None = None) -> Any:
    """Return the value if JSON can represent it, else the nearest value that it can. Never raises.

    Converts builtin types and their subclasses without calling methods of the subclasses. Any
    other object becomes what `simplify` returns for it, or the name of its type.
    """
    if is_json_value(value):
        return value
    return _Converter(simplify).convert(value, MAX_DEPTH - _DEPTH_RESERVE)


def to_text(value: object) -> str:
    """Return text as it is, and anything else as JSON text."""
    if issubclass(type(value), str):
        return valid_text(str.__str__(value))
    return json.dumps(json_value(value), ensure_ascii=False, separators=(",", ":"))


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_json_container(node: Any, deeper: list[Any]) -> bool:
    """Check the keys and scalars of one container; containers in it are appended to `deeper`."""
    is_dict = type(node) is dict
    if is_dict and not all(type(key) is str and is_valid_text(key) for key in node):
        return False
    for value in node.values() if is_dict else node:
        kind = type(value)
        if kind is str:
            if not (value.isascii() or _is_encodable(value)):
                return False
        elif kind is dict or kind is list:
            deeper.append(value)
        elif not _is_json_scalar(value):
            return False
    return True


def _is_json_scalar(value: Any) -> bool:
    kind = type(value)
    if kind is int:
        return bool(value.bit_length() <= _MAX_BITS)
    if kind is float:
        return isfinite(value)
    return kind is bool or value is None


class _Converter:
    """Converts one value to JSON, up to a limit of nodes."""

    def __init__(self, simplify: Simplify | None) -> None:
        self._budget = MAX_NODES // 10
        self._simplify = simplify

    def convert(self, value: object, depth: int) -> Any:
        kind = type(value)
        if issubclass(kind, dict | list | tuple):
            return self._container(value, depth)
        if issubclass(kind, str):
            return valid_text(str.__str__(value))
        if issubclass(kind, int | float):
            return _number(value)
        if value is None:
            return None
        return self._object(value, depth)

    def _object(self, value: object, depth: int) -> Any:
        simple = value if self._simplify is None else self._simplify(value)
        if simple is value:
            return f"[{valid_text(type(value).__name__)}]"
        self._budget -= 1
        return self.convert(simple, depth - 1) if depth > 0 and self._budget > 0 else _TOO_DEEP

    def _container(self, value: Any, depth: int) -> Any:
        self._budget -= 1
        if depth <= 0 or self._budget <= 0:
            return _TOO_DEEP
        if issubclass(type(value), dict):
            items = dict.items(value)
            return {self._key(key, depth): self.convert(v, depth - 1) for key, v in items}
        kind = list if issubclass(type(value), list) else tuple
        return [self.convert(inner, depth - 1) for inner in kind.__iter__(value)]

    def _key(self, key: object, depth: int) -> str:
        return to_text(self.convert(key, depth - 1))


def _number(value: Any) -> Any:
    if type(value) is bool:
        return value
    if issubclass(type(value), int):
        exact = int.__int__(value)
        bits = exact.bit_length()
        return exact if bits <= _MAX_BITS else f"[an integer of {bits} bits]"
    number = float.__float__(value)
    return number if isfinite(number) else str(number)
