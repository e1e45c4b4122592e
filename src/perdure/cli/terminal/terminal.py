"""What people see: text that cannot harm a terminal, tables, ages; JSON alone on stdout."""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from perdure.cli.settings import Settings
from perdure.core.durations import format_ms
from perdure.core.session.usage import UNPRICED

# Control characters, and what turns the direction of writing: text from outside may hold them.
_HARMFUL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_LONGEST_VALUE: Final = 60
_LONGEST_ARGS: Final = 120


def clean(text: str) -> str:
    """The text with control characters written out; line breaks and tabs stay."""
    return _HARMFUL.sub(lambda found: ascii(found.group())[1:-1], text)


def line(text: str, longest: int = 0) -> str:
    """The text in one line, cut if it is longer."""
    flat = " ".join(clean(text).split())
    return flat if not longest or len(flat) <= longest else f"{flat[: longest - 1]}…"


def call_text(tool: str, args: Mapping[str, Any]) -> str:
    """A call as people read it: `refund(order_id=991, cents=4200)`."""
    shown = [f"{line(str(k))}={line(value_text(v), _LONGEST_VALUE)}" for k, v in args.items()]
    return f"{line(tool)}({line(', '.join(shown), _LONGEST_ARGS)})"


def value_text(value: Any) -> str:
    """A JSON value in short."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def age(ms: int) -> str:
    """A stretch of time in its one or two largest units, rounded: `0.8s`, `24h`, `3d4h`."""
    if ms < 9_950:
        return f"{max(ms, 0) / 1000:.1f}s"
    for unit in (3_600_000, 60_000, 1_000):
        if ms >= 10 * unit or unit == 1_000:
            ms = (ms + unit // 2) // unit * unit
            break
    return "24h" if ms == 86_400_000 else format_ms(ms)


class Terminal:
    """Where a command writes. With --json the words go to stderr and stdout has the answer."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._to_err = settings.as_json
        self._said = False
        self._color = False if os.environ.get("NO_COLOR") else None

    @property
    def is_live(self) -> bool:
        """Whether somebody watches the words come."""
        return not self._to_err and sys.stdout.isatty()

    def say(self, text: str = "", *, bold: bool = False, dim: bool = False) -> None:
        """A line for people."""
        if not self.settings.quiet:
            self._write(clean(text), bold=bold, dim=dim)

    def gap(self) -> None:
        """An empty line, if something stands before it."""
        if self._said:
            self.say()

    def result(self, text: str) -> None:
        """A line that is the answer itself: not silenced by -q."""
        self._write(clean(text))

    def piece(self, text: str, *, dim: bool = False) -> None:
        """A part of a line."""
        if not self.settings.quiet:
            self._write(clean(text), end=False, dim=dim)

    def _write(self, text: str, *, end: bool = True, bold: bool = False, dim: bool = False) -> None:
        styled = click.style(text, bold=bold or None, dim=dim or None) if bold or dim else text
        self._said = True
        click.echo(styled, nl=end, err=self._to_err, color=self._color)

    def answer(self, value: Any) -> None:
        """The one JSON object of a command."""
        click.echo(json.dumps(value, ensure_ascii=False))

    def either(self, value: Any, show: Callable[[], None]) -> None:
        """The JSON with --json, else what people read."""
        if self.settings.as_json:
            self.answer(value)
        else:
            show()

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns with a space between; the last is cut at the edge of the terminal."""
        cells = [[line(cell) for cell in row] for row in (head, *rows)]
        widths = [max(len(row[n]) for row in cells) for n in range(len(head))]
        for number, row in enumerate(cells):
            text = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self._write(self._cut(text.rstrip()), bold=number == 0)

    def _cut(self, text: str) -> str:
        if not self.is_live:
            return text
        width = os.get_terminal_size(sys.stdout.fileno()).columns
        return f"{text[: width - 1]}…" if 40 <= width < len(text) else text


# What is told, and what is told of a part of it.
_TOLD: Final = {
    "inputTokens": (
        "tokens in",
        {"cacheReadTokens": "read from a cache", "cacheWriteTokens": "written to one"},
    ),
    "outputTokens": ("out", {"reasoningTokens": "for reasoning"}),
}


def usage_text(usage: Mapping[str, float]) -> str:
    """Such as `3 requests, 1,204 tokens in (800 read from a cache), 310 out, $0.0042`."""
    requests = int(usage.get("requests", 0))
    if not requests:
        return "none yet"
    told = [f"{requests:,} {_requests(requests)}"]
    for name, (words, parts) in _TOLD.items():
        inner = [f"{usage[part]:,.0f} {what}" for part, what in parts.items() if usage.get(part)]
        told.append(f"{usage.get(name, 0):,.0f} {words}" + f" ({', '.join(inner)})" * bool(inner))
    return f"{', '.join(told)}, {_cost(usage)}"


def _cost(usage: Mapping[str, float]) -> str:
    if "cost" not in usage:
        return "cost not known (no price for the model)"
    cost, unpriced = usage["cost"], int(usage.get(UNPRICED, 0))
    dollars = f"${cost:,.2f}" if cost >= 1 else f"${cost:.4f}"
    also = f" and {unpriced:,} {_requests(unpriced)} without a known price" * bool(unpriced)
    return f"{dollars}{also}"


def _requests(count: int) -> str:
    return "request" if count == 1 else "requests"
