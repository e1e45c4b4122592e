"""Processes of a campaign, and the ways to end or freeze them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.soak.world import World
from tests.support.paths import ROOT


class Place(NamedTuple):
    """Place of a process in the campaign: one process at a time has it."""

    role: str
    number: int
    is_newer: bool = False  # it runs the newer version: see versions.py


# Roles of a whole campaign; the others are for smaller ones.
EVERYBODY = (
    *(Place("worker", 0), Place("worker", 1)),
    *(Place("server", 0), Place("server", 1)),
    *(Place("client", 0), Place("client", 1)),
    *(Place("program", 0), Place("reader", 0)),
)


@dataclass(slots=True)
class _Process:
    pid: int
    frozen_since: float | None = None  # by the machine's monotonic clock
    wake_at: float = 0.0
    is_leaving: bool = False  # it was asked to end


@dataclass(slots=True)
class Fleet:
    """Processes of a campaign, running and frozen, by their places."""

    world: World
    places: Sequence[Place] = EVERYBODY
    newer_pids: set[int] = field(default_factory=set)
    _starts: int = 0
    _living: dict[Place, _Process] = field(default_factory=dict)
    _forker: "subprocess.Popen[str] | None" = None

    def start(self, place: Place) -> None:
        """Start a process in a free place."""
        if self._forker is None:
            command = [sys.executable, "-m", "tests.soak.program", str(self.world.folder)]
            pipe = subprocess.PIPE
            self._forker = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
        assert self._forker.stdin is not None
        assert self._forker.stdout is not None
        self._starts += 1
        self._forker.stdin.write(json.dumps([*place[:2], self._starts, place.is_newer]) + "\n")
        self._forker.stdin.flush()
        pid = int(self._forker.stdout.readline())
        self._living[place] = _Process(pid)
        if place.is_newer:
            self.newer_pids.add(pid)

    def start_missing(self) -> None:
        """Start a process in every free place; one that ended by itself is recorded."""
        for place in self.places:
            process = self._living.get(place)
            if process is not None and _is_alive(process.pid):
                continue
            if process is not None and not process.is_leaving:
                self.world.append("ended", {"place": f"{place.role}{place.number}"})
            self.start(place)

    def running(self) -> list[Place]:
        """Return the places of processes that are not frozen."""
        return [place for place, process in self._living.items() if process.frozen_since is None]

    def kill(self, place: Place) -> None:
        """Kill a process, as if its machine had failed."""
        pid = self._living.pop(place).pid
        self._signal(pid, signal.SIGKILL)
        while _is_alive(pid):  # its port must be free
            time.sleep(0.001)

    def terminate(self, place: Place) -> None:
        """Ask a process to end; it keeps its place until it has."""
        process = self._living[place]
        process.is_leaving = True
        self._signal(process.pid, signal.SIGTERM)

    def freeze(self, place: Place, seconds: float) -> None:
        """Freeze a process, also inside a commit, until `wake` finds that the time is over."""
        process = self._living[place]
        self._signal(process.pid, signal.SIGSTOP)
        process.frozen_since = time.monotonic()
        process.wake_at = process.frozen_since + seconds

    def wake(self, *, all_: bool = False) -> None:
        """Let the frozen processes continue whose time is over, or all."""
        for process in self._living.values():
            since = process.frozen_since
            if since is not None and (all_ or process.wake_at < time.monotonic()):
                self._signal(process.pid, signal.SIGCONT)
                nap = {"pid": process.pid, "began": since, "ended": time.monotonic()}
                self.world.append("naps", nap)
                process.frozen_since = None

    def stop(self, longest_s: float, places: Sequence[Place] | None = None) -> list[Place]:
        """End processes in an orderly way; return the places of those that did not end in time."""
        pids = {place: self._living.pop(place).pid for place in places or list(self._living)}
        for pid in pids.values():
            self._signal(pid, signal.SIGTERM)
        until = time.monotonic() + longest_s
        while any(map(_is_alive, pids.values())) and time.monotonic() < until:
            time.sleep(0.05)
        late = [place for place, pid in pids.items() if _is_alive(pid)]
        for number in (signal.SIGUSR1, signal.SIGKILL) if late else ():
            for place in late:
                self._signal(pids[place], number)
            time.sleep(0.5)  # for the first to print where it is
        return late

    def end(self) -> None:
        """Kill all processes."""
        for process in self._living.values():
            self._signal(process.pid, signal.SIGKILL)
        if self._forker is not None:
            self._forker.kill()
            self._forker.communicate()

    def _signal(self, pid: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
