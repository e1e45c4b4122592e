"""Limits of each process, set by the program prlimit between the sandbox and the command."""

import shutil
from collections.abc import Sequence
from typing import Final

from perdure.sandbox.base import ExecLimits

PATH: Final = "/usr/local/bin:/usr/bin:/bin"  # of the commands, and of the programs around them


def prlimit_program() -> str | None:
    """Return the path of prlimit, which is part of util-linux."""
    return shutil.which("prlimit", path=PATH)


def limit_arguments(limits: ExecLimits, *, processes: bool) -> Sequence[str]:
    """Return the words before the command that set its limits.

    The limit of processes counts all processes of the user in its user namespace, and is left out
    where commands share one.
    """
    program = prlimit_program()
    if program is None:
        return ()
    settings = {
        "nproc": limits.processes if processes else None,
        "nofile": limits.open_files,
        "fsize": limits.file_bytes,
        "as": limits.address_space_bytes,
        "core": 0,
    }
    options = [f"--{name}={value}" for name, value in settings.items() if value is not None]
    return (program, *options, "--")
