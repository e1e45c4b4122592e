"""Call ids that every provider accepts, and distinct replacements for all others."""

import hashlib
import re
from collections.abc import Iterable
from typing import Any, Final

MAX_LENGTH: Final = 40
MAX_NAME: Final = 64
_VALID_ID: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_LENGTH}}}", re.ASCII)
_VALID_NAME: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_NAME}}}", re.ASCII)
_BAD_CHARACTER: Final = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)
_DIGEST: Final = 12


def is_valid_id(call_id: str) -> bool:
    """Report whether every provider accepts the id."""
    return _VALID_ID.fullmatch(call_id) is not None


def is_valid_name(name: str) -> bool:
    """Report whether every provider accepts the name of a tool."""
    return _VALID_NAME.fullmatch(name) is not None


def valid_name(name: str) -> str:
    """Return the name of a tool with invalid characters replaced."""
    return _BAD_CHARACTER.sub("_", name)[:MAX_NAME] or "unnamed"


def parse_id(value: object) -> str | None:
    """Return the id of a call or result as text; None if the value is not an id."""
    kind: Any = type(value)
    if kind is str:
        return str(value)
    return str(value) if kind is int and value.bit_length() <= 64 else None  # type: ignore[attr-defined]


class CallIds:
    """Assigns each call a unique id: its own if that is valid and unused."""

    def __init__(self, call_ids: Iterable[str]) -> None:
        self._valid = {call_id for call_id in call_ids if is_valid_id(call_id)}
        self._assigned: set[str] = set()
        self._counts: dict[str, int] = {}

    def assign(self, call_id: str) -> str:
        """Return the id for the next call with this id in the history."""
        if call_id not in self._assigned and call_id in self._valid:
            self._assigned.add(call_id)
            return call_id
        stem = _BAD_CHARACTER.sub("_", call_id)[: MAX_LENGTH - _DIGEST - 1]
        while True:
            number = self._counts[call_id] = self._counts.get(call_id, 0) + 1
            seed = f"{call_id}\0{number}".encode("utf-8", "surrogatepass")
            new_id = f"{stem}_{hashlib.sha256(seed).hexdigest()[:_DIGEST]}"
            if new_id not in self._assigned and new_id not in self._valid:
                self._assigned.add(new_id)
                return new_id
