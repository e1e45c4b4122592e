"""Cost of background agents, as ratios to bare operations and to DBOS child workflows in one run.

Ours and the other operation take turns, so that other load on the machine affects both.
"""

import asyncio
import gc
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from bench.contenders import ALL, OURS, OURS_DEFERRED, NotMeasured, available, run_job
from bench.report import Section, Table, number
from msgspec import Raw

from perdure import Agent, Runtime, tool
from perdure.app import service_of
from perdure.core.log import events
from perdure.core.session.naming import session_stream, stream_kind
from perdure.runtime.records.entries import SessionEntry, SessionRef
from perdure.runtime.records.log import as_record
from perdure.store.base import Lease, Record, Store, Write
from perdure.testing import ScriptedModel

Work = Callable[[], Awaitable[Any]]

DBOS = next(item for item in ALL if item.name == "DBOS, WAL")
AT_ONCE = 64
WARM_UP = 100  # waiting children before what a process holds is counted
PARENT = "lead-1"
HOLDER_MS = 600_000
OUTPUT = b'"Here is what I found about the tides, with a source for every claim."'
ABOUT = """A *completion* is the commit that ends the run of a child: the events of the child and of
its parent, the entries of both, of the task and its mail. It stands beside an append of the same
events to one leased stream. A *delegation* is a launch, the child's turn, its mail, and the turn in
which the parent's model reads it; it stands beside our own pause and resume cycle with a
deferred call, and beside a workflow of DBOS (WAL) that starts child workflows and waits for each.
CPU is the CPU time of the process, and rates are those of one process."""


def measure(*, quick: bool = False) -> Section:
    """Return the section; `quick` measures less of everything."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        rows = asyncio.run(_local_rows(Path(folder), quick=quick))
    rows += _delegation_rows(quick=quick)
    table = Table(("", "ours", "beside", "ratio", "target"), rows)
    return Section("Background agents", [ABOUT, table])


async def _local_rows(folder: Path, *, quick: bool) -> list[list[str]]:
    return [
        *await _completion_rows(folder, 200 if quick else 1_000),
        await _waiting_row(folder, 50 if quick else 1_000),
        await _get_row(folder, quick=quick),
    ]


# --- completions ----------------------------------------------------------------------------------


def _agents() -> list[Agent[str]]:
    @tool(deferred=True)
    async def look() -> str:
        """Wait for a result."""
        return "ref"

    turns: list[dict[str, Any]] = [{"calls": [{"tool": "look"}]}, {"text": "Seen."}]
    waiting = Agent("waiting", model=ScriptedModel(turns), tools=[look])
    research = Agent("research", model=ScriptedModel([{"text": "Here is what I found."}]))
    model = ScriptedModel([{"text": "Read."}] * 3)
    return [Agent("lead", model=model, sub_agents=[research, waiting])]


async def _completion_rows(folder: Path, count: int) -> list[list[str]]:
    """Measure ends of children beside appends, some at a time, in turns."""
    async with Runtime(f"sqlite:///{folder}/ends.db", agents=_agents()) as rt:
        await rt.session(PARENT, agent="lead").run("Hi")
        store = service_of(rt).background.resources.store
        for _ in range(count):
            await rt.spawn("research", "Why are there tides?", parent=PARENT)
        leases = await _claim(store, stream_kind("research", "default"), count)
        bare = [f"bare-{index}" for index in range(count)]
        for stream in bare:
            await store.commit([Write(stream, [_record("created")], create="bare", wake=0)])
        bare_leases = await _claim(store, "bare", count)
        ends: list[Work] = [_end(rt, lease, await _session(rt, lease.stream)) for lease in leases]
        appends: list[Work] = [_append(store, lease) for lease in bare_leases]
        rows = []
        for at_once, part in ((1, slice(count // 5)), (AT_ONCE, slice(count // 5, None))):
            costs = await _alternate(ends[part], appends[part], at_once)
            for name, (own, least) in zip(("CPU", "time"), costs, strict=True):
                label = f"completions to one parent, {at_once} at a time, {name}"
                rows.append([label, _ms(own), _ms(least), f"{number(own / least)} x", "≤ 2 x"])
    return rows


async def _claim(store: Store, kind: str, count: int) -> list[Lease]:
    await store.renew(f"bench-{kind}", HOLDER_MS, join=True)
    leases: list[Lease] = []
    while len(leases) < count:
        leases += await store.claim(f"bench-{kind}", kind, count - len(leases))
    return leases


def _record(type_: str) -> Record:
    return Record(type_, b'{"output":' + OUTPUT + b"}", 0)


def _end(rt: Runtime, lease: Lease, session: SessionEntry) -> Work:
    """Return the commit that ends the run of a child."""
    resources, run = service_of(rt).background.resources, session.record.task_id or ""

    async def end() -> None:
        now = resources.store.now()
        fact = events.AgentComplete(run=run, output=Raw(OUTPUT), duration=1)
        write = Write(lease.stream, [as_record(fact, now)], fence=lease)
        await resources.commits.commit([write], [session.put(state="completed", updated_at=now)])

    return end


async def _session(rt: Runtime, stream: str) -> SessionEntry:
    session_id = stream.rpartition("/")[2]
    assert session_stream("", session_id) == stream
    return await service_of(rt).background.resources.session_inbox.session_entry(
        SessionRef("", session_id)
    )


def _append(store: Store, lease: Lease) -> Work:
    """Return a bare append to a leased stream."""

    async def append() -> None:
        await store.commit([Write(lease.stream, [_record("ended")], fence=lease)])

    return append


async def _alternate(
    ours: Sequence[Work], others: Sequence[Work], at_once: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return CPU and time per piece of work of both, which take turns."""
    cpu, wall = ([0.0, 0.0], [0.0, 0.0])
    for start in range(0, len(ours), at_once):
        for side, works in enumerate((ours, others)):
            began, spent = time.perf_counter(), time.process_time()
            await asyncio.gather(*(work() for work in works[start : start + at_once]))
            cpu[side] += time.process_time() - spent
            wall[side] += time.perf_counter() - began
    count = len(ours)
    return (cpu[0] / count, cpu[1] / count), (wall[0] / count, wall[1] / count)


# --- waiting children, and their parent -----------------------------------------------------------


async def _waiting_row(folder: Path, count: int) -> list[str]:
    """Count what a process holds with and without children that wait."""
    async with Runtime(f"sqlite:///{folder}/waiting.db", agents=_agents()) as rt:
        await rt.session(PARENT, agent="lead").run("Hi")
        counts = []
        for number_ in (WARM_UP, count):  # connections for reads are opened when they are needed
            for _ in range(number_):
                await rt.spawn("waiting", "Wait.", parent=PARENT)
            await rt.work(once=True)
            gc.collect()
            counts.append(_held())
        before, after = counts
    more = [f"{max(0, b - a):+d}" for a, b in zip(before, after, strict=True)]
    label = f"{count:,} waiting children: tasks, threads, files"
    is_met = all(value == "+0" for value in more)
    return [
        label,
        ", ".join(more),
        "1 waiting child",
        "-",
        f"+0, +0, +0{'' if is_met else ' MISSED'}",
    ]


def _held() -> tuple[int, int, int]:
    files = len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0
    return len(asyncio.all_tasks()), threading.active_count(), files


async def _get_row(folder: Path, *, quick: bool) -> list[str]:
    """Measure `get()` of a parent with 200 children beside one without."""
    async with Runtime(f"sqlite:///{folder}/get.db", agents=_agents()) as rt:
        for name in ("alone", PARENT):
            await rt.session(name, agent="lead").run("Hi")
        for _ in range(200):
            await rt.spawn("research", "Why?", parent=PARENT)
        await rt.session(PARENT).run()
        results: tuple[list[float], list[float]] = ([], [])
        for _ in range(20 if quick else 200):
            for costs, name in zip(results, (PARENT, "alone"), strict=True):
                spent = time.process_time()
                await rt.session(name).get()
                costs.append(time.process_time() - spent)
    own, least = (statistics.median(costs) for costs in results)
    label = "get() of a parent with 200 children, CPU"
    return [label, _ms(own), f"{_ms(least)} (without)", f"{number(own / least)} x", "≤ 3 x"]


# --- delegations ----------------------------------------------------------------------------------


def _delegation_rows(*, quick: bool) -> list[list[str]]:
    """Measure delegations beside our own cycles and beside DBOS, in turns."""
    rounds, seconds = (1, 1.0) if quick else (3, 3.0)
    jobs = [(OURS, "delegations"), (OURS_DEFERRED, "cycles")]
    jobs += [(item, "delegations") for item in available((DBOS,))]
    results: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for level in (1, AT_ONCE):
            for contender, job in jobs:
                try:
                    result = run_job(contender, job, sessions=level, seconds=seconds)
                except NotMeasured:
                    continue
                assert not result["errors"], result["errors"][:3]
                results.setdefault((contender.name, job, level), []).append(result)
    rows = []
    for level in (1, AT_ONCE):
        own = results[OURS.name, "delegations", level]
        cycles = results[OURS_DEFERRED.name, "cycles", level]
        rows.append(_row(f"delegation, {level} at a time, CPU", "cpu_ms", own, cycles, "≤ 2.5 x"))
        peer = results.get((DBOS.name, "delegations", level))
        if peer is not None:
            label = f"delegations/s, {level} at a time, beside DBOS"
            rows.append(_row(label, "cycles_s", own, peer, "≥ 5 x"))
    return rows


def _row(
    label: str, key: str, ours: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]], aim: str
) -> list[str]:
    own, other = (statistics.median(item[key] for item in items) for items in (ours, others))
    unit = " ms" if key == "cpu_ms" else "/s"
    return [
        label,
        f"{number(own)}{unit}",
        f"{number(other)}{unit}",
        f"{number(own / other)} x",
        aim,
    ]


def _ms(seconds: float) -> str:
    return f"{number(seconds * 1000)} ms"
