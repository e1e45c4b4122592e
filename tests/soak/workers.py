"""Worker processes, and the ways to end or freeze them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from tests.soak.agents import World
from tests.support.paths import ROOT

from perdure.store.shared.file_lock import WriteLock


@dataclass(frozen=True, slots=True)
class Nap:
    """Time for which a worker was frozen, by the machine's monotonic clock."""

    pid: int
    began: float
    ended: float


class Workers:
    """Workers of one database, running and frozen."""

    def __init__(self, world: World, programs: Sequence[str] = ("",)) -> None:
        self.living: list[int] = []
        self.frozen: list[int] = []
        self.naps: list[Nap] = []
        self._slept: dict[int, float] = {}  # start of each freeze
        self._world = world
        self._forkers = {name: _forker(world, name) for name in programs}
        self._next = cycle(programs)
        self.programs: dict[int, str] = {}  # by process

    def start(self, program: str | None = None) -> None:
        """Start a worker of this program, or of the next one in turn."""
        name = next(self._next) if program is None else program
        forker = self._forkers[name]
        assert forker.stdin is not None
        assert forker.stdout is not None
        forker.stdin.write("\n")
        forker.stdin.flush()
        pid = int(forker.stdout.readline())
        self.programs[pid] = name
        self.living.append(pid)

    def of(self, program: str) -> list[int]:
        """Return the workers that run this program."""
        return [pid for pid in self.living if self.programs[pid] == program]

    def kill(self, pid: int) -> None:
        """Kill a worker, as if its machine had failed."""
        self._signal(pid, signal.SIGKILL)
        self._forget(pid)

    def leave(self, pid: int) -> None:
        """Drain a worker."""
        self._signal(pid, signal.SIGTERM)
        self._forget(pid)

    def freeze(self, pid: int) -> bool:
        """Freeze a worker; on SQLite not inside a commit, which would block all others.

        On PostgreSQL the server ends an idle transaction.
        """
        if not self._world.is_local:
            self._signal(pid, signal.SIGSTOP)
            self._asleep(pid)
            return True
        lock = WriteLock(f"{self._world.database}.lock")
        lock.open()
        try:
            for _ in range(50):
                self._signal(pid, signal.SIGSTOP)
                if _is_stopped(pid) and lock.try_acquire():
                    lock.release()
                    self._asleep(pid)
                    return True
                self._signal(pid, signal.SIGCONT)
                time.sleep(0.002)
            return False
        finally:
            lock.close()

    def wake(self, pid: int) -> None:
        """Let a frozen worker continue."""
        self._signal(pid, signal.SIGCONT)
        self.frozen.remove(pid)
        self.living.append(pid)
        self.naps.append(Nap(pid, self._slept[pid], time.monotonic()))

    def end(self) -> None:
        """Kill all workers."""
        for pid in [*self.living, *self.frozen]:
            self._signal(pid, signal.SIGKILL)
        for forker in self._forkers.values():
            forker.kill()
            forker.communicate()

    def _signal(self, pid: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def _asleep(self, pid: int) -> None:
        self.living.remove(pid)
        self.frozen.append(pid)
        self._slept[pid] = time.monotonic()

    def _forget(self, pid: int) -> None:
        for group in (self.living, self.frozen):
            if pid in group:
                group.remove(pid)


def _forker(world: World, program: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.soak.program", str(world.folder), world.seed, program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def _is_stopped(pid: int) -> bool:
    for _ in range(200):
        if _state(pid).startswith("T"):
            return True
        time.sleep(0.001)
    return False


def _state(pid: int) -> str:
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        return stat.read_text().rpartition(")")[2].strip()
    asked = ["ps", "-o", "state=", "-p", str(pid)]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
