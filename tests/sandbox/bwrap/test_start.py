"""Runtimes that are killed while a command starts: it does not run, or dies with the runtime."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.sandboxes import RUN_AS, gone, processes_with, require_bwrap

from perdure.sandbox.bwrap import BwrapSandbox

# Kills itself some milliseconds after it has begun to start a command.
RUNTIME: Final = """
import asyncio, os, signal, sys
from pathlib import Path
from perdure.sandbox.base import ExecSpec, NetworkSettings, RunAs
from perdure.sandbox.bwrap import BwrapSandbox

async def serve(listener, allow):
    await asyncio.Event().wait()

async def main(workspace, uid, marker, mode, delay):
    run_as = RunAs(int(uid), int(uid)) if uid != "own" else None
    sandbox = BwrapSandbox(run_as, serve_proxy=serve)
    assert (await sandbox.probe()).ok
    network = NetworkSettings(mode, ("packages.example.org",) if mode == "allow" else ())
    spec = ExecSpec(["sleep", marker], f"run-{marker}", network=network)
    asyncio.get_running_loop().call_later(float(delay), os.kill, os.getpid(), signal.SIGKILL)
    await sandbox.exec(Path(workspace), spec, lambda *_: None)

asyncio.run(main(*sys.argv[1:]))
"""
MOMENTS: Final = [("off", delay) for delay in (0, 0.002, 0.005, 0.01, 0.03)] + [
    ("allow", delay) for delay in (0, 0.005, 0.02)
]


def start_runtime(workspace: Path, marker: str, mode: str, delay: float) -> "subprocess.Popen[str]":
    uid = "own" if RUN_AS is None else str(RUN_AS.uid)
    words = [str(workspace), uid, marker, mode, str(delay)]
    return subprocess.Popen([sys.executable, "-c", RUNTIME, *words], text=True)


def commands_with(marker: str) -> list[int]:
    """Return the processes of a command; not those of bwrap, which name it too."""
    names = {pid: Path(f"/proc/{pid}/comm") for pid in processes_with(marker)}
    return [pid for pid, name in names.items() if name.exists() and name.read_text() == "sleep\n"]


async def test_a_command_never_outlives_a_runtime_that_is_killed_while_it_starts(
    workspace: Path,
) -> None:
    """The kernel ignores a request to die with a parent that is dead already."""
    require_bwrap()
    markers = [f"1000.{int.from_bytes(os.urandom(6))}" for _ in MOMENTS]
    runtimes = [
        start_runtime(workspace, marker, *moment)
        for marker, moment in zip(markers, MOMENTS, strict=True)
    ]
    for runtime in runtimes:
        assert runtime.wait(60) == -9
    for marker in markers:
        if not await gone(marker):  # a bwrap that lost its other half waits, and starts nothing
            assert not commands_with(marker)
    await BwrapSandbox(RUN_AS).sweep([f"run-{marker}" for marker in markers])
    for marker in markers:
        assert await gone(marker)
