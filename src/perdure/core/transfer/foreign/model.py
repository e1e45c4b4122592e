"""Model of a foreign session: its messages and their instants."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class ForeignMessage:
    """One message, in any provider's format, and its instant (0: unknown).

    `by_id` has the instants of its calls or results, if each has its own.
    """

    message: Any
    at: int = 0
    by_id: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForeignSession:
    """One session of another program."""

    format: str
    messages: tuple[ForeignMessage, ...]
    session_id: str | None = None
    agent: str | None = None
    other_agents: tuple[str, ...] = ()  # agents whose conversations the file also contains
    notes: tuple[str, ...] = ()  # what the reader left out


def text_in(value: object) -> str | None:
    """Return the value if it is a text that is not empty."""
    return value if isinstance(value, str) and value else None


def dict_in(value: object) -> dict[str, Any]:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def list_in(value: object) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def kind_in(value: object) -> str:
    """Return the `type` of an object, or an empty text."""
    return text_in(dict_in(value).get("type")) or ""


_ISO: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9})\d*)?(Z|[+-]\d\d:?\d\d)?",
    re.ASCII,
)
_MILLISECONDS_FROM: Final = 100_000_000_000  # as seconds that would be the year 5138
_LATEST: Final = 2**53


def instant(value: object) -> int:
    """Return milliseconds since 1970; 0 for a value that is not an instant."""
    if isinstance(value, str):
        return _iso(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    if not 0 < value < _LATEST:
        return 0
    return int(value if value >= _MILLISECONDS_FROM else value * 1000)


def _iso(text: str) -> int:
    match = _ISO.fullmatch(text.strip())
    if match is None:
        return 0
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction = int((match[7] or "0").ljust(3, "0")[:3])
    seconds = ((_days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second
    return max(0, (seconds - _offset(match[8])) * 1000 + fraction)


def _offset(zone: str | None) -> int:
    if zone in (None, "Z"):
        return 0
    digits = str(zone)[1:].replace(":", "")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -seconds if str(zone).startswith("-") else seconds


def _days(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01; years begin in March, so that the leap day comes last."""
    year -= month <= 2
    months = (month + 9) % 12
    first_day = 365 * year + year // 4 - year // 100 + year // 400
    return first_day + (153 * months + 2) // 5 + day - 1 - 719_468
