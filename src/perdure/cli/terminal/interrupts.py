"""Ctrl-C at a terminal, and questions that it ends at once."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import click

from perdure.errors import Refused


def is_confirmed(target: str, question: str = "", *, yes: bool) -> bool:
    """Return True if something may be deleted. Raises Refused if nobody can be asked."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise Refused(
            f"deleting {target} cannot be undone, and there is no terminal to ask for confirmation",
            code="NOT_CONFIRMED",
            hint="add --yes to delete it",
        )
    with asking():
        return click.confirm(question or f"Delete {target}?", err=True)


@contextmanager
def asking() -> Iterator[None]:
    """Let Ctrl-C end a question at once: the event loop, which it would cancel, waits for it."""
    with handle_interrupts(signal.default_int_handler):
        yield


@contextmanager
def handle_interrupts(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle SIGINT so inside the block; in a thread, where Python cannot, change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
