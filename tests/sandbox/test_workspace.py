"""Workspaces that root has created or restored belong to the user of the commands."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.sandboxes import RUN_AS, UID, require_bwrap, run

from perdure.errors import SandboxUnavailable
from perdure.sandbox.bwrap import BwrapSandbox

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")


@ROOT_ONLY
async def test_a_restored_workspace_is_given_to_the_user_at_any_depth(workspace: Path) -> None:
    require_bwrap()
    outside = workspace.parent / "outside"
    outside.write_text("of root")
    restored = workspace.parent / "restored"
    restored.mkdir(mode=0o700)
    (restored / "link").symlink_to(outside)
    folder = os.open(restored, os.O_RDONLY)
    for _ in range(1_200):  # deeper than Python recurses
        os.mkdir("d", dir_fd=folder)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(os.open("deep", os.O_CREAT, 0o600, dir_fd=folder))

    command = "find . ! -user task | wc -l; find . -name deep | wc -l"
    ran = await run(BwrapSandbox(RUN_AS), restored, command)
    assert ran.stdout.split() == ["0", "1"]
    assert os.fstat(folder).st_uid == UID
    assert outside.stat().st_uid == 0
    os.close(folder)


async def test_a_workspace_that_does_not_exist_is_named(workspace: Path) -> None:
    require_bwrap()
    with pytest.raises(SandboxUnavailable, match="missing cannot be used: No such file"):
        await run(BwrapSandbox(RUN_AS), workspace.parent / "missing", "true")


async def test_a_command_cannot_close_its_workspace_for_the_next_one(workspace: Path) -> None:
    require_bwrap()
    sandbox = BwrapSandbox(RUN_AS)
    assert (await run(sandbox, workspace, "touch file; chmod 000 .")).result.exit_code == 0
    assert (await run(sandbox, workspace, "ls")).stdout == "file\n"


# Becomes the user of the command, if it is root, and measures the workspace as perdure would.
MEASURE = """
import asyncio, os, sys
from pathlib import Path
from perdure.sandbox.workspace import used_bytes
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(*3 * [int(sys.argv[2])])
    os.setresuid(*3 * [int(sys.argv[2])])
print(asyncio.run(used_bytes(Path(sys.argv[1]))))
"""


def test_a_command_cannot_hide_files_from_perdure_of_the_same_user(workspace: Path) -> None:
    require_bwrap()
    command = "mkdir d && head -c 3000000 /dev/urandom > d/file && chmod 000 d"
    asyncio.run(run(BwrapSandbox(RUN_AS), workspace, command))
    words = [sys.executable, "-c", MEASURE, str(workspace), str(UID)]
    measured = subprocess.run(words, capture_output=True, text=True, check=True)
    assert int(measured.stdout) >= 3_000_000
