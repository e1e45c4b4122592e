"""What a server's program says on its standard error: for the log, and for why it did not start."""

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TextIO

logger = logging.getLogger("perdure.mcp")

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


# Runs in the place of the program, and then becomes it. It asks to be killed when its parent
# ends; one whose parent ended before it asked, ends itself. A program that is not there is told.
_LEASH: Final = """
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
    """The command that starts a program in such a way; as it is where the system has no such way.

    There, too, its standard input ends with us, at which a server has to end.
    """
    if sys.platform != "linux" or not sys.executable:
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _LEASH, str(own_pid), *command]


def is_there(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a program can be found; one with a folder in its name is looked for at its start."""
    return "/" in command[0] or shutil.which(command[0], path=env.get("PATH")) is not None


_WHO_LOGS: Final = ("httpx2", "mcp.client.streamable_http")


class _Hiding(logging.Filter):
    """Lets every record pass, without the secrets that it knows."""

    def __init__(self) -> None:
        super().__init__()
        self.secrets: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        secrets = tuple(self.secrets)
        said = record.getMessage()
        shown = hidden(said, secrets)
        if shown != said:
            record.msg, record.args = shown, ()
        if record.exc_info and record.exc_text is None:
            told = logging.Formatter().formatException(record.exc_info)
            record.exc_text = hidden(told, secrets)  # which a formatter takes as it is
        return True


_hiding: Final = _Hiding()


def hide_in_logs(secrets: Iterable[str]) -> None:
    """Let nothing of these be seen in the log of who talks to a server by HTTP."""
    _hiding.secrets.update(secrets)
    for name in _WHO_LOGS:
        logging.getLogger(name).addFilter(_hiding)  # once, however often
