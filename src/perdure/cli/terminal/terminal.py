"""Terminal output: cleaned text, tables, ages and counts; with --json, only JSON on stdout."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from perdure.cli.settings import Settings
from perdure.cli.terminal.status_line import ERASE, STATUS
from perdure.findings.texts import (
    age,
    arguments_text,
    call_text,
    clean,
    line,
    plural,
    value_text,
)

__all__ = [
    "Terminal",
    "age",
    "arguments_text",
    "call_text",
    "clean",
    "line",
    "plural",
    "usage_text",
    "value_text",
]


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
        """Print the one JSON object of a command, or a view as JSON."""
        STATUS.erase()
        shown = value if isinstance(value, dict | list) else value.to_json()
        click.echo(json.dumps(shown, ensure_ascii=False))

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
    if usage.get("cost") is None:
        return "cost unknown (no price for the model)"
    cost, unpriced = usage["cost"], int(usage.get("unpricedRequests") or 0)
    dollars = f"${cost:,.2f}" if cost >= 1 else f"${cost:.4f}"
    also = f" and {plural(unpriced, 'request')} without a known price" if unpriced else ""
    return f"{dollars}{also}"
