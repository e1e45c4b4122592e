"""Sixteen processes send a follow-up to one background task at the same moment."""

import time
from collections.abc import Iterator

import pytest
from tests.crash.agents import Place
from tests.crash.harness import Child
from tests.support.child_tasks import child_task

from perdure import Agent, Runtime
from perdure.testing import ScriptedModel

PROCESSES = 16
AHEAD_S = 0.02  # enough to tell all of them before the moment comes
RESUMED = "Task is currently being resumed. Wait for completion before sending another message."


class Crowd(Child):
    """Process with sixteen forks that hear what it is told."""

    program = "tests.crash.background_program"


@pytest.fixture
def crowd(place: Place) -> Iterator[Crowd]:
    started = Crowd(str(PROCESSES))
    started.tell({"url": place.url})
    assert started.says() == {"said": [{"ready": True}] * PROCESSES}
    yield started
    started.end()


async def check_rounds(crowd: Crowd, place: Place, rounds: int) -> None:
    """Of the follow-ups of each round one is accepted, counted and answered."""
    agent = Agent("researcher", model=ScriptedModel([{"text": str(n)} for n in range(rounds + 1)]))
    async with Runtime(place.url, agents=[agent]) as rt:
        task = await rt.spawn("researcher", "Tides?")
        await task.output(block=True)
        for number in range(1, rounds + 1):
            crowd.tell({"task": task.id, "at": time.monotonic() + AHEAD_S})
            said = crowd.says()["said"]
            accepted = [item for item in said if "accepted" in item]
            assert len(accepted) == 1, said
            assert {item["refused"] for item in said if "refused" in item} == {RESUMED}
            result = await task.output(block=True)
            assert result.output == str(number)
            record = await child_task(rt, task)
            assert (record.status, record.resume_count) == ("completed", number)
        events = await rt.session(task.session_id).events()
        assert len([e for e in events if e.type == "user"]) == rounds + 1


async def test_of_sixteen_follow_ups_at_once_one_is_accepted(crowd: Crowd, place: Place) -> None:
    """S1.10, S1.14, S1.15"""
    await check_rounds(crowd, place, rounds=8)


@pytest.mark.soak
async def test_of_sixteen_follow_ups_at_once_one_is_accepted_a_hundred_times(
    crowd: Crowd, place: Place
) -> None:
    """S1.14"""
    await check_rounds(crowd, place, rounds=100)
