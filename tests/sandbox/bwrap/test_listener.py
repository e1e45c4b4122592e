"""The process that opens sockets in the networks of sandboxes: kept, replaced, never left."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.support.sandboxes import RUN_AS, require_bwrap, run

from perdure.errors import SandboxUnavailable
from perdure.sandbox.base import NetworkSettings
from perdure.sandbox.bwrap import BwrapSandbox
from perdure.sandbox.bwrap.listener import NetworkListeners

ALLOW = NetworkSettings("allow", ("packages.example.org",))
CONNECT = "exec 3<>/dev/tcp/127.0.0.1/3128 && echo connected"  # of bash

# Its fork keeps the other end of the channel open.
RUNTIME = """
import asyncio, os, signal, sys
from pathlib import Path
from perdure.sandbox.base import ExecSpec, NetworkSettings, RunAs
from perdure.sandbox.bwrap import BwrapSandbox

async def serve(listener, allow):
    await asyncio.Event().wait()

async def main(workspace, uid):
    run_as = RunAs(int(uid), int(uid)) if uid != "own" else None
    sandbox = BwrapSandbox(run_as, serve_proxy=serve)
    network = NetworkSettings("allow", ("packages.example.org",))
    spec = ExecSpec(["true"], f"run-{os.getpid()}", network=network)
    assert (await sandbox.exec(Path(workspace), spec, lambda *_: None)).exit_code == 0
    fork = os.fork()
    if fork:
        print(os.getpid(), fork, flush=True)
    signal.pause()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def needs_bwrap() -> None:
    require_bwrap()


@pytest.fixture
async def sandbox() -> AsyncIterator[BwrapSandbox]:
    sandbox = BwrapSandbox(RUN_AS, serve_proxy=accept_all)
    yield sandbox
    sandbox.close()


async def accept_all(listener: socket.socket, _: Sequence[str]) -> None:
    while True:
        client, _ = await asyncio.get_running_loop().sock_accept(listener)
        client.close()


def listener_processes(parent: int) -> list[int]:
    """Return the children of a process that open sockets in networks."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_listener = b"/ns/net" in (folder / "cmdline").read_bytes()
            if is_listener and f"\nPPid:\t{parent}\n" in (folder / "status").read_text():
                pids.append(int(folder.name))
        except OSError:
            continue
    return pids


async def connected(sandbox: BwrapSandbox, workspace: Path) -> bool:
    ran = await run(sandbox, workspace, f"bash -c '{CONNECT}'", network=ALLOW)
    return ran.stdout == "connected\n"


async def test_one_process_opens_the_sockets_of_all_commands(
    sandbox: BwrapSandbox, workspace: Path
) -> None:
    before = listener_processes(os.getpid())
    assert all(await asyncio.gather(*(connected(sandbox, workspace) for _ in range(5))))
    assert len(listener_processes(os.getpid())) == len(before) + 1
    sandbox.close()
    assert listener_processes(os.getpid()) == before
    assert await connected(sandbox, workspace)


async def test_a_process_that_was_killed_is_replaced(
    sandbox: BwrapSandbox, workspace: Path
) -> None:
    assert await connected(sandbox, workspace)
    for pid in listener_processes(os.getpid()):
        os.kill(pid, signal.SIGKILL)
    assert await connected(sandbox, workspace)


def start_runtime(workspace: Path) -> "subprocess.Popen[bytes]":
    uid = "own" if RUN_AS is None else str(RUN_AS.uid)
    program = [sys.executable, "-c", RUNTIME, str(workspace), uid]
    return subprocess.Popen(program, stdout=subprocess.PIPE)


async def test_the_process_ends_with_the_runtime_although_a_fork_has_its_channel(
    workspace: Path,
) -> None:
    with start_runtime(workspace) as runtime:
        assert runtime.stdout is not None
        pid, fork = map(int, runtime.stdout.readline().split())
        try:
            (listener,) = listener_processes(pid)
            pidfd = os.pidfd_open(listener)
            runtime.kill()
            ended = asyncio.Event()
            asyncio.get_running_loop().add_reader(pidfd, ended.set)
            async with asyncio.timeout(30):
                await ended.wait()
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)
        finally:
            os.kill(fork, signal.SIGKILL)


def start_sleep() -> "subprocess.Popen[bytes]":
    user = None if RUN_AS is None else RUN_AS.uid
    return subprocess.Popen(["sleep", "60"], user=user, group=user)


async def test_a_socket_is_never_opened_in_the_network_of_the_host() -> None:
    """Not even for a process of the same user, whose id a sandbox had before."""
    listeners = NetworkListeners(RUN_AS)
    with start_sleep() as process:
        try:
            network = os.stat(f"/proc/{process.pid}/ns/net").st_ino  # noqa: PTH116 - of the kernel
            with pytest.raises(SandboxUnavailable, match=r"permitted|Invalid"):
                await listeners.open(process.pid, network)
            with pytest.raises(SandboxUnavailable, match="the sandbox has ended"):
                await listeners.open(process.pid, network + 1)
        finally:
            process.kill()
            listeners.close()
