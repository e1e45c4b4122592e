"""Rate, cost and durability of full pause and resume cycles, of perdure and other libraries.

A cycle is: message, model turn, call, submitted result, model turn, done.
"""

import os
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.contenders import (
    ALL,
    FLOOR,
    LANGGRAPH,
    LANGGRAPH_THREADS,
    OURS,
    QUICK,
    Contender,
    NotMeasured,
    available,
    run_job,
)
from bench.report import Section, Table, number
from bench.svg import Bars, chart

LEVELS = (1, 64)
ROUNDS, SECONDS = 3, 3.0
QUICK_SECONDS = 1.0
TRACED_CYCLES = {
    1: (10, 50),
    64: (64, 256),
}  # cycles of the short traced run, and how many more the long one has

METHOD = """\
A cycle is: message → model turn → call → its result → model turn → done. Nothing is started at the
pause, and one function call submits the result and continues: LangGraph has `interrupt`, Pydantic
AI a deferred call, perdure an external tool. "perdure, deferred" is what a tool that starts a job
elsewhere takes: the start is one more durable commit, and the result comes with a function call of
its own. Each cycle uses a new session in one SQLite file, and a fake model that responds
immediately. Each slice runs in its own process; contenders alternate within every round, and the
numbers are medians over the rounds. CPU is the CPU time of that process. fsyncs are counted with
strace, as the difference between a long and a short run, so that opening and closing do not count;
bytes are the growth of the files after closing. A cycle that does not finish within ten seconds
after its slice is abandoned; a dash means "not measured". "Result → request" is the median time,
with one session at a time, from submitting the result to the next model request."""


@dataclass
class CycleResults:
    """Measurements of one contender, by the number of concurrent sessions."""

    slices: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    fsyncs: dict[int, float | None] = field(default_factory=dict)

    def median(self, key: str, level: int) -> float | None:
        """Return the median over the rounds."""
        values = [result[key] for result in self.slices.get(level, ()) if result[key] is not None]
        return statistics.median(values) if values else None

    def durability(self) -> str:
        """Return the settings that the contender's connection reports."""
        return next(
            (result["durability"] for rounds in self.slices.values() for result in rounds), "-"
        )

    def errors(self) -> int:
        """Return the number of failed cycles."""
        return sum(len(result["errors"]) for rounds in self.slices.values() for result in rounds)


AllResults = dict[Contender, CycleResults]


def measure(*, quick: bool = False) -> Section:
    """Run all rounds of all contenders; `quick` runs one short round of three, without strace."""
    contenders = available(QUICK if quick else ALL)
    all_results: AllResults = {contender: CycleResults() for contender in contenders}
    seconds, rounds = (QUICK_SECONDS, 1) if quick else (SECONDS, ROUNDS)
    for index in range(rounds):
        for level in LEVELS:
            _log(f"cycles, round {index + 1} of {rounds}, {level} at a time")
            for contender in contenders:
                _run_slice(contender, all_results[contender], level, seconds)
    if not quick:
        _count_fsyncs(all_results)
    return _section(all_results, quick=quick)


def _run_slice(contender: Contender, results: CycleResults, level: int, seconds: float) -> None:
    try:
        result = run_job(contender, "cycles", sessions=level, seconds=seconds)
    except NotMeasured:
        return
    results.slices.setdefault(level, []).append(result)


# --- fsyncs ------------------------------------------------------------------------------------


def _count_fsyncs(all_results: AllResults) -> None:
    if shutil.which("strace") is None:
        _log("FSYNCS ARE NOT COUNTED: strace is not installed (Debian: apt install strace)")
        return
    for contender, results in all_results.items():
        for level in LEVELS:
            if not results.median("cycles_s", level):
                continue  # it finishes no cycle: counting would take minutes until it gives up
            _log(f"fsyncs, {contender.name}, {level} at a time")
            results.fsyncs[level] = _fsyncs_per_cycle(contender, level)


def _fsyncs_per_cycle(contender: Contender, level: int) -> float | None:
    first, more = TRACED_CYCLES[level]
    try:
        short, long = (
            _count_traced_fsyncs(contender, level, cycles) for cycles in (first, first + more)
        )
    except NotMeasured:
        return None
    return (long - short) / more


def _count_traced_fsyncs(contender: Contender, level: int, cycles: int) -> int:
    handle, name = tempfile.mkstemp(prefix="fsyncs-")
    os.close(handle)
    path = Path(name)
    trace = ("strace", "-f", "--seccomp-bpf", "-c", "-e", "trace=fsync,fdatasync", "-o", name)
    try:
        result = run_job(contender, "cycles", prefix=trace, sessions=level, cycles=cycles)
        if result["cycles"] < cycles:
            raise NotMeasured(f"{contender.name} finished {result['cycles']} of {cycles} cycles")
        return count_fsync_calls(path.read_text())
    finally:
        path.unlink()


def count_fsync_calls(summary: str) -> int:
    """Return the number of fsync and fdatasync calls in a summary of `strace -c`."""
    rows = re.findall(
        r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s.*\b(?:fsync|fdatasync)$", summary, re.MULTILINE
    )
    return sum(int(calls) for calls in rows)


# --- the report --------------------------------------------------------------------------------


def _section(all_results: AllResults, *, quick: bool) -> Section:
    parts: list[str | Table] = [METHOD, _table(all_results), "\n".join(_findings(all_results))]
    if quick:
        return Section("Pause and resume", parts)
    parts += ["### Settings and durability", _settings(all_results)]
    plots = {
        "cycles.svg": _plot(all_results, "Pause and resume", "cycles per second", "cycles_s"),
        "cpu.svg": _plot(all_results, "CPU per cycle", "ms", "cpu_ms"),
        "fsyncs.svg": _bars(
            all_results,
            "fsyncs per cycle",
            "count",
            lambda results, level: results.fsyncs.get(level),
        ),
    }
    return Section("Pause and resume", parts, plots)


def _table(all_results: AllResults) -> Table:
    head = ["", "cycles/s, 1", "at 64", "CPU ms, 1", "at 64", "fsyncs, 1", "at 64"]
    head += ["result → request, ms", "bytes"]
    rows = []
    for contender, results in all_results.items():
        cells = [results.median(key, level) for key in ("cycles_s", "cpu_ms") for level in LEVELS]
        cells += [results.fsyncs.get(level) for level in LEVELS]
        cells += [results.median("submitted_ms", 1), results.median("bytes", 64)]
        rows.append([contender.name, *(number(cell) for cell in cells)])
    return Table([*head[:7], *head[7:]], rows)


def _settings(all_results: AllResults) -> Table:
    rows = [
        [
            contender.name,
            contender.version or "this tree",
            results.durability(),
            contender.setting,
            str(results.errors()),
        ]
        for contender, results in all_results.items()
    ]
    return Table(["", "version", "journal, synchronous", "setting", "failed cycles"], rows)


def _findings(all_results: AllResults) -> list[str]:
    """Return one line per target, met or missed."""
    ours = all_results.get(OURS, CycleResults())
    findings = []
    rate = ours.median("cycles_s", 64)
    for contender, least in ((LANGGRAPH, 20), (LANGGRAPH_THREADS, 10)):
        theirs = all_results.get(contender, CycleResults()).median("cycles_s", 64)
        if rate and theirs:
            name = f"cycles/s at 64 compared with {contender.name}"
            findings.append(_target_ratio(name, rate / theirs, least, "x"))
    cpu = ours.median("cpu_ms", 64)
    findings.append(_target("CPU ms per cycle at 64", cpu, 0.9))
    bare_cpu = all_results.get(FLOOR, CycleResults()).median("cpu_ms", 64)
    if cpu and bare_cpu:
        name = "CPU per cycle at 64 compared with four bare commits"
        findings.append(_target(name, cpu / bare_cpu, 2))
    findings.append(
        _target("fsyncs per cycle at 1", ours.fsyncs.get(1), 4)
        + "; beside the four commits, a checkpoint of the write-ahead log every 16 MB"
    )
    findings.append(_target("fsyncs per cycle at 64", ours.fsyncs.get(64), 0.5))
    commit = all_results.get(FLOOR, CycleResults()).median("submitted_ms", 1)
    accepted = ours.median("accepted_ms", 1)
    if commit and accepted:
        findings.append(
            _target("accepted result → next model request, ms", accepted, 2 * commit)
            + f" (twice a bare commit, {commit:.2f} ms in this run)"
        )
    return findings


def _target(name: str, value: float | None, limit: float) -> str:
    if value is None:
        return f"- {name}: not measured; target ≤ {limit:.2g}"
    verdict = "met" if value <= limit else f"missed by {value / limit:.2f} x"
    return f"- {name}: {number(value)}; target ≤ {limit:.2g}: {verdict}"


def _target_ratio(name: str, value: float, least: float, unit: str) -> str:
    verdict = "met" if value >= least else "missed"
    return f"- {name}: {value:.1f} {unit}; target ≥ {least:g} {unit}: {verdict}"


def _plot(all_results: AllResults, title: str, unit: str, key: str) -> str:
    return _bars(all_results, title, unit, lambda results, level: results.median(key, level))


def _bars(
    all_results: AllResults,
    title: str,
    unit: str,
    value: Callable[[CycleResults, int], float | None],
) -> str:
    rows = [
        Bars(
            contender.name,
            [value(results, level) for level in LEVELS],
            contender.module == OURS.module,
        )
        for contender, results in all_results.items()
        if contender is not FLOOR  # not a runtime, and its values would dominate the scale
    ]
    return chart(title, unit, [f"{level} at a time" for level in LEVELS], rows)


def _log(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
