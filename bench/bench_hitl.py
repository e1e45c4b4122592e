"""What it costs to pause for a person and to go on: by the size of the state, saved or in place."""

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
from perdure.core.conversation.messages import Answer, AskedCall
from perdure.core.session.naming import stream_of
from perdure.runtime.engine.host import Drive
from perdure.runtime.models.base import Request

SIZES = {"10 KB": 10_000, "100 KB": 100_000, "1 MB": 1_000_000}
CYCLES = 120
PAUSES = 20
TARGET = 5
Mode = Literal["auto", "blocking"]

METHOD = """\
A session that begins with a message of that size pauses for an approval, again and again; the
model and the tool take no time. A cycle is from the approval to the next pause: the decision, the
call and its result, the model's answer and the next request, each durable before it counts. Saved
is asynchronous: nothing is in memory but what the process may remember. Elsewhere, two runtimes on
one file take turns, so that each reads the whole state anew. In place is blocking. Four commits
of a cycle follow one another, each of which must be durable before the next may be thought of (the
decision, the intent to run the call, its result, the next answer): the floor is four bare commits
and a claim, and what Python does between them comes on top."""


@tool(requires_approval=True)
async def act(number: int) -> str:
    """Do nothing."""
    return f"done {number}"


class Asking:
    """A model that asks for the same call for ever."""

    name = "bench:asking"

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """The next call."""
        call = AskedCall(f"call_{request.turn}", "act", {"number": request.turn})
        yield Answer(text="Next.", calls=(call,))


def agent(mode: Mode) -> Agent[str]:
    return Agent("clerk", model=Asking(), tools=[act], hitl=mode, max_turns=100_000)


class Cycles(NamedTuple):
    """What a cycle took, in milliseconds."""

    p50: float
    p99: float


def measure(*, quick: bool = False) -> Section:
    """All sizes; `quick` is a tenth of the cycles."""
    cycles = CYCLES // 10 if quick else CYCLES
    ENVS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hitl-", dir=ENVS) as name:
        folder = Path(name)
        rows = []
        for label, size in SIZES.items():
            found = [
                anyio.run(way, folder / f"{label}-{n}.db", size, cycles)
                for n, way in enumerate((_saved, _elsewhere, _in_place))
            ]
            rows.append([label, *(f"{number(one.p50)} / {number(one.p99)}" for one in found)])
        small, bare = anyio.run(_beside_bare, folder, cycles)
        grown = anyio.run(_growth, folder / "growth.db")
    head = ["state", "saved, p50 / p99 ms", "elsewhere, p50 / p99 ms", "in place, p50 / p99 ms"]
    verdicts = (
        f"- taking turns with one bare commit of {number(bare)} ms, a saved cycle at 10 KB takes "
        f"{number(small)} ms, "
        f"{small / bare:.1f} x that; target ≤ {TARGET} x: "
        f"{'met' if small <= TARGET * bare else 'missed'}\n"
        f"- {PAUSES} pauses of a session of 1 MB write {number(grown / 1_000)} kB to its log; "
        f"once 1 MB is the bound: {'met' if grown < 1_000_000 else 'missed'}"
    )
    return Section("Pausing for a person", [METHOD, Table(head, rows), verdicts])


async def _saved(path: Path, size: int, cycles: int) -> Cycles:
    async with Runtime(f"sqlite:///{path}", agents=[agent("auto")]) as rt:
        return await _cycled(lambda _: rt, size, cycles)


async def _beside_bare(folder: Path, cycles: int) -> tuple[float, float]:
    """A saved cycle of 10 KB and a bare commit, in turns: a busy moment meets both."""
    bare: list[float] = []
    path = folder / "beside.db"
    async with Runtime(f"sqlite:///{path}", agents=[agent("auto")]) as rt:

        def who(turn: int) -> Runtime:
            place = folder / f"bare-{turn}.db"
            bare.append(bare_commits(place, 1, 3).wall / 1_000)
            return rt

        took = await _cycled(who, SIZES["10 KB"], cycles)
    return took.p50, statistics.median(bare)


async def _elsewhere(path: Path, size: int, cycles: int) -> Cycles:
    url = f"sqlite:///{path}"
    async with (
        Runtime(url, agents=[agent("auto")]) as one,
        Runtime(url, agents=[agent("auto")]) as other,
    ):
        return await _cycled(lambda turn: (one, other)[turn % 2], size, cycles)


async def _cycled(who: Callable[[int], Runtime], size: int, cycles: int) -> Cycles:
    result = await who(0).session("s", agent="clerk").run("x" * size)
    took = []
    for turn in range(1, cycles + 1):
        rt = who(turn)
        began = time.perf_counter()
        await rt.approve(result.pending[0].id, by="bench")
        result = await rt.session("s").run()
        took.append((time.perf_counter() - began) * 1_000)
    return _quantiles(took)


async def _in_place(path: Path, size: int, cycles: int) -> Cycles:
    took: list[float] = []
    async with (
        Runtime(f"sqlite:///{path}", agents=[agent("blocking")]) as rt,
        anyio.create_task_group() as tasks,
    ):
        host, stream = service_of(rt).host, stream_of("", "s")
        news, done = anyio.Event(), ""

        def heard(_: int) -> None:
            news.set()

        tasks.start_soon(rt.session("s", agent="clerk").run, "x" * size)
        began = time.perf_counter()
        with host.watch.listening(stream, heard):
            while len(took) <= cycles:
                await news.wait()
                news = anyio.Event()
                gate = _gate(host.drives.get(stream))
                if gate in ("", done):
                    continue
                took.append((time.perf_counter() - began) * 1_000)
                began, done = time.perf_counter(), gate
                await rt.approve(gate, by="bench")
        tasks.cancel_scope.cancel()
    return _quantiles(took[1:])


def _gate(drive: Drive | None) -> str:
    """The approval that a drive waits for in place, if it does."""
    driver = None if drive is None else drive.driver
    calls = [] if driver is None else driver.log.state.open_calls
    return next((call.gate for call in calls if call.gate), "")


async def _growth(path: Path) -> float:
    """The bytes of the records that twenty pauses add to a log of 1 MB."""
    async with Runtime(f"sqlite:///{path}", agents=[agent("auto")]) as rt:
        session = rt.session("s", agent="clerk")
        result = await session.run("x" * 1_000_000)
        before = result.seq
        for _ in range(PAUSES):
            await rt.approve(result.pending[0].id, by="bench")
            result = await session.run()
        return sum(len(repr(event.data)) for event in await session.events(after=before))


def _quantiles(took: list[float]) -> Cycles:
    ordered = sorted(took)
    return Cycles(
        statistics.median(ordered), ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    )
