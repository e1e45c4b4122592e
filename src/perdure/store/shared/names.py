"""Ids as names of files: never a path, never a name that means something, always the way back."""

import hashlib
import re
from typing import Final
from urllib.parse import quote, unquote

from perdure.errors import Refused

RESERVED: Final = frozenset({"storage", "session", "index.json"})  # what stands beside the sessions
_DEVICES: Final = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_LONGEST: Final = 200  # bytes; file systems take 255, and a name may get an ending
_MARK: Final = "~"  # between the beginning and the digest of a name that is too long


def name_of(value: str) -> str:
    """The name of an id. One that is too long has only its beginning and a digest."""
    # A lone surrogate has no UTF-8; it is kept as the bytes that it would have.
    name = quote(value, safe=" !,=+", encoding="utf-8", errors="surrogatepass").replace("~", "%7E")
    if name.startswith(".") or name in RESERVED or _DEVICES.fullmatch(name) or not name:
        name = f"%{ord(name[0]):02X}{name[1:]}" if name else "%"
    if name.endswith((".", " ")):
        name = f"{name[:-1]}%{ord(name[-1]):02X}"
    if len(name) <= _LONGEST:
        return name
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{name[:120]}{_MARK}{digest}"


def id_of(name: str) -> str | None:
    """The id that has this name; None if it cannot be known from it."""
    if name == "%":
        return ""
    value = unquote(name, encoding="utf-8", errors="surrogatepass")
    return value if name_of(value) == name else None


def reversible_name(value: str) -> str:
    """The name of an id that must be found again by looking at the names alone."""
    name = name_of(value)
    if _MARK in name or not value:
        raise Refused(
            f"{value[:40]!r}… is too long for the name of a folder"
            if value
            else "a session id must not be empty",
            code="ID_INVALID",
            hint=f"use an id that takes at most {_LONGEST} bytes as a file name",
        )
    return name
