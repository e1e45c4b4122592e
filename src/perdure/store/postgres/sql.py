"""The SQL of the PostgreSQL store, by name, and texts as PostgreSQL can keep them."""

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from typing import Final

_NAME: Final = re.compile(r"^-- (\w+) --$", re.MULTILINE)
_SPECIAL: Final = re.compile("[\x00\x01]")
_KEPT: Final = {"\x00": "\x01\x01", "\x01": "\x01\x02"}  # in the order of what they stand for
_READ: Final = re.compile("\x01[\x01\x02]")
_KNOWN: Final = 2_000  # names that are not looked at again: a row has some, and most are the same


def statement(name: str) -> str:
    """The statement of this name."""
    return _statements()[name]


@cache
def _statements() -> dict[str, str]:
    folder = files("perdure.store").joinpath("sql", "postgres")
    parts: list[str] = []
    for file in ("statements.sql", "care.sql"):
        parts += _NAME.split(folder.joinpath(file).read_text("utf-8"))[1:]
    return {
        name: sql.strip().removesuffix(";")
        for name, sql in zip(parts[::2], parts[1::2], strict=True)
    }


@lru_cache(_KNOWN)
def packed(text: str) -> str:
    """The text without NUL, which PostgreSQL's texts cannot hold; the order of texts is kept."""
    if "\x00" not in text and "\x01" not in text:
        return text
    return _SPECIAL.sub(lambda found: _KEPT[found[0]], text)


@lru_cache(_KNOWN)
def unpacked(text: str) -> str:
    """The text as it was given."""
    if "\x01" not in text:
        return text
    return _READ.sub(lambda found: "\x00" if found[0][1] == "\x01" else "\x01", text)


def texts(column: Sequence[str | None]) -> str:
    """An array of texts as the server reads it."""
    if not column:
        return "{}"
    joined = '","'.join(["" if one is None else one for one in column])
    is_plain = "\\" not in joined and joined.count('"') == 2 * len(column) - 2
    if is_plain and None not in column:
        return f'{{"{joined}"}}'
    return "{" + ",".join(["NULL" if one is None else _quoted(one) for one in column]) + "}"


def _quoted(text: str) -> str:
    inner = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{inner}"'
