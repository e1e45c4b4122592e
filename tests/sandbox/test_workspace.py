"""Workspaces that root has created or restored belong to the user of the commands."""

import os
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
