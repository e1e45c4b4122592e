"""Clocks that were ahead and are corrected."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from perdure import Agent, Runtime
from perdure.testing import ManualClock, ScriptedModel

MakeRuntime = Callable[..., Runtime]
AHEAD = timedelta(hours=2)


class MovableClock(ManualClock):
    """Clock that can be set back."""

    def set_back(self, by: timedelta) -> None:
        self._now -= round(by.total_seconds() * 1000)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(datetime(2026, 1, 1, 2, tzinfo=UTC))


@pytest.mark.parametrize("moment", ["before the worker starts", "while it works"])
async def test_a_message_recorded_while_the_clock_was_ahead_is_due_once_it_is_corrected(
    in_memory: MakeRuntime, clock: MovableClock, moment: str
) -> None:
    agent = Agent("a", model=ScriptedModel([{"text": "Done."}, {"text": "Done."}]))
    async with in_memory(agent) as rt, anyio.create_task_group() as tasks:
        if moment == "while it works":
            await rt.session("first", agent=agent).send("Go")
            tasks.start_soon(rt.work)
            async for _ in rt.stream(session="first", after=0, types=("agent_complete",)):
                break
        await rt.session("s", agent=agent).send("Go")
        clock.set_back(AHEAD)
        if moment != "while it works":
            tasks.start_soon(rt.work)
        with anyio.fail_after(20):
            async for _ in rt.stream(session="s", after=0, types=("agent_complete",)):
                break
        tasks.cancel_scope.cancel()


async def test_a_back_off_that_began_while_the_clock_was_ahead_ends_once_it_is_corrected(
    in_memory: MakeRuntime, clock: MovableClock
) -> None:
    busy = {"text": "busy", "transient": True, "retry_after_ms": 60_000, "times": 1}
    agent = Agent("a", model=ScriptedModel([{"text": "Done.", "error": busy}]))
    async with in_memory(agent) as rt, anyio.create_task_group() as tasks:
        await rt.session("s", agent=agent).send("Go")
        await rt.work(once=True)
        assert (await rt.session("s").get()).state == "running"
        clock.set_back(AHEAD)
        tasks.start_soon(rt.work)
        with anyio.fail_after(20):
            async for _ in rt.stream(session="s", after=0, types=("agent_complete",)):
                break
        tasks.cancel_scope.cancel()
