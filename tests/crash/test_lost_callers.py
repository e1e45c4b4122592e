"""Callers that wait for an answer and are killed, or frozen: the parent is notified soon."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import anyio
import pytest
from tests.crash.agents import Place
from tests.support.child_tasks import child_task

from perdure import Agent, Runtime
from perdure.core.conversation.messages import Answer
from perdure.core.session.children import BACKGROUND_AUTHOR
from perdure.runtime.models.base import Request
from perdure.testing import ScriptedModel

CALLER = """
import asyncio, sys
from perdure import Runtime

async def main() -> None:
    async with Runtime(sys.argv[1]) as rt:
        await (await rt.background_task(sys.argv[2])).resume("More?", block=True, timeout="10m")

asyncio.run(main())
"""


class HeldModel:
    """A model whose second response waits until the test allows it."""

    name = "held"

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.may_answer = anyio.Event()

    async def answer(self, request: Request) -> AsyncIterator[Answer]:
        if len(request.messages) > 1:
            self.asked.set()
            await self.may_answer.wait()
        yield Answer(f"Answer {len(request.messages)}.")


async def notifications(rt: Runtime) -> list[str]:
    events = await rt.session("s").events()
    texts = [e.data["content"] for e in events if e.data.get("by") == BACKGROUND_AUTHOR]
    return [str(text) for text in texts]


@pytest.fixture
def callers() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("when", ["before the answer", "after it"])
async def test_the_parent_is_notified_soon_if_its_childs_caller_is_killed_or_frozen(
    place: Place, callers: list[subprocess.Popen[bytes]], end: signal.Signals, when: str
) -> None:
    """S1.20: long before the ten minutes for which the caller would wait."""
    model = HeldModel()
    child = Agent("researcher", model=model)
    turns = [{"text": "Started."}, {"text": "Read."}, {"text": "Read."}]
    lead = Agent("lead", model=ScriptedModel(turns), sub_agents=[child])
    async with Runtime(place.url, agents=[lead], worker=True) as rt:
        await rt.session("s", agent=lead).run("Start")
        task = await rt.spawn("researcher", "Tides?", parent="s")
        with anyio.fail_after(60):
            while not await notifications(rt):  # noqa: ASYNC110 - of the worker
                await anyio.sleep(0.05)
            words = [sys.executable, "-c", CALLER, place.url, task.id]
            callers.append(await anyio.to_thread.run_sync(subprocess.Popen, words))
            await model.asked.wait()
            if when == "after it":
                os.kill(callers[0].pid, signal.SIGSTOP)  # else it would take the answer
                model.may_answer.set()
                while (await child_task(rt, task)).status != "completed":  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            os.kill(callers[0].pid, end)
            model.may_answer.set()
            while len(await notifications(rt)) < 2:  # noqa: ASYNC110 - of the worker
                await anyio.sleep(0.05)
        assert "Answer 3." in (await notifications(rt))[-1]
