"""Checks after a soak, besides the oracle's check of each session."""

import re
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from tests.soak.agents import World
from tests.soak.director import Director
from tests.soak.workers import Nap

from perdure import Runtime


async def check_all(world: World, rt: Runtime, director: Director) -> None:
    """Check that every log is correct, no session ran in two processes, and nothing waits."""
    effects, intervals = _by_session(world.effects()), _by_session(world.intervals())
    naps = [*director.naps, *stalls(world)]
    wrong = []
    for name in director.oracle.messages:
        events = await rt.session(name).events(limit=1_000_000)
        wrong += director.oracle.judge(name, events, effects.get(name, []))
        wrong += overlaps(intervals.get(name, []), naps)
    assert not wrong, "\n".join(wrong)
    assert [call async for call in rt.pending()] == []


def overlaps(intervals: list[dict[str, Any]], naps: Sequence[Nap]) -> list[str]:
    """Return tools of one session that ran at the same time in two processes.

    A frozen worker may finish the tool it was in after another took over, but nothing more.
    """
    in_order = sorted(intervals, key=lambda line: float(line["began"]))
    return [
        f"{one['session']}: {one['call']} and {two['call']} ran at once in two processes"
        for one, two in combinations(in_order, 2)
        if one["pid"] != two["pid"] and two["began"] < one["ended"] and not _slept(one, naps)
    ]


def stalls(world: World) -> list[Nap]:
    """Return workers that logged a lost lease: the machine was slow, or they were frozen."""
    lost = re.findall(r"-(\d+)-\w+ lost its lease", world.log())
    return [Nap(int(pid), 0, float("inf")) for pid in lost]


def _slept(line: dict[str, Any], naps: Sequence[Nap]) -> bool:
    return any(
        nap.pid == line["pid"] and nap.began < line["ended"] and line["began"] < nap.ended
        for nap in naps
    )


def _by_session(lines: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        found.setdefault(line["session"], []).append(line)
    return found
