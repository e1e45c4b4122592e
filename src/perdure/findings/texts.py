"""Text of users and models in one line: cleaned, cut, with ages and counts."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from perdure.errors import PerdureError
from perdure.views.durations import format_ms

# Control characters and changes of writing direction, which foreign text may contain.
_HARMFUL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_LONGEST_VALUE: Final = 60
_LONGEST_ARGS: Final = 120
_encode: Final = json.JSONEncoder(ensure_ascii=False, default=str).encode


def clean(text: str) -> str:
    """Return the text with control characters escaped; line breaks and tabs stay."""
    if text.isprintable():  # most texts are, and nothing harmful is
        return text
    return _HARMFUL.sub(lambda match: ascii(match.group())[1:-1], text)


def line(text: str, longest: int = 0) -> str:
    """Return the text in one line, cut if it is longer."""
    if text.isprintable() and "  " not in text:
        flat = text.strip(" ")
    else:
        flat = " ".join(clean(text).split())
    return flat if not longest or len(flat) <= longest else f"{flat[: longest - 1]}…"


def call_text(tool: str, args: Mapping[str, Any]) -> str:
    """Return a call in the form `refund(order_id=991, cents=4200)`."""
    return f"{line(tool)}({arguments_text(args)})"


def arguments_text(args: Mapping[str, Any] | None) -> str:
    """Return arguments in the form `order_id=991, cents=4200`."""
    shown = [
        f"{line(str(k))}={line(value_text(v), _LONGEST_VALUE)}" for k, v in (args or {}).items()
    ]
    return line(", ".join(shown), _LONGEST_ARGS)


def value_text(value: Any) -> str:
    """Return a JSON value as text; a string without quotes."""
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else _encode(value)


def value_line(value: Any, longest: int = 200) -> str:
    """Return a JSON value as one line of text, cut if it is longer."""
    return line(value_text(value), longest)


def age(ms: int) -> str:
    """Return a duration in its one or two largest units, rounded: `0.8s`, `24h`, `3d4h`."""
    if ms < 9_950:
        return f"{max(ms, 0) / 1000:.1f}s"
    for unit in (3_600_000, 60_000, 1_000):
        if ms >= 10 * unit or unit == 1_000:
            ms = (ms + unit // 2) // unit * unit
            break
    return "24h" if ms == 86_400_000 else format_ms(ms)


def held_back_text(problem: PerdureError, now: int) -> str:
    """Return a predicate that says how long one is held back: `is held back (HELD_BACK), …`."""
    details = problem.details
    if "until" in details:
        return f"is held back ({problem.code}), and tried again in {age(details['until'] - now)}"
    return f"is held back ({problem.code}), and has not moved for {age(now - details['since'])}"


def plural(count: int, noun: str, verb: str = "") -> str:
    """Return `1 call` or `2 calls`; with the verb `wait`, `1 call waits` or `2 calls wait`."""
    if count != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    elif verb:
        verb = f"{verb}s"
    return f"{count:,} {noun} {verb}".rstrip()
