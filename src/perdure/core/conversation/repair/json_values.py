"""Values as JSON can carry them: whole characters, finite numbers, no cycles, no objects."""

import json
from math import isfinite
from typing import Any, Final

MAX_DEPTH: Final = 100  # deeper than any tool's arguments, shallower than every JSON reader's limit
MAX_NODES: Final = 1_000_000  # of objects and lists; what has more is a cycle, or as bad as one
_ROOM: Final = 10  # what is made of something too deep must fit into a message
_MAX_BITS: Final = 1_024  # an integer of more is no JSON to most readers


def is_clean(text: str) -> bool:
    """Whether the text has only whole characters (no lone surrogates)."""
    return text.isascii() or _encodes(text)


def clean(text: str) -> str:
    """The text with halves of characters joined, or marked where the other half is missing."""
    if is_clean(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def is_plain(value: object) -> bool:
    """Whether the value is JSON already, as it stands."""
    if type(value) is str:
        return value.isascii() or _encodes(value)
    level: list[Any] = [[value]]
    nodes = 0
    for _ in range(MAX_DEPTH + 1):
        deeper: list[Any] = []
        for node in level:
            if not _is_plain_node(node, deeper):
                return False
        nodes += len(deeper)
        if not deeper or nodes > MAX_NODES:
            return not deeper
        level = deeper
    return False


def plain(value: object) -> Any:
    """The value as JSON: itself where it is JSON already, else the nearest there is. Never raises.

    Only builtin types and their subclasses are looked into, without calling a method of theirs;
    of any other object its type is named.
    """
    return value if is_plain(value) else _Maker().made(value, MAX_DEPTH - _ROOM)


def shown(value: object) -> str:
    """The value as text: text as it is, anything else as JSON."""
    if issubclass(type(value), str):
        return clean(str.__str__(value))
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"))


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_plain_node(node: Any, deeper: list[Any]) -> bool:
    """Whether the keys and plain values of one container are JSON; its containers go deeper."""
    is_dict = type(node) is dict
    if is_dict and not all(type(key) is str and is_clean(key) for key in node):
        return False
    for value in node.values() if is_dict else node:
        kind = type(value)
        if kind is str:
            if not (value.isascii() or _encodes(value)):
                return False
        elif kind is dict or kind is list:
            deeper.append(value)
        elif not _is_plain_scalar(value):
            return False
    return True


def _is_plain_scalar(value: Any) -> bool:
    kind = type(value)
    if kind is int:
        return bool(value.bit_length() <= _MAX_BITS)
    if kind is float:
        return isfinite(value)
    return kind is bool or value is None


class _Maker:
    """Makes JSON of one value, until there is too much of it."""

    def __init__(self) -> None:
        self._left = MAX_NODES // 10

    def made(self, value: object, depth: int) -> Any:
        kind = type(value)
        if issubclass(kind, dict | list | tuple):
            return self._container(value, depth)
        if issubclass(kind, str):
            return clean(str.__str__(value))
        if issubclass(kind, int | float):
            return _number(value)
        if value is None:
            return None
        return f"[{clean(kind.__name__)}]"

    def _container(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if depth <= 0 or self._left <= 0:
            return "[nested too deeply]"
        if issubclass(type(value), dict):
            items = dict.items(value)
            return {_key(key): self.made(inner, depth - 1) for key, inner in items}
        kind = list if issubclass(type(value), list) else tuple
        return [self.made(inner, depth - 1) for inner in kind.__iter__(value)]


def _number(value: Any) -> Any:
    if type(value) is bool:
        return value
    if issubclass(type(value), int):
        exact = int.__int__(value)
        bits = exact.bit_length()
        return exact if bits <= _MAX_BITS else f"[an integer of {bits} bits]"
    measured = float.__float__(value)
    return measured if isfinite(measured) else str(measured)


def _key(key: object) -> str:
    if issubclass(type(key), str):
        return clean(str.__str__(key))
    return shown(key)
