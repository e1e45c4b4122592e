"""Edits of a JSON file as text: one member is put or removed, every other byte stays."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

_SPACE: Final = " \t\r\n"
_DECODER: Final = json.JSONDecoder()


class Member(NamedTuple):
    """Place of one member of an object: from its key to the end of its value."""

    key: str
    start: int
    value: int
    end: int


class _Object(NamedTuple):
    start: int  # of its brace
    members: list[Member]
    end: int  # of its closing brace


def put_member(text: str, path: Sequence[str], value: Any) -> str:
    """Return the text with a value at a path; objects on the way are created.

    Raises ValueError if the text is not JSON, or something on the way is not an object.
    """
    if not text.strip():
        text = "{}\n"
    json.loads(text)
    place = _object(text, _skip(text, 0))
    for depth, key in enumerate(path):
        member = next((item for item in place.members if item.key == key), None)
        if member is None:
            inner = value
            for name in reversed(path[depth + 1 :]):
                inner = {name: inner}
            return _insert(text, place, key, inner)
        if depth == len(path) - 1:
            indent = _indent(text, member.start)
            return text[: member.value] + _rendered(value, indent) + text[member.end :]
        place = _object(text, member.value)
    raise ValueError("the path is empty")


def remove_member(text: str, path: Sequence[str]) -> str:
    """Return the text without the member at a path. Raises ValueError, KeyError."""
    json.loads(text)
    place = _object(text, _skip(text, 0))
    for depth, key in enumerate(path):
        number = [item.key for item in place.members].index(key)
        member = place.members[number]
        if depth < len(path) - 1:
            place = _object(text, member.value)
        elif number > 0:  # with the comma before it
            return text[: place.members[number - 1].end] + text[member.end :]
        elif len(place.members) > 1:
            return text[: member.start] + text[place.members[1].start :]
        else:
            return text[: place.start + 1] + text[place.end :]
    raise ValueError("the path is empty")


def _insert(text: str, place: _Object, key: str, value: Any) -> str:
    if not place.members:
        outer = _indent(text, place.start)
        inner = outer + "  "
        member = f"{json.dumps(key)}: {_rendered(value, inner)}"
        return f"{text[: place.start + 1]}\n{inner}{member}\n{outer}{text[place.end :]}"
    last = place.members[-1]
    inner = _indent(text, last.start)
    member = f"{json.dumps(key)}: {_rendered(value, inner)}"
    return f"{text[: last.end]},\n{inner}{member}{text[last.end :]}"


def _rendered(value: Any, indent: str) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", f"\n{indent}")


def _indent(text: str, at: int) -> str:
    """Return the white space at the beginning of a position's line."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _object(text: str, start: int) -> _Object:
    if start >= len(text) or text[start] != "{":
        raise ValueError("not an object")
    members = list(_members(text, start))
    after = members[-1].end if members else start + 1
    end = text.index("}", after)
    return _Object(start, members, end)


def _members(text: str, start: int) -> Iterator[Member]:
    at = _skip(text, start + 1)
    while text[at] != "}":
        key, after = _DECODER.raw_decode(text, at)
        value = _skip(text, _skip(text, after) + 1)  # after the colon
        _, end = _DECODER.raw_decode(text, value)
        yield Member(key, at, value, end)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at
