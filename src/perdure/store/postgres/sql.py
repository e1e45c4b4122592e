"""SQL statements of the PostgreSQL backend by name, and the encoding of texts for PostgreSQL."""

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from typing import Final

_NAME: Final = re.compile(r"^-- (\w+) --$", re.MULTILINE)
_SPECIAL: Final = re.compile("[\x00\x01]")
_ENCODED: Final = {"\x00": "\x01\x01", "\x01": "\x01\x02"}  # which keeps the order of texts
_ENCODED_PAIR: Final = re.compile("\x01[\x01\x02]")
_CACHED: Final = 2_000  # texts; a row has several, and most of them repeat


def statement(name: str) -> str:
    """Return the statement with this name."""
    return _statements()[name]


@cache
def _statements() -> dict[str, str]:
    folder = files("perdure.store").joinpath("sql", "postgres")
    parts: list[str] = []
    for file in ("statements.sql", "inspect.sql"):
        parts += _NAME.split(folder.joinpath(file).read_text("utf-8"))[1:]
    return {
        name: sql.strip().removesuffix(";")
        for name, sql in zip(parts[::2], parts[1::2], strict=True)
    }


@lru_cache(_CACHED)
def pack_text(text: str) -> str:
    """Encode a text without NUL, which PostgreSQL cannot store; keeps the order of texts."""
    if "\x00" not in text and "\x01" not in text:
        return text
    return _SPECIAL.sub(lambda match: _ENCODED[match[0]], text)


@lru_cache(_CACHED)
def unpack_text(text: str) -> str:
    """Decode a text of `pack_text`."""
    if "\x01" not in text:
        return text
    return _ENCODED_PAIR.sub(lambda match: "\x00" if match[0][1] == "\x01" else "\x01", text)


def text_array(column: Sequence[str | None]) -> str:
    """Return an array of texts in the server's text format."""
    if not column:
        return "{}"
    joined = '","'.join(["" if text is None else text for text in column])
    is_plain = "\\" not in joined and joined.count('"') == 2 * len(column) - 2
    if is_plain and None not in column:
        return f'{{"{joined}"}}'
    return "{" + ",".join(["NULL" if text is None else _quote(text) for text in column]) + "}"


def _quote(text: str) -> str:
    inner = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{inner}"'
