"""Crashes per second of a simulated fleet and of killed processes, and the cost of `host`."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from timeit import timeit
from typing import Any
from unittest import mock

from bench.contenders import OURS, run_job
from bench.report import Section, Table, number

from perdure import Agent, Runtime, host, tool
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel, simulate

SEEDS = 100
TRIALS = 5
POINTS = 3  # of a trial of the kill benchmark: one SIGKILL at each
CYCLES = 200  # pauses and resumes on the memory store, whose cycles are the cheapest
NAMES = ("elapsed", "instant_ns", "random_bits", "chance")

METHOD = """\
One process plays a story of two tools with effects, two others are workers; every fault is a crash.
Beside it the kill benchmark runs with perdure: real processes and SIGKILL. Failed starts do not
count as crashes. `host` is the module through which the runtime takes its time: its cost is that of
a name in another module, times the calls of a pause and resume."""


@tool
async def look(n: int) -> str:
    await asyncio.sleep(0.2)
    return f"seen {n}"


@tool
async def act(n: int) -> str:
    await asyncio.sleep(0.2)
    return f"done {n}"


@tool(external=True)
async def fetch() -> str:
    raise AssertionError("an external tool runs elsewhere")


def agents() -> list[Agent[Any]]:
    """Return the agent of the story."""
    turns: list[dict[str, Any]] = [
        {"calls": [{"tool": "look", "args": {"n": 1}}]},
        {"calls": [{"tool": "act", "args": {"n": 1}}]},
        {"text": "done"},
    ]
    return [Agent("a", model=ScriptedModel(turns), tools=[look, act])]


async def story(rt: Runtime) -> None:
    """Send one message, once."""
    await rt.session("s", agent="a").run("Go", key="start")


def measure(*, quick: bool = False) -> Section:
    """Measure both; `quick` runs a tenth of the seeds and one trial."""
    seeds, trials = (SEEDS // 10, 1) if quick else (SEEDS, TRIALS)
    began, cpu = time.perf_counter(), time.process_time()
    report = simulate(story, agents=agents, seeds=seeds, faults=["crash"])
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    killed = _kills_per_s(trials)
    per_s, per_cpu_s = report.crashes / took_s, report.crashes / cpu_s
    rows = [
        ["simulated fleet", number(per_s), number(per_cpu_s)],
        ["processes and SIGKILL", number(killed), ""],
    ]
    table = Table(["", "crashes per second", "per CPU second"], rows)
    ratio, share = per_s / killed, 1 + asyncio.run(_host_share(quick=quick))
    verdicts = (
        f"- {ratio:,.0f} x the crashes per second; target ≥ 100 x: {_met(ratio >= 100)}\n"
        f"- {per_cpu_s:,.0f} crashes per CPU second; target ≥ 60: {_met(per_cpu_s >= 60)}\n"
        f"- `host` costs {share:.4f} x the CPU of a cycle; target ≤ 1.01 x: {_met(share <= 1.01)}"
    )
    return Section("A simulated fleet", [METHOD, table, verdicts])


def _kills_per_s(trials: int) -> float:
    """Return how many processes the kill benchmark kills in a second."""
    began = time.perf_counter()
    run_job(OURS, "crash", trials=trials)
    return trials * POINTS / (time.perf_counter() - began)


async def _host_share(*, quick: bool) -> float:
    """Return the share of `host` in the CPU of a pause and resume."""
    cycles = CYCLES // 10 if quick else CYCLES
    counts = Counter[str]()
    with ExitStack() as stack:
        for name in NAMES:
            stack.enter_context(mock.patch.object(host, name, _counted(name, counts)))
        await _cycles(cycles)
    began = time.process_time()
    await _cycles(cycles)
    return _host_s() * counts.total() / (time.process_time() - began)


def _counted(name: str, counts: Counter[str]) -> Callable[..., Any]:
    original = getattr(host, name)

    def counted(*args: Any) -> Any:
        counts[name] += 1
        return original(*args)

    return counted


async def _cycles(count: int) -> None:
    turns: list[dict[str, Any]] = [{"calls": [{"tool": "fetch", "args": {}}]}, {"text": "done"}]
    agent = Agent("a", model=ScriptedModel(turns * count), tools=[fetch])
    async with Runtime(MemoryStore(), agents=[agent]) as rt:
        for number in range(count):
            session = rt.session(f"s{number}", agent=agent)
            (call,) = (await session.run("Go")).pending
            await session.run(results={call.id: "fetched"})


def _host_s() -> float:
    """Return what a call through `host` costs more than one of `time`, in seconds."""
    calls = 200_000
    plain = min(timeit("time.monotonic()", globals={"time": time}, number=calls) for _ in range(5))
    through = min(timeit("host.elapsed()", globals={"host": host}, number=calls) for _ in range(5))
    return max(0.0, through - plain) / calls


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"
