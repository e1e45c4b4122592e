"""The status line: the last line of a terminal, overwritten while something runs."""

import os
import shutil
import sys
from typing import Final

import click

ERASE: Final = "\r\x1b[K"


class StatusLine:
    """The one status line of this process. Whatever else prints must erase it first."""

    def __init__(self) -> None:
        self.is_shown = False

    def show(self, text: str) -> None:
        """Show the text, in place of what is shown."""
        width = shutil.get_terminal_size().columns
        shown = text if len(text) < width else f"{text[: width - 2]}…"
        color = False if os.environ.get("NO_COLOR") else None
        click.echo(ERASE, nl=False, color=True)
        click.echo(click.style(shown, dim=True), nl=False, color=color)
        self.is_shown = True

    def erase(self) -> None:
        """Erase it, if it is shown."""
        if self.is_shown:
            self.is_shown = False
            click.echo(ERASE, nl=False, color=True)

    def interrupt(self, text: str) -> None:
        """Print a line on stderr from a signal handler, which must not use buffered streams."""
        start = ERASE if self.is_shown else "\n" if sys.stderr.isatty() else ""
        self.is_shown = False
        os.write(2, f"{start}{text}\n".encode())


STATUS: Final = StatusLine()
