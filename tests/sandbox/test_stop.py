"""The end of commands: timeouts, cancellation, daemons, and the death of the runtime."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.sandboxes import RUN_AS, gone, processes_with, require_bwrap, run

from perdure.sandbox.base import ExecResult, ExecSpec, Sandbox
from perdure.sandbox.bwrap import BwrapSandbox
from perdure.sandbox.none import NoSandbox

# The command waits until the daemon is in a session of its own, without a trace of the run.
DAEMON = (
    "rm -f up; mkfifo up; "
    "env -i setsid sh -c 'echo up > up; exec sleep {marker}' > /dev/null 2>&1 & cat up;"
)
HOLDER = DAEMON.replace(" > /dev/null 2>&1", "")
STUBBORN = (
    "rm -f up; mkfifo up; trap '' TERM; "
    "env -i setsid sh -c 'trap \"\" TERM; echo up > up; while :; do sleep {marker}; done' & cat up;"
)

RUNTIME = """
import asyncio, sys
from pathlib import Path
from perdure.sandbox.base import ExecSpec, RunAs
from perdure.sandbox.bwrap import BwrapSandbox
from perdure.sandbox.none import NoSandbox

async def main(kind, workspace, uid, run_id, command):
    run_as = RunAs(int(uid), int(uid)) if uid != "own" else None
    sandbox = BwrapSandbox(run_as) if kind == "bwrap" else NoSandbox(run_as)
    started = lambda channel, chunk: print("started", flush=True)
    await sandbox.exec(Path(workspace), ExecSpec(["/bin/sh", "-c", command], run_id), started)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def needs_bwrap() -> None:
    require_bwrap()


@pytest.fixture
def marker() -> str:
    """Arguments of sleep that no other process has."""
    return f"1000.{int.from_bytes(os.urandom(6))}"


def kill(marker: str) -> None:
    for pid in processes_with(marker):
        os.kill(pid, signal.SIGKILL)


async def test_a_daemon_ends_with_its_command(workspace: Path, marker: str) -> None:
    """S3.7"""
    command = DAEMON.format(marker=marker)
    assert (await run(BwrapSandbox(RUN_AS), workspace, command)).result.exit_code == 0
    assert not processes_with(marker)

    await run(NoSandbox(RUN_AS), workspace, command)
    try:
        assert processes_with(marker)
    finally:
        kill(marker)


async def stop_when_ready(sandbox: Sandbox, workspace: Path, command: str) -> ExecResult:
    """Run a command, and cancel it with its first output."""
    cancel = asyncio.Event()
    spec = ExecSpec(["/bin/sh", "-c", command], os.urandom(8).hex(), timeout_ms=60_000)
    return await sandbox.exec(workspace, spec, lambda *_: cancel.set(), cancel=cancel)


async def test_a_daemon_that_ignores_sigterm_is_killed_after_its_grace(
    workspace: Path, marker: str
) -> None:
    """S3.7"""
    command = STUBBORN.format(marker=marker) + f"sleep {marker}"
    result = await stop_when_ready(BwrapSandbox(RUN_AS), workspace, command)
    assert (result.exit_code, result.signal, result.reason) == (137, 9, "cancelled")
    assert result.duration_ms >= 2_000  # the grace
    assert not processes_with(marker)

    await stop_when_ready(NoSandbox(RUN_AS), workspace, command)
    try:
        assert processes_with(marker)
    finally:
        kill(marker)


async def test_a_daemon_that_holds_the_output_open_delays_nothing(
    workspace: Path, marker: str
) -> None:
    command = HOLDER.format(marker=marker)
    ran = await run(BwrapSandbox(RUN_AS), workspace, command)
    assert (ran.stdout, ran.result.truncated) == ("up\n", False)

    ran = await run(NoSandbox(RUN_AS), workspace, command)  # gives up after a second
    try:
        assert (ran.stdout, ran.result.truncated) == ("up\n", True)
    finally:
        kill(marker)


async def test_a_command_that_spins_is_stopped_at_its_timeout(workspace: Path) -> None:
    command = "trap '' TERM; while :; do :; done"
    ran = await run(BwrapSandbox(RUN_AS), workspace, command, timeout_ms=500)
    assert (ran.result.exit_code, ran.result.reason) == (124, "timeout")


@pytest.mark.parametrize("sandbox", [BwrapSandbox(RUN_AS), NoSandbox(RUN_AS)])
async def test_nothing_runs_after_a_caller_was_cancelled(
    sandbox: Sandbox, workspace: Path, marker: str
) -> None:
    started = asyncio.Event()
    command = f"trap 'echo cleaned > cleaned; exit' TERM; sleep {marker} & echo started; wait"
    call = asyncio.create_task(
        sandbox.exec(
            workspace,
            ExecSpec(["/bin/sh", "-c", command], marker),
            lambda *_: started.set(),
        )
    )
    await started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not processes_with(marker)
    assert (workspace / "cleaned").exists()


async def test_a_command_whose_output_cannot_be_kept_ends_before_the_error(
    workspace: Path, marker: str
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    spec = ExecSpec(["/bin/sh", "-c", DAEMON.format(marker=marker)], "full")
    with pytest.raises(OSError, match="no space"):
        await BwrapSandbox(RUN_AS).exec(workspace, spec, full)
    assert not processes_with(marker)


def start_runtime(kind: str, workspace: Path, marker: str) -> subprocess.Popen[bytes]:
    """Start a process that runs a command with a daemon, and wait until it runs."""
    uid = "own" if RUN_AS is None else str(RUN_AS.uid)
    command = f"setsid sleep {marker} & echo started; sleep {marker}"
    runtime = subprocess.Popen(
        [sys.executable, "-c", RUNTIME, kind, str(workspace), uid, f"run-{marker}", command],
        stdout=subprocess.PIPE,
    )
    assert runtime.stdout is not None
    assert runtime.stdout.readline() == b"started\n"
    return runtime


async def test_a_command_dies_with_the_runtime(workspace: Path, marker: str) -> None:
    """S3.8"""
    with start_runtime("bwrap", workspace, marker) as runtime:
        assert processes_with(marker)
        runtime.kill()
    assert await gone(marker)


async def test_a_sweep_kills_what_a_dead_runtime_left_without_a_sandbox(
    workspace: Path, marker: str
) -> None:
    with start_runtime("none", workspace, marker) as runtime:
        runtime.kill()
    try:
        assert processes_with(marker)
        assert await NoSandbox(RUN_AS).sweep(["another"]) == 0
        assert await NoSandbox(RUN_AS).sweep([f"run-{marker}"]) >= 2
        assert await gone(marker)
    finally:
        kill(marker)


async def test_a_command_cannot_prevent_that_it_dies_with_the_runtime(
    workspace: Path, marker: str
) -> None:
    """Process 1 of the sandbox has asked for its death; a command must not change its mind."""
    ran = await run(
        BwrapSandbox(RUN_AS),
        workspace,
        "kill -STOP 1; kill -KILL 1; kill -TERM 1; cat /proc/1/comm; ls /proc/1/fd | wc -l",
    )
    assert ran.stdout.splitlines()[0] == "bwrap"
