"""Ids as file names: never a path or a reserved name, and reversible unless shortened."""

import hashlib
import re
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from perdure.errors import Refused

RESERVED: Final = frozenset(
    {"storage", "session", "index.json"}
)  # names beside the folders of sessions
_DEVICES: Final = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_LONGEST: Final = 200  # bytes; file systems allow 255, and callers append an extension
_MARK: Final = "~"  # between the beginning and the digest of a shortened name


@lru_cache(maxsize=4096)  # a mirrored folder has a name of the same session in several files
def file_name(value: str) -> str:
    """Return the file name of an id; a long id is shortened to its beginning and a digest."""
    # A lone surrogate has no UTF-8 encoding; "surrogatepass" writes the bytes it would have.
    name = quote(value, safe=" !,=+", encoding="utf-8", errors="surrogatepass").replace("~", "%7E")
    if name.startswith(".") or name in RESERVED or _DEVICES.fullmatch(name) or not name:
        name = f"%{ord(name[0]):02X}{name[1:]}" if name else "%"
    if name.endswith((".", " ")):
        name = f"{name[:-1]}%{ord(name[-1]):02X}"
    if len(name) <= _LONGEST:
        return name
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{name[:120]}{_MARK}{digest}"


def id_from_name(name: str) -> str | None:
    """Return the id of a file name; None if the name was shortened or is not one of ours."""
    if name == "%":
        return ""
    value = unquote(name, encoding="utf-8", errors="surrogatepass")
    return value if file_name(value) == name else None


def reversible_name(value: str) -> str:
    """Return the file name of an id, from which the id can be recovered. Raises Refused."""
    name = file_name(value)
    if _MARK in name or not value:
        raise Refused(
            f"{value[:40]!r}… is too long for the name of a folder"
            if value
            else "a session id must not be empty",
            code="ID_INVALID",
            hint=f"use an id that takes at most {_LONGEST} bytes as a file name",
        )
    return name
