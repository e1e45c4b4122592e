"""Limits of each process, set by the program prlimit between the sandbox and the command."""

import shutil
from collections.abc import Sequence
from typing import Final

from perdure.errors import SandboxUnavailable
from perdure.sandbox.base import ExecLimits

PATH: Final = "/usr/local/bin:/usr/bin:/bin"  # of the commands, and of the programs around them


def prlimit_program() -> str | None:
    """Return the path of prlimit, which is part of util-linux."""
    return shutil.which("prlimit", path=PATH)


def limit_arguments(limits: ExecLimits, *, processes: bool, required: bool = True) -> Sequence[str]:
    """Return the words before the command that set its limits.

    The limit of processes counts all processes of the user in its user namespace, and is left out
    where commands share one. Raises SandboxUnavailable if limits are required and cannot be set.
    """
    program = prlimit_program()
    if program is None and required:
        raise SandboxUnavailable(
            "the program prlimit is no longer installed",
            hint="install util-linux",
            details={"started": False},
        )
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
