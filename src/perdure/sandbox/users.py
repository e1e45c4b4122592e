"""The user that commands run as, why it may not do, and how root becomes it."""

import os
import shutil
from collections.abc import Sequence

from perdure.errors import SandboxUnavailable
from perdure.sandbox.base import RunAs
from perdure.sandbox.rlimits import PATH

Obstacle = tuple[str, str]  # a reason and its remedy


def user_obstacle(run_as: RunAs | None) -> Obstacle | None:
    """Return why commands cannot run as the configured user; None if they can."""
    euid = os.geteuid()
    if euid == 0 and run_as is None:
        return "perdure runs as root, and tasks.run_as does not name a user for commands", (
            "set tasks.run_as to an unprivileged user, or start perdure as that user"
        )
    if run_as is not None and euid not in (0, run_as.uid):
        return f"perdure runs as uid {euid} and cannot run commands as uid {run_as.uid}", (
            "remove tasks.run_as, or start perdure as root or as that user"
        )
    return None


def root_obstacle(run_as: RunAs | None) -> Obstacle | None:
    """Return why a sandbox does not accept root as the user; None for any other user."""
    if run_as is not None and 0 in (run_as.uid, run_as.gid):
        return "tasks.run_as is root, and the sandbox does not hold root", (
            "set tasks.run_as to an unprivileged user"
        )
    return None


def setpriv_program() -> str | None:
    """Return the path of setpriv, which is part of util-linux."""
    return shutil.which("setpriv", path=PATH)


def user_arguments(run_as: RunAs | None) -> Sequence[str]:
    """Return the words before a program that let root run it as the user; none for others.

    A large process forks slowly, and Python must fork to change the user of a child by itself.
    Use it only with an environment of ours: the words run as root. Raises SandboxUnavailable.
    """
    if os.geteuid() != 0:
        return ()
    program = setpriv_program()
    if program is None or run_as is None:
        raise SandboxUnavailable(
            "root cannot become the user of commands: the program setpriv is not installed",
            hint="install util-linux",
            details={"started": False},
        )
    return (program, f"--reuid={run_as.uid}", f"--regid={run_as.gid}", "--clear-groups", "--")
