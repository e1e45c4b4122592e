"""Full pause and resume cycles, ours and others', in turns: how many, how dear, how durable.

A cycle is: message, model turn, call that waits, result from outside, model turn, done.
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

from bench.contenders import ALL, FLOOR, LANGGRAPH, OURS, QUICK, Contender, NotMeasured, do, present
from bench.report import Section, Table, number
from bench.svg import Bars, chart

LEVELS = (1, 64)
ROUNDS, SECONDS = 3, 3.0
QUICK_SECONDS = 1.0
COUNTED = {
    1: (10, 50),
    64: (64, 256),
}  # cycles of the first traced run; how many more the second has

METHOD = """\
A cycle is: message → model turn → call that waits → result from outside → model turn → done, each
cycle in a session of its own, on one SQLite file, with a fake model that answers at once. Every
slice runs in a process of its own; contenders take turns, round by round; the numbers are medians
over the rounds. CPU is the process time of the measuring process. fsyncs are counted with strace,
as the difference of a long and a short run, so that opening and closing do not count; bytes are the
files' growth after closing. A cycle that does not end within ten seconds of its slice is given up;
a dash is what could not be measured. "Result → request" is the median time at one session from
handing the result in to the next model request."""


@dataclass
class Line:
    """What was measured of one contender, by sessions at a time."""

    slices: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    fsyncs: dict[int, float | None] = field(default_factory=dict)

    def median(self, key: str, level: int) -> float | None:
        """The median over the rounds."""
        values = [one[key] for one in self.slices.get(level, ()) if one[key] is not None]
        return statistics.median(values) if values else None

    def durability(self) -> str:
        """What its connection said."""
        return next((one["durability"] for rounds in self.slices.values() for one in rounds), "-")

    def errors(self) -> int:
        """Cycles that failed."""
        return sum(len(one["errors"]) for rounds in self.slices.values() for one in rounds)


Lines = dict[Contender, Line]


def measure(*, quick: bool = False) -> Section:
    """All rounds of all contenders; `quick` is one short round of the first three, untraced."""
    who = present(QUICK if quick else ALL)
    lines: Lines = {one: Line() for one in who}
    seconds, rounds = (QUICK_SECONDS, 1) if quick else (SECONDS, ROUNDS)
    for number_ in range(rounds):
        for level in LEVELS:
            _say(f"cycles, round {number_ + 1} of {rounds}, {level} at a time")
            for one in who:
                _slice(one, lines[one], level, seconds)
    if not quick:
        _count_fsyncs(lines)
    return _section(lines, quick=quick)


def _slice(one: Contender, line: Line, level: int, seconds: float) -> None:
    try:
        result = do(one, "cycles", sessions=level, seconds=seconds)
    except NotMeasured:
        return
    line.slices.setdefault(level, []).append(result)


# --- fsyncs ------------------------------------------------------------------------------------


def _count_fsyncs(lines: Lines) -> None:
    if shutil.which("strace") is None:
        _say("FSYNCS ARE NOT COUNTED: there is no strace (Debian: apt install strace)")
        return
    for one, line in lines.items():
        for level in LEVELS:
            _say(f"fsyncs, {one.name}, {level} at a time")
            line.fsyncs[level] = _fsyncs(one, level)


def _fsyncs(one: Contender, level: int) -> float | None:
    first, more = COUNTED[level]
    try:
        short, long = (_traced(one, level, cycles) for cycles in (first, first + more))
    except NotMeasured:
        return None
    return (long - short) / more


def _traced(one: Contender, level: int, cycles: int) -> int:
    handle, name = tempfile.mkstemp(prefix="fsyncs-")
    os.close(handle)
    seen = Path(name)
    trace = ("strace", "-f", "--seccomp-bpf", "-c", "-e", "trace=fsync,fdatasync", "-o", name)
    try:
        done = do(one, "cycles", before=trace, sessions=level, cycles=cycles)
        if done["cycles"] < cycles:
            raise NotMeasured(f"{one.name} finished {done['cycles']} of {cycles} cycles")
        return calls_in(seen.read_text())
    finally:
        seen.unlink()


def calls_in(summary: str) -> int:
    """How often fsync and fdatasync stand in a summary of `strace -c`."""
    rows = re.findall(
        r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s.*\b(?:fsync|fdatasync)$", summary, re.MULTILINE
    )
    return sum(int(calls) for calls in rows)


# --- the report --------------------------------------------------------------------------------


def _section(lines: Lines, *, quick: bool) -> Section:
    parts: list[str | Table] = [METHOD, _table(lines), "\n".join(_findings(lines))]
    if quick:
        return Section("Pause and resume", parts)
    parts += ["### Settings and durability", _settings(lines)]
    plots = {
        "cycles.svg": _plot(lines, "Pause and resume", "cycles per second", "cycles_s"),
        "cpu.svg": _plot(lines, "CPU per cycle", "ms", "cpu_ms"),
        "fsyncs.svg": _bars(
            lines, "fsyncs per cycle", "count", lambda line, level: line.fsyncs.get(level)
        ),
    }
    return Section("Pause and resume", parts, plots)


def _table(lines: Lines) -> Table:
    head = ["", "cycles/s, 1", "at 64", "CPU ms, 1", "at 64", "fsyncs, 1", "at 64"]
    head += ["result → request, ms", "bytes"]
    rows = []
    for one, line in lines.items():
        cells = [line.median(key, level) for key in ("cycles_s", "cpu_ms") for level in LEVELS]
        cells += [line.fsyncs.get(level) for level in LEVELS]
        cells += [line.median("handed_in_ms", 1), line.median("bytes", 64)]
        rows.append([one.name, *(number(cell) for cell in cells)])
    return Table([*head[:7], *head[7:]], rows)


def _settings(lines: Lines) -> Table:
    rows = [
        [one.name, one.version or "this tree", line.durability(), one.setting, str(line.errors())]
        for one, line in lines.items()
    ]
    return Table(["", "version", "journal, synchronous", "setting", "failed cycles"], rows)


def _findings(lines: Lines) -> list[str]:
    """Our targets, and where we stand; misses are said as plainly as hits."""
    ours = lines.get(OURS, Line())
    told = []
    theirs = lines.get(LANGGRAPH, Line()).median("cycles_s", 64)
    rate = ours.median("cycles_s", 64)
    if rate and theirs:
        told.append(_against("cycles/s at 64 against LangGraph, sync", rate / theirs, 20, "x"))
    told.append(_target("CPU ms per cycle at 64", ours.median("cpu_ms", 64), 0.8))
    told.append(_target("fsyncs per cycle at 1", ours.fsyncs.get(1), 4))
    told.append(_target("fsyncs per cycle at 64", ours.fsyncs.get(64), 0.5))
    commit = lines.get(FLOOR, Line()).median("handed_in_ms", 1)
    accepted = ours.median("accepted_ms", 1)
    if commit and accepted:
        told.append(
            _target("accepted result → next model request, ms", accepted, 2 * commit)
            + f" (twice a bare commit, {commit:.2f} ms in this run)"
        )
    return told


def _target(what: str, value: float | None, most: float) -> str:
    if value is None:
        return f"- {what}: not measured; target ≤ {most:.2g}"
    verdict = "met" if value <= most else f"missed by {value / most:.1f} x"
    return f"- {what}: {number(value)}; target ≤ {most:.2g}: {verdict}"


def _against(what: str, value: float, least: float, unit: str) -> str:
    verdict = "met" if value >= least else "missed"
    return f"- {what}: {value:.1f} {unit}; target ≥ {least:g} {unit}: {verdict}"


def _plot(lines: Lines, title: str, unit: str, key: str) -> str:
    return _bars(lines, title, unit, lambda line, level: line.median(key, level))


def _bars(lines: Lines, title: str, unit: str, value: Callable[[Line, int], float | None]) -> str:
    rows = [
        Bars(one.name, [value(line, level) for level in LEVELS], one is OURS)
        for one, line in lines.items()
        if one is not FLOOR  # it would set the scale, and is no runtime
    ]
    return chart(title, unit, [f"{level} at a time" for level in LEVELS], rows)


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
