"""How a server's program is started: so that it ends with us, also if we are killed."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Final

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


def leashed(command: Sequence[str], own_pid: int) -> list[str]:
    """The command that starts a program in such a way; as it is where the system has no such way.

    There, too, its standard input ends with us, at which a server has to end.
    """
    if sys.platform != "linux" or not sys.executable:
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _LEASH, str(own_pid), *command]


def is_there(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a program can be found; one with a folder in its name is looked for at its start."""
    return "/" in command[0] or shutil.which(command[0], path=env.get("PATH")) is not None
