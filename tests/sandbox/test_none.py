"""Commands without a sandbox: what is left of limits and stops."""

import asyncio
import errno
import os
from pathlib import Path

import pytest
from tests.support.sandboxes import RUN_AS, gone, run

from perdure.errors import SandboxUnavailable
from perdure.sandbox.base import ExecLimits, NetworkSettings
from perdure.sandbox.none import NoSandbox

SANDBOX = NoSandbox(RUN_AS)


async def test_a_command_runs_in_its_workspace_with_an_empty_environment(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3.6 S3.7"""
    monkeypatch.setenv("PERDURE_TEST_SECRET", "hunter2")
    ran = await run(SANDBOX, workspace, "pwd; env; cat; echo end", env={"A": "b"})
    assert ran.stdout.startswith(f"{workspace}\n")
    assert ran.stdout.endswith("\nend\n")
    assert "A=b" in ran.stdout
    assert "hunter2" not in ran.stdout
    assert (ran.result.exit_code, ran.result.reason, ran.result.sandbox) == (0, "exited", "none")
    assert ran.result.guarantees == frozenset()


@pytest.mark.parametrize(
    "command, exit_code, number",
    [("exit 7", 7, None), ("kill -SEGV $$", 139, 11), ("no-such-program", 127, None)],
)
async def test_the_exit_code_and_the_signal_of_a_command_are_reported(
    workspace: Path, command: str, exit_code: int, number: int | None
) -> None:
    """S3.7"""
    result = (await run(SANDBOX, workspace, command)).result
    assert (result.exit_code, result.signal, result.reason) == (exit_code, number, "exited")


async def test_a_timeout_keeps_the_output_and_grants_time_to_clean_up(workspace: Path) -> None:
    """S3.7"""
    command = "echo before; trap 'echo cleaned; exit 3' TERM; while :; do sleep 0.1; done"
    ran = await run(SANDBOX, workspace, command, timeout_ms=2_000)
    assert (ran.result.exit_code, ran.result.reason) == (124, "timeout")
    assert ran.stdout == "before\ncleaned\n"


async def test_a_cancelled_command_ends(workspace: Path) -> None:
    cancel = asyncio.Event()
    asyncio.get_running_loop().call_later(0.3, cancel.set)
    result = (await run(SANDBOX, workspace, "sleep 60", cancel=cancel)).result
    assert (result.exit_code, result.signal, result.reason) == (143, 15, "cancelled")


async def test_a_command_that_uses_too_much_disk_is_stopped(workspace: Path) -> None:
    command = "head -c 3000000 /dev/zero > file; sleep 60"
    ran = await run(SANDBOX, workspace, command, limits=ExecLimits(disk_bytes=1_000_000))
    assert ran.result.reason == "disk_limit"


async def test_an_allow_list_without_a_sandbox_is_refused(workspace: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="allow-list"):
        await run(SANDBOX, workspace, "true", network=NetworkSettings("allow", ("a.example",)))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop to another user")
async def test_root_without_a_configured_user_is_refused(workspace: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="run_as") as caught:
        await run(NoSandbox(), workspace, "true")
    assert caught.value.code == "SANDBOX_UNAVAILABLE"
    assert caught.value.hint


async def test_a_disk_that_cannot_be_measured_does_not_stop_the_command(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("perdure.sandbox.workspace.PATH", "/nowhere")  # of du
    monkeypatch.setattr("perdure.sandbox.workspace.POLL_S", 0.01)
    monkeypatch.setattr("perdure.sandbox.workspace.POLL_SHARE", 0)
    command = "until [ -e go ]; do sleep 0.02; done"
    running = asyncio.create_task(run(SANDBOX, workspace, command))
    async with asyncio.timeout(30):
        while "cannot be measured" not in caplog.text:  # noqa: ASYNC110 - of the log
            await asyncio.sleep(0.01)
    (workspace / "go").touch()
    assert (await running).result.reason == "exited"


async def test_a_program_whose_end_cannot_be_watched_is_killed(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = f"1000.{int.from_bytes(os.urandom(6))}"

    def fail(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("os.pidfd_open", fail)
    with pytest.raises(OSError, match="Too many open files"):
        await run(SANDBOX, workspace, f"exec sleep {marker}")
    assert await gone(marker)


async def test_commands_run_and_end_where_there_is_no_proc(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    ran = await run(SANDBOX, workspace, "echo out")
    assert (ran.result.reason, ran.stdout) == ("exited", "out\n")
    result = (await run(SANDBOX, workspace, "sleep 60", timeout_ms=100)).result
    assert (result.reason, result.exit_code) == ("timeout", 124)
