"""How long a killed worker's session stands still: `python -m bench.postgres_take_over URL`."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import anyio

from perdure import Agent, Delta, Runtime, tool
from perdure.core.conversation.messages import Answer, AskedCall
from perdure.runtime.models.base import Request

LIMIT_S = 30.0


@tool
async def hold() -> None:
    """Take longer than the process lives."""
    print("held", flush=True)
    await asyncio.sleep(3_600)


class Model:
    """Asks for the tool first; notes when it is asked again."""

    name = "bench:take-over"

    def __init__(self) -> None:
        self.asked_again = anyio.Event()
        self.at = 0.0

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """The call, then a word."""
        if request.turn == 1:
            yield Answer(calls=(AskedCall("call-1", "hold", {}),))
            return
        self.at = time.perf_counter()
        self.asked_again.set()
        yield Answer(text="Gone on.")


def gap_s(url: str) -> float:
    """From the kill of the worker that has a session to the session's next model request here."""
    return asyncio.run(_gap(url))


async def _gap(url: str) -> float:
    model = Model()
    command = [sys.executable, "-m", "bench.postgres_take_over", url]
    held = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - no wait
    try:
        assert held.stdout is not None
        assert await anyio.to_thread.run_sync(held.stdout.readline) == "held\n"
        agent = Agent("bench", model=model, tools=[hold])
        async with Runtime(url, agents=[agent], worker=True):
            await anyio.sleep(1)  # it is at rest, and looks as often as it does then
            killed = time.perf_counter()
            held.kill()
            with anyio.fail_after(LIMIT_S):
                await model.asked_again.wait()
            return model.at - killed
    finally:
        held.kill()
        held.communicate()


async def _hold(url: str) -> None:
    async with Runtime(url, agents=[Agent("bench", model=Model(), tools=[hold])]) as rt:
        await rt.session("held", agent="bench").run("Hold it.")


if __name__ == "__main__":
    asyncio.run(_hold(sys.argv[1]))
