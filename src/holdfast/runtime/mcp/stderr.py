"""What a server's program says on its standard error: for the log, and for why it did not start."""

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import Final, TextIO

logger = logging.getLogger("holdfast.mcp")

_KEPT: Final = 2_000  # bytes


def hidden(text: str, secrets: Sequence[str]) -> str:
    """The text without the secrets in it."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) > 3:  # shorter ones are in every word, and no secret
            text = text.replace(secret, "***")
    return text


class Stderr:
    """One end of a pipe for a program, which is read as it writes; the newest is remembered."""

    def __init__(self, name: str, secrets: Sequence[str]) -> None:
        self._name = name
        self._secrets = secrets
        self._read_end, write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self.file: TextIO = os.fdopen(write_end, "w")
        self._newest = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_end, self._read)

    def started(self) -> None:
        """The program has its own copy of the end: with ours open, we would never see its end."""
        self.file.close()

    def close(self) -> None:
        """Stop reading."""
        self.file.close()
        self._stop()

    def last_line(self) -> str:
        """The last thing it said, in one line."""
        self._read()
        lines = hidden(self._newest.decode("utf-8", "replace"), self._secrets).splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _read(self) -> None:
        if self._read_end < 0:
            return
        try:
            said = os.read(self._read_end, 65_536)
        except BlockingIOError:
            return
        if not said:
            self._stop()
            return
        self._newest = (self._newest + said)[-_KEPT:]
        if logger.isEnabledFor(logging.DEBUG):
            text = hidden(said.decode("utf-8", "replace"), self._secrets)
            logger.debug("%s: %s", self._name, text.rstrip())

    def _stop(self) -> None:
        if self._read_end >= 0:
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
            self._read_end = -1
