"""The workspace of a command: whose files they are, and how much disk they use."""

import asyncio
import logging
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from perdure.errors import SandboxUnavailable
from perdure.sandbox.base import RunAs
from perdure.sandbox.rlimits import PATH

logger = logging.getLogger("perdure")

POLL_S: Final = 1.0
_MAY_READ_ALL: Final = (
    *("--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "CAP_DAC_READ_SEARCH"),
    *("--ro-bind", "/", "/", "--die-with-parent", "--"),
)
POLL_SHARE: Final = 20  # a poll that takes a second is repeated after 20 seconds


async def give_workspace(workspace: Path, run_as: RunAs | None) -> None:
    """Give a workspace that root created or restored to the user that commands run as.

    Nothing is done once the folder itself belongs to that user, so that no command of that user
    can run meanwhile. Links are not followed, and trees may have any depth. A folder that an
    earlier command has closed to its own user is opened again.
    """
    try:
        owner = _open_folder(workspace)
        if os.geteuid() != 0 or run_as is None or owner == run_as.uid:
            return
        code, errors = await _run_program(
            *("chown", "-hR", "--", f"{run_as.uid}:{run_as.gid}", str(workspace))
        )
    except OSError as error:
        code, errors = 1, str(error.strerror).encode()
    if code != 0:
        raise SandboxUnavailable(
            f"the workspace {workspace} cannot be used: {errors.decode(errors='replace').strip()}",
            hint="create the folder, or let tasks.root name another folder",
            details={"started": False},
        )


def watch_disk(workspace: Path, limit: int | None) -> Coroutine[Any, Any, None] | None:
    """Return a coroutine that ends when the workspace uses more than the limit."""
    return None if limit is None else _watch(workspace, limit)


async def _watch(workspace: Path, limit: int) -> None:
    pause_s = POLL_S
    while True:
        await asyncio.sleep(pause_s)
        started_at = time.monotonic()
        try:
            if await used_bytes(workspace) > limit:
                return
        except OSError as error:  # no process could be started: the command did nothing wrong
            logger.warning("the size of %s cannot be measured: %s", workspace, error)
        pause_s = max(POLL_S, POLL_SHARE * (time.monotonic() - started_at))


async def used_bytes(workspace: Path) -> int:
    """Return the disk space of the files, by `du`: it handles trees of any depth.

    It runs with perdure's own rights. Where these are the rights of the command, which can close
    a folder to its own user, it runs a second time in a user namespace, in which it may read all.
    """
    words = ("du", "-skx", "--", str(workspace))
    code, output = await _run_program(*words)
    if code != 0 and b"Permission denied" in output and shutil.which("bwrap", path=PATH):
        code, output_of_all = await _run_program("bwrap", *_MAY_READ_ALL, *words)
        output = output_of_all if code == 0 else output
    used = output.rpartition(b"\t")[0].rpartition(b"\n")[2]  # errors come before the sum
    return int(used) * 1024 if used.isdigit() else 0


def _open_folder(workspace: Path) -> int:
    """Let the owner of a folder use it, and return the owner."""
    status = workspace.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_mode & 0o700 != 0o700:
        workspace.chmod(stat.S_IMODE(status.st_mode) | 0o700)
    return status.st_uid


async def _run_program(*argv: str) -> tuple[int, bytes]:
    """Run a program of the system and return its exit code and its output."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": PATH, "LANG": "C.UTF-8"},
        cwd="/",
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    return process.returncode or 0, output
