"""One story, killed at the same point as a process and in a simulation, leaves equal logs."""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from tests.crash.agents import Place
from tests.crash.harness import Forker, ended, of
from tests.crash.program import KillingStore, story

from perdure import Agent, Runtime
from perdure.app import around_store
from perdure.store.base import Store
from perdure.testing.simulation.fleet import Fleet, Role
from perdure.testing.simulation.loop import Process
from perdure.testing.simulation.simulate import quiet_logs

TURNS = "look notify refund deploy"
# Inside a tool, inside one that is repeated, and right after the record of a decision.
POINTS = ("tool:look:", "tool:notify:", "decision")
# They differ between two plays: names of processes, times, how often a lease was taken, and ids.
VARIABLE = frozenset({"worker", "epoch", "expiresAt", "duration", "since"})
IDS = re.compile(r"\b(p|e|task|run|ctx|msg)_[0-9A-Z]{26,30}")


class Killed(BaseException):
    """The simulated process ends within this callback."""


@dataclass(slots=True)
class SimulatedPlace(Place):
    """Place of a simulated process, which dies as a real one does."""

    die: Callable[[], None] = lambda: None

    def point(self, name: str) -> None:
        self.points.append(name)
        if self.kill_at is not None and name.partition(" ")[0] == self.kill_at:
            self.die()
            raise Killed


class KilledStory:
    """Fleet of one process, which dies once at a point, and plays the story again."""

    def __init__(self, folder: Path, kill_at: str | None) -> None:
        self.folder = folder
        self.kill_at = kill_at
        self.has_ended = False
        self.roles = [Role("caller", is_worker=False, play=self.play)]

    def prepare(self, _: Fleet) -> None:
        pass

    def start(self, fleet: Fleet, process: Process) -> tuple[Sequence[Agent[Any]], Any]:
        place = SimulatedPlace(self.folder, self.kill_at)
        place.die = lambda: fleet.crash(process, f"at {self.kill_at}")
        self.place, self.kill_at = place, None
        around_store.set(lambda store: cast("Store", KillingStore(store, place)))
        return [], place

    async def play(self, runtime: Runtime) -> None:
        await story(runtime, TURNS, self.place)
        self.has_ended = True

    async def run(self, _: Fleet) -> bool:
        while not self.has_ended:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(1)
        return True


def simulated(folder: Path, kill_at: str | None) -> tuple[dict[str, Any], int]:
    """Play the story in a simulation; return its end, and how many crashes it had."""
    with quiet_logs():
        outcome = Fleet(1, KilledStory(folder, kill_at), ()).run()
    assert not outcome.problems, outcome.problems[0]
    return ended(folder), outcome.counts["crashes"]


def plain(end: dict[str, Any]) -> str:
    """Return the log without what differs between two plays, and with ids by their order."""
    rows = [{k: v for k, v in e.items() if k not in VARIABLE} for e in end["events"]]
    text = "\n".join(json.dumps(row, sort_keys=True) for row in rows)
    names: dict[str, str] = {}
    return IDS.sub(lambda id_: names.setdefault(id_[0], f"{id_[1]}_{len(names)}"), text)


@pytest.mark.parametrize("where", POINTS)
def test_a_simulated_kill_leaves_the_log_that_a_real_one_leaves(
    where: str, tmp_path: Path, forker: Forker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SX.3"""
    monkeypatch.setenv("PERDURE_SCRIPT_LOG", str(tmp_path / "requests"))
    real, virtual = tmp_path / "real", tmp_path / "virtual"
    virtual.mkdir()
    assert forker.run(tmp_path / "unbroken", "story", TURNS) == 0
    points = [point for point in forker.points(tmp_path / "unbroken") if where in point]
    point = points[-1].partition(" ")[0]
    forker.kill(real, "story", TURNS, at=point)
    assert forker.run(real, "story", TURNS) == 0
    end, crashes = simulated(virtual, point)
    assert crashes == 1
    assert plain(end) == plain(ended(real))
    assert end["state"] == ended(real)["state"] == "completed"
    attempts = [(line["call"], line["attempt"]) for line in Place(virtual).effects()]
    assert attempts == [(line["call"], line["attempt"]) for line in Place(real).effects()]
    interrupted = [e for e in of(end, "tool_result") if e.get("interrupted")]
    assert len(interrupted) == (where == "tool:look:")
