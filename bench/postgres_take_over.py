"""Time until a worker takes over from a killed one: `python -m bench.postgres_take_over URL`."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import anyio

from perdure import Agent, Delta, Runtime, tool
from perdure.core.conversation.messages import Answer, RequestedCall
from perdure.runtime.models.base import Request

LIMIT_S = 30.0


@tool
async def hold() -> None:
    """Run longer than the process lives."""
    print("held", flush=True)
    await asyncio.sleep(3_600)


class Model:
    """Model that requests the tool first, and records the time of the next request."""

    name = "bench:take-over"

    def __init__(self) -> None:
        self.was_resumed = anyio.Event()
        self.requested_at = 0.0

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Request the call, then respond with a text."""
        if request.turn == 1:
            yield Answer(calls=(RequestedCall("call-1", "hold", {}),))
            return
        self.requested_at = time.perf_counter()
        self.was_resumed.set()
        yield Answer(text="Continued.")


def gap_s(url: str) -> float:
    """Return the seconds from the kill of a driving worker to the next model request here."""
    return asyncio.run(_measure_gap(url))


async def _measure_gap(url: str) -> float:
    model = Model()
    command = [sys.executable, "-m", "bench.postgres_take_over", url]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - does not block
    try:
        assert holder.stdout is not None
        assert await anyio.to_thread.run_sync(holder.stdout.readline) == "held\n"
        agent = Agent("bench", model=model, tools=[hold])
        async with Runtime(url, agents=[agent], worker=True):
            await anyio.sleep(1)  # until the worker is idle and polls at its idle interval
            killed_at = time.perf_counter()
            holder.kill()
            with anyio.fail_after(LIMIT_S):
                await model.was_resumed.wait()
            return model.requested_at - killed_at
    finally:
        holder.kill()
        holder.communicate()


async def _hold(url: str) -> None:
    async with Runtime(url, agents=[Agent("bench", model=Model(), tools=[hold])]) as rt:
        await rt.session("held", agent="bench").run("Hold it.")


if __name__ == "__main__":
    asyncio.run(_hold(sys.argv[1]))
