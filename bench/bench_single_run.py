"""CPU time of `agent.run`, beside the same run in a runtime that is open."""

import time

import anyio
from bench.report import Section

from perdure import Agent, Runtime, tool
from perdure.testing import ScriptedModel

ROUNDS = 15
RUNS = 40  # in a round
TURNS = [{"calls": [{"tool": "look", "args": {"order": 1}}]}] * 3 + [{"text": "Done."}]


@tool
def look(order: int) -> str:
    """Look up an order."""
    return f"order {order}"


def clerk() -> Agent[str]:
    """Return an agent whose run has four turns and three calls, which take no time."""
    return Agent("clerk", model=ScriptedModel(TURNS), tools=[look])


async def alone_s(agent: Agent[str]) -> float:
    """Return the CPU seconds of a run without a runtime of the program."""
    start = time.process_time()
    for _ in range(RUNS):
        (await agent.run("Go")).unwrap()
    return (time.process_time() - start) / RUNS


async def open_s(agent: Agent[str]) -> float:
    """Return the CPU seconds of a run in an open runtime on `memory:`."""
    async with Runtime("memory:", agents=[agent]) as rt:
        start = time.process_time()
        for _ in range(RUNS):
            (await rt.session(agent=agent).run("Go")).unwrap()
        return (time.process_time() - start) / RUNS


async def rounds(count: int) -> list[tuple[float, float]]:
    """Measure both in turns, so that other load affects both."""
    agent = clerk()
    return [(await alone_s(agent), await open_s(agent)) for _ in range(count)]


def measure(*, quick: bool = False) -> Section:
    """Measure the minimum of each."""
    count = 5 if quick else ROUNDS
    alone, opened = (min(column) for column in zip(*anyio.run(rounds, count), strict=True))
    text = (
        f"`agent.run` with four turns and three calls takes {alone * 1000:.2f} ms of CPU time, "
        f"{alone / opened:.2f} x the same run in an open runtime on `memory:` "
        f"({opened * 1000:.2f} ms); best of {count} rounds of {RUNS}; target ≤ 1.1 x."
    )
    return Section("Runs without a runtime", [text])
