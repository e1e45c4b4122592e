"""Programs of MCP servers: how they are started, their standard error, and masked secrets."""

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TextIO

logger = logging.getLogger("perdure.mcp")

_MAX_BYTES: Final = 2_000  # of standard error that are kept


def mask_secrets(text: str, secrets: Sequence[str]) -> str:
    """Return the text with the secrets masked."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) > 3:  # shorter ones occur in ordinary words
            text = text.replace(secret, "***")
    return text


class Stderr:
    """Pipe for the standard error of a program; the newest bytes are kept."""

    def __init__(self, name: str, secrets: Sequence[str]) -> None:
        self._name = name
        self._secrets = secrets
        self._read_end, write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self.file: TextIO = os.fdopen(write_end, "w")
        self._newest = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_end, self._read)

    def close_write_end(self) -> None:
        """Close our copy of the write end, so that reading ends when the program ends."""
        self.file.close()

    def close(self) -> None:
        """Stop reading."""
        self.file.close()
        self._stop()

    def last_line(self) -> str:
        """Return the last line that the program wrote."""
        self._read()
        lines = mask_secrets(self._newest.decode("utf-8", "replace"), self._secrets).splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _read(self) -> None:
        if self._read_end < 0:
            return
        try:
            data = os.read(self._read_end, 65_536)
        except BlockingIOError:
            return
        if not data:
            self._stop()
            return
        self._newest = (self._newest + data)[-_MAX_BYTES:]
        if logger.isEnabledFor(logging.DEBUG):
            text = mask_secrets(data.decode("utf-8", "replace"), self._secrets)
            logger.debug("%s: %s", self._name, text.rstrip())

    def _stop(self) -> None:
        if self._read_end >= 0:
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
            self._read_end = -1


# Replaces itself by the program. Before that it asks the kernel to be killed when its parent ends,
# and exits if the parent has ended already. It reports a program that cannot be executed.
_WRAPPER: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""


def exits_with_parent(command: Sequence[str], own_pid: int) -> list[str]:
    """Return a command whose program is killed when this process ends; unchanged if not on Linux.

    On other systems its standard input ends with this process, which a server must treat as end.
    """
    if sys.platform != "linux" or not sys.executable:
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _WRAPPER, str(own_pid), *command]


def is_installed(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Return True if a program is found; one with a path is only looked up at its start."""
    return "/" in command[0] or shutil.which(command[0], path=env.get("PATH")) is not None


_HTTP_LOGGERS: Final = ("httpx2", "mcp.client.streamable_http")


class _SecretFilter(logging.Filter):
    """Log filter that passes every record, with secrets masked."""

    def __init__(self) -> None:
        super().__init__()
        self.secrets: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        secrets = tuple(self.secrets)
        message = record.getMessage()
        masked = mask_secrets(message, secrets)
        if masked != message:
            record.msg, record.args = masked, ()
        if record.exc_info and record.exc_text is None:
            traceback = logging.Formatter().formatException(record.exc_info)
            record.exc_text = mask_secrets(traceback, secrets)  # formatters print it unchanged
        return True


_secret_filter: Final = _SecretFilter()


def mask_in_logs(secrets: Iterable[str]) -> None:
    """Mask these secrets in the logs of the HTTP libraries."""
    _secret_filter.secrets.update(secrets)
    for name in _HTTP_LOGGERS:
        logging.getLogger(name).addFilter(_secret_filter)  # adding it again has no effect
