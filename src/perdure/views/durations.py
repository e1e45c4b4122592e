"""Durations: seconds or text as users write them, parsed to whole milliseconds."""

import re
from typing import Final

from perdure.errors import Refused

MAX_MS: Final = 36_500 * 86_400_000  # a hundred years: a later instant does not fit into a date

_UNITS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_NUMBER: Final = r"[0-9]+(?:\.[0-9]+)?"
_BARE: Final = re.compile(_NUMBER)
_UNIT_PART: Final = re.compile(rf"({_NUMBER})\s*(ms|s|m|h|d|w)\s*")
_DURATION: Final = re.compile(rf"(?:{_UNIT_PART.pattern})+")


def duration_ms(value: str | float) -> int:
    """Return whole milliseconds: a number or `"90"` is seconds, else `"1h30m"`, `"500ms"`.

    Anything above zero is at least one millisecond, because zero means no limit.
    """
    ms = _text_ms(value) if isinstance(value, str) else _seconds_ms(value)
    if not 0 <= ms <= MAX_MS:  # also refuses NaN
        raise _refused(value)
    return max(round(ms), 1) if ms > 0 else 0


def format_ms(ms: int) -> str:
    """Return a duration as text: `1h30m`, `90s` as `1m30s`, `0s`."""
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, ms = divmod(ms, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _seconds_ms(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _refused(value)
    # An int too large for a float would overflow; it is out of range in any case.
    return value * 1_000 if -MAX_MS < value < MAX_MS else float("nan")


def _text_ms(value: str) -> float:
    text = value.strip().lower()
    if _BARE.fullmatch(text):
        return float(text) * 1_000
    if not _DURATION.fullmatch(text):
        raise _refused(value)
    return sum(float(number) * _UNITS[unit] for number, unit in _UNIT_PART.findall(text))


def _refused(value: object) -> Refused:
    text = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:40]}…"
    return Refused(
        f"{text} is not a duration",
        code="DURATION_INVALID",
        hint='write seconds or text, such as 90, "90s", "1h30m" or "7d"',
    )
