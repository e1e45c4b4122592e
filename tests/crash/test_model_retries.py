"""A process that is killed while its model is too busy: what was counted stays counted."""

from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from tests.crash.agents import Place
from tests.crash.harness import Forker, ended, of, successor

from perdure.testing import ManualClock

TURNS = "look !!look"


def points_of(forker: Forker, folder: Path, turns: str) -> list[str]:
    """The points right before and after each record of a retry, if nobody is killed."""
    assert forker.run(folder, "story", turns) == 0
    passed = forker.points(folder)
    found = [n for n, point in enumerate(passed) if "retry" in point]
    return [passed[n + step].partition(" ")[0] for n in found for step in (-1, 0)]


@pytest.fixture(scope="module")
def points(forker: Forker, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return points_of(forker, tmp_path_factory.mktemp("unbroken"), TURNS)


@pytest.mark.parametrize("number", range(4))
def test_killed_at_a_retry_it_counts_on_and_repeats_no_recorded_turn(
    place: Place, forker: Forker, points: list[str], number: int
) -> None:
    """S0.25"""
    assert len(points) == 4
    forker.kill(place.folder, "story", TURNS, at=points[number])
    assert forker.run(place.folder, "story", TURNS) == 0
    end = ended(place.folder)
    assert (end["state"], end["output"]) == ("completed", "all done")
    is_known = number % 2 == 1  # killed after the commit
    assert [event["attempt"] for event in of(end, "retry")] == ([1, 2] if is_known else [1])
    assert place.asked() == [0, 1, 1, 1, 2]
    assert len(place.effects()) == 2


async def test_a_long_wait_outlives_the_process_and_nothing_is_asked_before(
    place: Place, forker: Forker
) -> None:
    """S0.25"""
    after_retry = points_of(forker, place.folder / "short", "!look")[1]
    forker.kill(place.folder, "begin", "?look", at=after_retry)
    async with successor(place, "?look") as (_, session):
        (retry,) = [event for event in await session.events() if event.type == "retry"]
    clock = ManualClock(datetime.fromtimestamp(retry.data["next"] / 1000 - 1, UTC))
    with anyio.fail_after(20):
        async with successor(place, "?look", clock) as (rt, session):
            await rt.work(once=True)
            status = (await session.get()).to_json()["status"]
            told = {name: retry.data[name] for name in ("attempt", "message", "next")}
            assert status == {"type": "retry", **told}
            assert place.asked() == [0]
            clock.advance("2s")
            assert (await session.run()).output == "all done"
    assert place.asked() == [0, 0, 1]
