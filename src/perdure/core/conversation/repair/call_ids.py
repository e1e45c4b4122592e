"""Call ids that every provider takes, mapped so that no two become one."""

import hashlib
import re
from collections.abc import Iterable
from typing import Any, Final

MAX_LENGTH: Final = 40
MAX_NAME: Final = 64
_GOOD: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_LENGTH}}}", re.ASCII)
_GOOD_NAME: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_NAME}}}", re.ASCII)
_BAD_CHARACTER: Final = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)
_DIGEST: Final = 12


def is_good(call_id: str) -> bool:
    """Whether every provider takes the id as it is."""
    return _GOOD.fullmatch(call_id) is not None


def is_good_name(name: str) -> bool:
    """Whether every provider takes the tool's name as it is."""
    return _GOOD_NAME.fullmatch(name) is not None


def good_name(name: str) -> str:
    """The tool's name with what no provider takes replaced."""
    return _BAD_CHARACTER.sub("_", name)[:MAX_NAME] or "unnamed"


def id_of(value: object) -> str | None:
    """What a call or result says its id is; None if that is no id."""
    kind: Any = type(value)
    if kind is str:
        return str(value)
    return str(value) if kind is int and value.bit_length() <= 64 else None  # type: ignore[attr-defined]


class Ids:
    """Gives each call an id of its own: the given one where it is good and still free."""

    def __init__(self, given: Iterable[str]) -> None:
        self._given = {call_id for call_id in given if is_good(call_id)}
        self._taken: set[str] = set()
        self._times: dict[str, int] = {}

    def take(self, call_id: str) -> str:
        """The id for the next call that was given this one."""
        if call_id not in self._taken and call_id in self._given:
            self._taken.add(call_id)
            return call_id
        stem = _BAD_CHARACTER.sub("_", call_id)[: MAX_LENGTH - _DIGEST - 1]
        while True:
            number = self._times[call_id] = self._times.get(call_id, 0) + 1
            said = f"{call_id}\0{number}".encode("utf-8", "surrogatepass")
            made = f"{stem}_{hashlib.sha256(said).hexdigest()[:_DIGEST]}"
            if made not in self._taken and made not in self._given:
                self._taken.add(made)
                return made
