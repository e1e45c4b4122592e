"""Commands in bwrap: results, stops, limits and refusals."""

import asyncio
import os
from pathlib import Path

import pytest
from tests.support.sandboxes import RUN_AS, require_bwrap, run

from perdure.errors import SandboxUnavailable
from perdure.sandbox.base import ExecLimits, RunAs
from perdure.sandbox.bwrap import BwrapSandbox
from perdure.sandbox.bwrap import run as bwrap_run
from perdure.sandbox.bwrap.status import StatusSocket

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop to another user")


@pytest.fixture(autouse=True)
def needs_bwrap() -> None:
    require_bwrap()


@pytest.fixture
def sandbox() -> BwrapSandbox:
    return BwrapSandbox(RUN_AS)


async def test_a_command_sees_its_workspace_and_an_empty_environment(
    sandbox: BwrapSandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3.6 S3.7"""
    monkeypatch.setenv("PERDURE_TEST_SECRET", "hunter2")
    command = "pwd; id -un; env; cat; echo end; echo saved > file"
    ran = await run(sandbox, workspace, command, env={"A": "b"})
    lines = ran.stdout.splitlines()
    assert lines[:2] == ["/workspace", "task"]
    assert lines[-1] == "end"
    assert "A=b" in lines
    assert "HOME=/workspace" in lines
    assert "hunter2" not in ran.stdout
    assert (workspace / "file").read_text() == "saved\n"
    assert (ran.result.exit_code, ran.result.reason, ran.result.sandbox) == (0, "exited", "bwrap")


@pytest.mark.parametrize(
    "command, exit_code, number",
    [("exit 7", 7, None), ("kill -SEGV $$", 139, 11), ("no-such-program", 127, None)],
)
async def test_the_exit_code_and_the_signal_of_a_command_are_reported(
    sandbox: BwrapSandbox, workspace: Path, command: str, exit_code: int, number: int | None
) -> None:
    """S3.7"""
    result = (await run(sandbox, workspace, command)).result
    assert (result.exit_code, result.signal, result.reason) == (exit_code, number, "exited")


async def test_a_timeout_keeps_the_output_and_grants_time_to_clean_up(
    sandbox: BwrapSandbox, workspace: Path
) -> None:
    """S3.7"""
    command = "echo before; trap 'echo cleaned; exit 3' TERM; while :; do sleep 0.1; done"
    ran = await run(sandbox, workspace, command, timeout_ms=3_000)
    assert (ran.result.exit_code, ran.result.reason) == (124, "timeout")
    assert ran.stdout == "before\ncleaned\n"


async def test_a_cancelled_command_ends(sandbox: BwrapSandbox, workspace: Path) -> None:
    cancel = asyncio.Event()
    asyncio.get_running_loop().call_later(0.3, cancel.set)
    result = (await run(sandbox, workspace, "sleep 60", cancel=cancel)).result
    assert (result.exit_code, result.signal, result.reason) == (143, 15, "cancelled")


async def test_a_command_that_uses_too_much_disk_is_stopped(
    sandbox: BwrapSandbox, workspace: Path
) -> None:
    command = "head -c 3000000 /dev/zero > file; sleep 60"
    ran = await run(sandbox, workspace, command, limits=ExecLimits(disk_bytes=1_000_000))
    assert ran.result.reason == "disk_limit"


@ROOT_ONLY
@pytest.mark.parametrize("run_as", [None, RunAs(0, 0), RunAs(0, 54321)])
async def test_bwrap_never_runs_as_root(workspace: Path, run_as: RunAs | None) -> None:
    with pytest.raises(SandboxUnavailable, match="run_as") as caught:
        await run(BwrapSandbox(run_as), workspace, "touch ran")
    assert caught.value.hint
    assert not (workspace / "ran").exists()


async def test_a_command_cannot_write_the_report_of_its_own_end(
    sandbox: BwrapSandbox, workspace: Path
) -> None:
    """A pipe of process 1 could be opened again through /proc, if perdure is an ordinary user."""
    command = "readlink /proc/1/fd/1 /proc/1/fd/2; echo; readlink /proc/1/fd/*"
    own, _, first = (await run(sandbox, workspace, command)).stdout.partition("\n\n")
    pipes = {line for line in first.splitlines() if line.startswith("pipe:")}
    assert len(pipes) == 2
    assert pipes == set(own.splitlines())


async def test_a_command_without_a_report_of_its_end_counts_as_started(
    sandbox: BwrapSandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sandbox.probe()

    class Silent(StatusSocket):
        def read(self) -> bool:
            more = super().read()
            self.exit_code = None
            return more

    monkeypatch.setattr(bwrap_run, "StatusSocket", Silent)
    with pytest.raises(SandboxUnavailable) as raised:
        await run(sandbox, workspace, "echo done > file")
    assert (workspace / "file").read_text() == "done\n"
    assert raised.value.details["started"]
