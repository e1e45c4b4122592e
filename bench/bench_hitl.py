"""Cost of a pause for an approval, by the size of the state: saved, elsewhere or in place."""

import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Literal, NamedTuple

import anyio
from bench.bench_store import bare_commits
from bench.envs import ENVS
from bench.report import Section, Table, number

from perdure import Agent, Delta, Runtime, tool
from perdure.app import service_of
from perdure.core.conversation.messages import Answer, RequestedCall
from perdure.core.session.naming import session_stream
from perdure.runtime.engine.driver import Driver
from perdure.runtime.models.base import Request

SIZES = {"10 KB": 10_000, "100 KB": 100_000, "1 MB": 1_000_000}
CYCLES = 120
PAUSES = 20
TARGET = 7  # bare commits; four of them are the least that a cycle can have
Mode = Literal["auto", "blocking"]

METHOD = """\
A session that starts with a message of the given size pauses for an approval again and again; the
model and the tool take no time. A cycle lasts from the approval to the next pause: the decision,
the call and its result, and the model response with the next gated call, each durable before the
next step. "Saved" is the asynchronous mode: the session is parked between cycles, and only the
caches of the process stay in memory. "Elsewhere": two runtimes on one file alternate, so that each
reads the whole state again. "In place" is the blocking mode. A cycle has four commits in sequence,
each durable before the next one starts (the decision, the intent to run the call, its result, the
next model response): the lower bound is four bare commits, plus the work of Python between them.
"Saved" and "elsewhere" decide with the run that continues, whose first commit also claims the
session."""


@tool(requires_approval=True)
async def act(number: int) -> str:
    """Do nothing."""
    return f"done {number}"


class CallingModel:
    """Model that requests the same tool in every turn."""

    name = "bench:asking"

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Request the next call."""
        call = RequestedCall(f"call_{request.turn}", "act", {"number": request.turn})
        yield Answer(text="Next.", calls=(call,))


def agent(mode: Mode) -> Agent[str]:
    """Agent whose only tool requires an approval."""
    return Agent("clerk", model=CallingModel(), tools=[act], hitl=mode, max_turns=100_000)


class CycleTimes(NamedTuple):
    """Quantiles of the duration of a cycle, in milliseconds."""

    p50: float
    p99: float


def measure(*, quick: bool = False) -> Section:
    """Measure all sizes; `quick` runs a tenth of the cycles."""
    cycles = CYCLES // 10 if quick else CYCLES
    ENVS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hitl-", dir=ENVS) as name:
        folder = Path(name)
        rows = []
        for label, size in SIZES.items():
            cycle_times = [
                anyio.run(measure_mode, folder / f"{label}-{n}.db", size, cycles)
                for n, measure_mode in enumerate(
                    (_measure_saved, _measure_elsewhere, _measure_in_place)
                )
            ]
            rows.append(
                [label, *(f"{number(times.p50)} / {number(times.p99)}" for times in cycle_times)]
            )
        saved, bare = anyio.run(_compare_with_bare_commit, folder, cycles)
        log_growth = anyio.run(_measure_log_growth, folder / "growth.db")
    head = ["state", "saved, p50 / p99 ms", "elsewhere, p50 / p99 ms", "in place, p50 / p99 ms"]
    verdicts = (
        f"- a saved cycle at 10 KB, alternating with one bare commit of {number(bare)} ms, takes "
        f"{number(saved)} ms, "
        f"{saved / bare:.1f} x that; target ≤ {TARGET} x: "
        f"{'met' if saved <= TARGET * bare else 'missed'}\n"
        f"- {PAUSES} pauses of a session of 1 MB add {number(log_growth / 1_000)} kB to its log; "
        f"target < 1 MB: {'met' if log_growth < 1_000_000 else 'missed'}"
    )
    return Section("Pausing for an approval", [METHOD, Table(head, rows), verdicts])


async def _measure_saved(path: Path, size: int, cycles: int) -> CycleTimes:
    async with Runtime(f"sqlite:///{path}", agents=[agent("auto")]) as rt:
        return await _run_cycles(lambda _: rt, size, cycles)


async def _compare_with_bare_commit(folder: Path, cycles: int) -> tuple[float, float]:
    """Alternate saved cycles of 10 KB and bare commits, so that other load affects both."""
    bare: list[float] = []
    path = folder / "beside.db"
    async with Runtime(f"sqlite:///{path}", agents=[agent("auto")]) as rt:

        def runtime_for(turn: int) -> Runtime:
            bare_path = folder / f"bare-{turn}.db"
            bare.append(bare_commits(bare_path, 1, 3).wall / 1_000)
            return rt

        times = await _run_cycles(runtime_for, SIZES["10 KB"], cycles)
    return times.p50, statistics.median(bare)


async def _measure_elsewhere(path: Path, size: int, cycles: int) -> CycleTimes:
    url = f"sqlite:///{path}"
    async with (
        Runtime(url, agents=[agent("auto")]) as first,
        Runtime(url, agents=[agent("auto")]) as second,
    ):
        return await _run_cycles(lambda turn: (first, second)[turn % 2], size, cycles)


async def _run_cycles(runtime_for: Callable[[int], Runtime], size: int, cycles: int) -> CycleTimes:
    result = await runtime_for(0).session("s", agent="clerk").run("x" * size)
    durations = []
    for turn in range(1, cycles + 1):
        rt = runtime_for(turn)
        began = time.perf_counter()
        (call,) = result.pending
        result = await rt.session("s").run(decisions={call: "approve"}, by="bench")
        durations.append((time.perf_counter() - began) * 1_000)
    return _quantiles(durations)


async def _measure_in_place(path: Path, size: int, cycles: int) -> CycleTimes:
    durations: list[float] = []
    async with (
        Runtime(f"sqlite:///{path}", agents=[agent("blocking")]) as rt,
        anyio.create_task_group() as tasks,
    ):
        drives, stream = service_of(rt).drives, session_stream("", "s")
        committed, previous = anyio.Event(), ""

        def on_commit(_: int) -> None:
            committed.set()

        tasks.start_soon(rt.session("s", agent="clerk").run, "x" * size)
        began = time.perf_counter()
        with drives.background.feed.subscribe(stream, on_commit):
            while len(durations) <= cycles:
                await committed.wait()
                committed = anyio.Event()
                gate = _open_approval(drives.running.get(stream))
                if gate in ("", previous):
                    continue
                durations.append((time.perf_counter() - began) * 1_000)
                began, previous = time.perf_counter(), gate
                await rt.approve(gate, by="bench")
        tasks.cancel_scope.cancel()
    return _quantiles(durations[1:])


def _open_approval(driver: Driver | None) -> str:
    """Return the id of the approval that a drive waits for in place, or an empty string."""
    calls = [] if driver is None else driver.log.state.open_calls
    return next((call.approval_id for call in calls if call.approval_id), "")


async def _measure_log_growth(path: Path) -> float:
    """Return the bytes that twenty pauses add to a log of 1 MB."""
    async with Runtime(f"sqlite:///{path}", agents=[agent("auto")]) as rt:
        session = rt.session("s", agent="clerk")
        result = await session.run("x" * 1_000_000)
        before = result.seq
        for _ in range(PAUSES):
            await rt.approve(result.pending[0].id, by="bench")
            result = await session.run()
        return sum(len(repr(event.data)) for event in await session.events(after=before))


def _quantiles(durations: list[float]) -> CycleTimes:
    ordered = sorted(durations)
    return CycleTimes(
        statistics.median(ordered), ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    )
