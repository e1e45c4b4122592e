"""Terminal output: cleaned text, tables, ages and counts; with --json, only JSON on stdout."""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from perdure.cli.settings import Settings
from perdure.cli.status import ERASE, STATUS
from perdure.core.durations import format_ms
from perdure.core.session.usage import UNPRICED

# Control characters and changes of writing direction, which foreign text may contain.
_HARMFUL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_LONGEST_VALUE: Final = 60
_LONGEST_ARGS: Final = 120


def clean(text: str) -> str:
    """Return the text with control characters escaped; line breaks and tabs stay."""
    return _HARMFUL.sub(lambda match: ascii(match.group())[1:-1], text)


def line(text: str, longest: int = 0) -> str:
    """Return the text in one line, cut if it is longer."""
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
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def age(ms: int) -> str:
    """Return a duration in its one or two largest units, rounded: `0.8s`, `24h`, `3d4h`."""
    if ms < 9_950:
        return f"{max(ms, 0) / 1000:.1f}s"
    for unit in (3_600_000, 60_000, 1_000):
        if ms >= 10 * unit or unit == 1_000:
            ms = (ms + unit // 2) // unit * unit
            break
    return "24h" if ms == 86_400_000 else format_ms(ms)


def plural(count: int, noun: str, verb: str = "") -> str:
    """Return `1 call` or `2 calls`; with the verb `wait`, `1 call waits` or `2 calls wait`."""
    if count != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    elif verb:
        verb = f"{verb}s"
    return f"{count:,} {noun} {verb}".rstrip()


class Terminal:
    """Output of a command. With --json, text goes to stderr and only the JSON to stdout."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._to_err = settings.as_json
        self._has_output = False
        self._color = False if os.environ.get("NO_COLOR") else None
        self._prompt = ""  # shown, and not answered yet

    @property
    def is_live(self) -> bool:
        """True if stdout is a terminal, so that text may be printed as it is streamed."""
        return not self._to_err and sys.stdout.isatty()

    @property
    def has_status_line(self) -> bool:
        """True if a status line may be shown and overwritten."""
        return self.is_live and not self.settings.quiet and os.environ.get("TERM") != "dumb"

    def print(self, text: str = "", *, bold: bool = False, dim: bool = False) -> None:
        """Print a line, unless the command is quiet."""
        if not self.settings.quiet:
            self._write(clean(text), bold=bold, dim=dim)

    def print_lines(self, lines: Sequence[str]) -> None:
        """Print lines, the first of them bold."""
        for number, text in enumerate(lines):
            self.print(text, bold=number == 0)

    def print_gap(self) -> None:
        """Print an empty line, unless nothing was printed before it."""
        if self._has_output:
            self.print()

    def print_result(self, text: str) -> None:
        """Print a line that is the result itself, even if the command is quiet."""
        self._write(clean(text))

    def print_part(self, text: str, *, dim: bool = False) -> None:
        """Print a part of a line, unless the command is quiet."""
        if not self.settings.quiet:
            self._write(clean(text), end=False, dim=dim)

    def open_prompt(self, text: str) -> None:
        """Show a prompt. At a terminal it stays the last line, until it is closed."""
        self.print_part(text)
        self._prompt = text if self.is_live else ""

    def close_prompt(self) -> None:
        """Record that the prompt was answered."""
        self._prompt = ""

    def _write(self, text: str, *, end: bool = True, bold: bool = False, dim: bool = False) -> None:
        styled = click.style(text, bold=bold or None, dim=dim or None) if bold or dim else text
        self._has_output = True
        STATUS.erase()
        if self._prompt:
            click.echo(ERASE, nl=False, color=True)
        click.echo(styled, nl=end, err=self._to_err, color=self._color)
        if self._prompt and end:
            click.echo(self._prompt, nl=False)

    def print_json(self, value: Any) -> None:
        """Print the one JSON object of a command."""
        STATUS.erase()
        click.echo(json.dumps(value, ensure_ascii=False))

    def print_either(self, value: Any, show: Callable[[], None]) -> None:
        """Print the JSON with --json, or else call `show`."""
        if self.settings.as_json:
            self.print_json(value)
        else:
            show()

    def print_table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print columns; a line is cut at the edge of the terminal."""
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


# Counts to show, each with a label and with the parts of it to show in parentheses.
_USAGE_PARTS: Final = {
    "inputTokens": (
        "tokens in",
        {"cacheReadTokens": "read from the cache", "cacheWriteTokens": "written to it"},
    ),
    "outputTokens": ("out", {"reasoningTokens": "for reasoning"}),
}


def usage_text(usage: Mapping[str, float]) -> str:
    """Return text such as `3 requests, 1,204 tokens in, 310 out (200 for reasoning), $0.0042`."""
    requests = int(usage.get("requests", 0))
    if not requests:
        return "none yet"
    texts = [plural(requests, "request")]
    for name, (label, parts) in _USAGE_PARTS.items():
        inner = [f"{usage[part]:,.0f} {words}" for part, words in parts.items() if usage.get(part)]
        texts.append(f"{usage.get(name, 0):,.0f} {label}" + f" ({', '.join(inner)})" * bool(inner))
    return f"{', '.join(texts)}, {_cost(usage)}"


def _cost(usage: Mapping[str, float]) -> str:
    if "cost" not in usage:
        return "cost unknown (no price for the model)"
    cost, unpriced = usage["cost"], int(usage.get(UNPRICED, 0))
    dollars = f"${cost:,.2f}" if cost >= 1 else f"${cost:.4f}"
    also = f" and {plural(unpriced, 'request')} without a known price" if unpriced else ""
    return f"{dollars}{also}"
