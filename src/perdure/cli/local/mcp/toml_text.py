"""Edits of a TOML file as text: one table is put or removed, every other line stays."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any


def put_table(text: str, path: Sequence[str], values: Mapping[str, Any]) -> str:
    """Return the text with a table of plain values. Raises ValueError."""
    data = tomllib.loads(text)
    block = _rendered(path, values)
    if _has(data, path):
        start, end = _span(text, path)
        following = text[end:]
        return text[:start] + block + ("\n" if following.strip() else "") + following
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    return text + gap + block


def remove_table(text: str, path: Sequence[str]) -> str:
    """Return the text without a table and its sub-tables. Raises ValueError."""
    tomllib.loads(text)
    start, end = _span(text, path)
    before, after = text[:start], text[end:]
    return (before.rstrip("\n") + "\n" if before.strip() else "") + (
        "\n" + after if before.strip() and after.strip() else after
    )


def _has(data: Mapping[str, Any], path: Sequence[str]) -> bool:
    value: Any = data
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return False
        value = value[key]
    return True


def _span(text: str, path: Sequence[str]) -> tuple[int, int]:
    """Return where a table with its sub-tables begins and ends.

    Raises ValueError if it is written in another way than under a header of its own.
    """
    name = r"\s*\.\s*".join(rf'(?:{re.escape(key)}|"{re.escape(key)}")' for key in path)
    own = re.compile(rf"^[ \t]*\[\s*{name}\s*(?:\.[^\]]*)?\][ \t]*(?:#.*)?$", re.MULTILINE)
    headers = [match.start() for match in re.finditer(r"^[ \t]*\[", text, re.MULTILINE)]
    starts = [match.start() for match in own.finditer(text)]
    if not starts:
        raise ValueError("the table has no header of its own")
    others = [at for at in headers if at > starts[0] and at not in starts]
    end = others[0] if others else len(text)
    if any(at > end for at in starts):
        raise ValueError("the parts of the table are not together")
    return starts[0], end


def _rendered(path: Sequence[str], values: Mapping[str, Any]) -> str:
    # Strings, lists, numbers and booleans of JSON are written in the same way in TOML.
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join([f"[{'.'.join(path)}]", *lines]) + "\n"
