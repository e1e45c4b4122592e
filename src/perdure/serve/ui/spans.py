"""Spans and instants as people read them: `2 h ago`, `21 h 58 min`, `14:32`."""

from datetime import UTC, datetime
from typing import Final

SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR


def span(ms: float) -> str:
    """Return a duration in at most two units."""
    ms = max(ms, 0)
    if ms < SECOND:
        return f"{ms:.0f} ms"
    if ms < 10 * SECOND:
        return f"{ms / SECOND:.1f} s".replace(".0 s", " s")
    if ms < MINUTE:
        return f"{ms / SECOND:.0f} s"
    if ms < HOUR:
        return (
            _two(ms, MINUTE, "min", SECOND, "s") if ms < 5 * MINUTE else f"{ms // MINUTE:.0f} min"
        )
    if ms < DAY:
        return _two(ms, HOUR, "h", MINUTE, "min")
    return _two(ms, DAY, "d", HOUR, "h") if ms < 10 * DAY else f"{ms // DAY:.0f} d"


def _two(ms: float, large: int, large_name: str, small: int, small_name: str) -> str:
    first, rest = int(ms // large), int(ms % large // small)
    return f"{first} {large_name} {rest} {small_name}" if rest else f"{first} {large_name}"


def ago(ms: int, now: int) -> str:
    """Return how long ago an instant was."""
    age = now - ms
    return "just now" if age < 5 * SECOND else f"{_coarse(age)} ago"


def left(ms: int, now: int) -> str:
    """Return how much time is left until an instant."""
    rest = ms - now
    return f"{_coarse(rest)} left" if rest > 0 else f"overdue by {_coarse(-rest)}"


def _coarse(ms: float) -> str:
    if ms < MINUTE:
        return f"{max(ms, 0) // SECOND:.0f} s"
    if ms < HOUR:
        return f"{ms // MINUTE:.0f} min"
    return span(ms)


def clock(ms: int) -> str:
    """Return the time of day of an instant, in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S")


def exact(ms: int) -> str:
    """Return an instant exactly, in UTC."""
    text = datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    return f"{text[:-3]} UTC"


def short_number(number: float) -> str:
    """Return a number in at most four characters: `3.7k`, `1.2M`."""
    for size, name in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}".removesuffix(".0") + name
    return f"{number:g}"
