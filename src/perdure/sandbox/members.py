"""Processes of a run, as /proc shows them, and signals that cannot reach another process.

A process id can be used again between finding a process and signaling it. Each signal therefore
goes through a pidfd, after the process behind it was checked once more.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from perdure.sandbox.base import RUN_ID_VARIABLE

PROC: Final = Path("/proc")
KILL_ROUNDS: Final = 20
SWEEP_ROUNDS: Final = 200
SWEEP_S: Final = 0.02

IsMember = Callable[[int], bool]


def all_pids() -> Iterator[int]:
    """Yield the ids of all processes that /proc shows."""
    with suppress(OSError):
        for path in PROC.iterdir():
            if path.name.isdigit():
                yield int(path.name)


def in_pid_namespace(namespace: int) -> IsMember:
    """Return a check for members of the pid namespace with this number."""
    return lambda pid: _pid_namespace(pid) == namespace


def has_run_id(run_ids: Collection[str]) -> IsMember:
    """Return a check for processes whose environment at their start named one of these runs."""
    markers = {f"{RUN_ID_VARIABLE}={run_id}".encode() for run_id in run_ids}

    def is_member(pid: int) -> bool:
        try:
            variables = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return not markers.isdisjoint(variables)

    return is_member


def in_process_group(group: int) -> IsMember:
    """Return a check for members of a process group."""

    def is_member(pid: int) -> bool:
        try:
            return os.getpgid(pid) == group
        except OSError:
            return False

    return is_member


def signal_members(is_member: IsMember, number: signal.Signals) -> int:
    """Send a signal to every member, and return to how many."""
    return sum(signal_process(pid, number, is_member) for pid in all_pids() if is_member(pid))


def signal_process(pid: int, number: signal.Signals, is_member: IsMember) -> bool:
    """Send a signal to a process if it is still the member that it was."""
    if sys.platform != "linux":
        return False
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if pid == os.getpid() or not is_member(pid):
            return False
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(pidfd)


def kill_until_none(is_member: IsMember) -> None:
    """Kill members until none is left: a process can fork while it is being looked for."""
    for _ in range(KILL_ROUNDS):
        if not signal_members(is_member, signal.SIGKILL):
            break


async def sweep_members(is_member: IsMember) -> int:
    """Kill members and wait, at most a few seconds, until they are gone. Return how many."""
    pids: set[int] = set()
    for _ in range(SWEEP_ROUNDS):
        members = {pid for pid in all_pids() if signal_process(pid, signal.SIGKILL, is_member)}
        if not members:
            break
        pids |= members
        await asyncio.sleep(SWEEP_S)
    return len(pids)


def _pid_namespace(pid: int) -> int | None:
    try:
        return (PROC / str(pid) / "ns" / "pid").stat().st_ino
    except OSError:
        return None  # it has ended, or belongs to another user
