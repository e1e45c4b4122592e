"""Lines that people type, awaited without a thread: one that blocks in stdin outlives Ctrl-C."""

import os
import sys
from contextlib import suppress
from typing import Final

import anyio

_CHUNK: Final = 65_536


class Lines:
    """What is typed, line by line."""

    def __init__(self) -> None:
        self._buffer = b""
        self._ended = False
        try:
            self._file: int | None = sys.stdin.fileno()
        except (OSError, ValueError):
            self._file = None  # a stand-in without a file behind it

    async def next(self) -> str | None:
        """The next line without its end; None when there are no more."""
        if self._file is None:
            text = sys.stdin.readline()
            return text.rstrip("\n") if text else None
        while b"\n" not in self._buffer and not self._ended:
            await self._more(self._file)
        if not self._buffer:
            return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8", "replace").rstrip("\r")

    async def _more(self, file: int) -> None:
        with suppress(OSError, NotImplementedError):  # a plain file is always readable
            await anyio.wait_readable(file)
        chunk = os.read(file, _CHUNK)
        self._ended = not chunk
        self._buffer += chunk
