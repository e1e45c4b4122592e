"""Processes of the crash tests."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.crash.agents import Place, make_agent
from tests.crash.program import SESSION
from tests.support.paths import ROOT

from perdure import Runtime, Session
from perdure.store.base import Clock

KILLED = -9


class Child:
    """Process that communicates in lines of JSON."""

    program = "tests.crash.program"

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", self.program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def tell(self, what: dict[str, Any]) -> None:
        """Send a line to it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def says(self) -> dict[str, Any]:
        """Return the next line of its output."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"process {self.process.pid} has ended: {self.process.poll()}"
        said: dict[str, Any] = json.loads(line)
        return said

    def end(self) -> None:
        """Kill it if it still runs."""
        self.process.kill()
        self.process.communicate()


class Forker(Child):
    """Process that does jobs in forks, one after the other."""

    def run(self, folder: Path, do: str, turns: str = "", **more: Any) -> int:
        """Do a job; return the exit status of its process."""
        folder.mkdir(exist_ok=True)
        self.tell({"folder": str(folder), "do": do, "turns": turns, **more})
        status: int = self.says()["status"]
        return status

    def kill(self, folder: Path, do: str, turns: str = "", *, at: str, **more: Any) -> None:
        """Do a job whose process is killed at that point, which it must reach."""
        died_at = folder / "died_at"
        died_at.unlink(missing_ok=True)
        status = self.run(folder, do, turns, kill_at=at, **more)
        reached = died_at.read_text().partition(" ")[0] if died_at.exists() else None
        assert (status, reached) == (KILLED, at), f"it ended with {status} at {reached}"

    def points(self, folder: Path) -> list[str]:
        """Return the points that the last job passed."""
        return (folder / "points").read_text().splitlines()


def ended(folder: Path) -> dict[str, Any]:
    """Return the report of the last process that ended by itself."""
    end: dict[str, Any] = json.loads((folder / "end").read_text())
    return end


def of(end: dict[str, Any], type_: str) -> list[dict[str, Any]]:
    """Return its events of one type."""
    return [event for event in end["events"] if event["type"] == type_]


@asynccontextmanager
async def successor(
    place: Place, turns: str, clock: Clock | None = None
) -> AsyncIterator[tuple[Runtime, Session[Any]]]:
    """Use the test itself as the next process on the same database; yield the session."""
    agent = make_agent(place, turns)
    async with Runtime(place.url, agents=[agent], deps=place, clock=clock) as rt:
        yield rt, rt.session(SESSION, agent=agent)


MakePlace = Callable[..., Place]
StartForker = Callable[[], Forker]
StartChild = Callable[..., Child]
