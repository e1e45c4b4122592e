"""A fleet on PostgreSQL: one worker and three, beside others, among many that wait, after a kill.

A cycle is that of `bench_cycles`; the server is one of our own, as durable as it comes.
"""

import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from bench import postgres_parked, postgres_take_over
from bench.contenders import Contender, NotMeasured, do, present
from bench.report import Section, Table, number
from tests.servers.components import Missing
from tests.servers.postgres import PostgresServer

FLEET = 3
SESSIONS = 64
ROUNDS, SECONDS, KILLS = 3, 4.0, 5
QUICK_SECONDS, QUICK_KILLS = 2.0, 2
STARTS_S = (4.0, 8.0, 16.0)  # for processes to import, connect and warm up, if need be longer
LATE_S = 0.2
SAMPLE_S = 0.05
FEW, MANY, QUICK_MANY = 1_000, 1_000_000, 20_000

METHOD = """\
The cycle of "Pause and resume", on a PostgreSQL of its own on the same machine (fsync and
synchronous_commit on, everything else as it comes), each contender in a database of its own. A
worker is a process with a Runtime that has 64 sessions under way at a time; three of them share one
database. CPU is that of the worker processes; beside it that of all of the server's processes, both
per cycle. Contenders take turns; the numbers are medians over the rounds. While ours run, every
50 ms `pg_stat_activity` is asked which of its connections wait for another one's row."""

OURS = Contender("perdure", "perdure_postgres")
FLOOR = Contender("bare commits", "floor_postgres")
LANGGRAPH = Contender("LangGraph, sync", "langgraph_postgres", "langgraph", "sync")
DEFAULT = Contender("LangGraph, async", "langgraph_postgres", "langgraph", "async")
DBOS = Contender("DBOS", "dbos_postgres", "dbos")
OTHERS = (FLOOR, LANGGRAPH, DEFAULT, DBOS)
QUICK_OTHERS = (FLOOR, LANGGRAPH, DBOS)

WAITING = """
    SELECT count(*) FILTER (WHERE wait_event_type = 'Lock'
                            AND wait_event IN ('transactionid', 'tuple')),
           count(*) FILTER (WHERE state = 'active')
    FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND datname = current_database()
      AND pid <> pg_backend_pid()
"""


@dataclass
class Slice:
    """What some processes of one contender did at one time."""

    cycles_s: float
    cpu_ms: float | None
    server_ms: float | None
    handed_in_ms: float | None
    accepted_ms: float | None


@dataclass
class Line:
    """One line of the table."""

    slices: list[Slice] = field(default_factory=list)

    def median(self, key: str) -> float | None:
        """Over the rounds."""
        values = [getattr(one, key) for one in self.slices if getattr(one, key) is not None]
        return statistics.median(values) if values else None


@dataclass
class Locks:
    """What was seen of connections at work."""

    waiting: int = 0
    active: int = 0
    samples: int = 0


class Bench:
    """A server, and what is measured on it."""

    def __init__(self, server: PostgresServer, *, quick: bool) -> None:
        self.server = server
        self.seconds = QUICK_SECONDS if quick else SECONDS
        self.lines: dict[str, Line] = {}
        self.locks = Locks()

    def slice(
        self, name: str, one: Contender, *, workers: int, sessions: int, url: str = ""
    ) -> None:
        """Let some processes work at one time on one database, and note what they did."""
        line = self.lines.setdefault(name, Line())
        url = url or self.server.new_database()
        asked: dict[str, Any] = {
            "sessions": sessions,
            "seconds": self.seconds,
            "variant": f"{one.variant} {url}".strip(),
        }
        for patience in STARTS_S:
            try:
                found, late = self._try(one, workers, patience, asked, url if one is OURS else "")
            except NotMeasured:
                return
            if late <= LATE_S:
                line.slices.append(found)
                return
            _say(f"{name}: a process began {late:.1f} s late, once more")

    def _try(
        self, one: Contender, workers: int, patience: float, asked: dict[str, Any], watched: str
    ) -> tuple[Slice, float]:
        """What they did, and how late the last one of them was ready."""
        begin_at = time.time() + patience
        with ThreadPoolExecutor(workers) as pool:
            jobs = [
                pool.submit(do, one, "cycles", begin_at=begin_at, **asked) for _ in range(workers)
            ]
            time.sleep(max(0.0, begin_at - time.time()))
            before = server_cpu(self.server)
            self._watch(watched, begin_at + self.seconds)
            results = [job.result() for job in jobs]
        spent = server_cpu(self.server) - before
        return _joined(results, spent), max(found["late_s"] for found in results)

    def _watch(self, url: str, until: float) -> None:
        """Look who waits for a lock, until it is over."""
        name = url.rpartition("/")[2]
        while time.time() < until:
            if name:
                waiting, active = self.server.psql(WAITING, name).split("|")
                self.locks.waiting += int(waiting)
                self.locks.active += int(active)
                self.locks.samples += 1
            time.sleep(SAMPLE_S)


def measure(*, quick: bool = False) -> Section:
    """All of it; `quick` is one short round, with fewer parked sessions."""
    try:
        server = PostgresServer("max_wal_size=4GB")
    except Missing as missing:
        _say(f"POSTGRESQL IS NOT MEASURED: {missing}")
        return Section("PostgreSQL", [f"Not measured: {missing}."])
    try:
        bench = Bench(server, quick=quick)
        for turn in range(1 if quick else ROUNDS):
            _say(f"postgres, round {turn + 1}")
            _round(bench, present(QUICK_OTHERS if quick else OTHERS))
        parked, among = _parked(bench, QUICK_MANY if quick else MANY)
        kills = QUICK_KILLS if quick else KILLS
        gaps = [postgres_take_over.gap_s(server.new_database()) for _ in range(kills)]
        return _section(bench, parked, among, gaps)
    finally:
        server.end()


def _round(bench: Bench, others: list[Contender]) -> None:
    bench.slice("1 worker", OURS, workers=1, sessions=SESSIONS)
    bench.slice(f"{FLEET} workers", OURS, workers=FLEET, sessions=SESSIONS)
    for one in others:
        bench.slice(one.name, one, workers=1, sessions=SESSIONS)
    bench.slice("one session", OURS, workers=1, sessions=1)
    bench.slice("one commit", FLOOR, workers=1, sessions=1)


def _parked(bench: Bench, many: int) -> tuple[list[tuple[int, Line]], list[str]]:
    """A worker among few that wait and among many, in turns; and the statements planned anew."""
    shapes: list[postgres_parked.Plans] = []
    urls = [bench.server.new_database() for _ in range(2)]
    for count, url in zip((FEW, many), urls, strict=True):
        _say(f"postgres, {count:,} parked sessions")
        anyio.run(postgres_parked.park, url, 1, count)
        shapes.append(anyio.run(postgres_parked.plans, url))
    for _ in range(2):
        for count, url in zip((FEW, many), urls, strict=True):
            bench.slice(f"{count:,} parked", OURS, workers=1, sessions=SESSIONS, url=url)
    found = [(count, bench.lines.pop(f"{count:,} parked")) for count in (FEW, many)]
    return found, [name for name in shapes[0] if shapes[0][name] != shapes[1][name]]


def _joined(results: list[dict[str, Any]], server_s: float) -> Slice:
    cycles = sum(one["cycles"] for one in results)
    cpu = sum((one["cpu_ms"] or 0.0) * one["cycles"] for one in results)
    return Slice(
        sum(one["cycles_s"] for one in results),
        cpu / cycles if cycles else None,
        server_s * 1_000 / cycles if cycles else None,
        results[0]["handed_in_ms"],
        results[0]["accepted_ms"],
    )


def server_cpu(server: PostgresServer) -> float:
    """Seconds of all processes of the server, ended ones too."""
    main = server.place.pid
    assert main is not None
    asked = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(main)], capture_output=True, text=True, check=False
    )
    return _ticks(main, with_ended=True) + sum(_ticks(int(pid)) for pid in asked.stdout.split())


def _ticks(pid: int, *, with_ended: bool = False) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended, and is counted with its parent
        return 0.0
    return sum(map(int, fields[11 : 15 if with_ended else 13])) / os.sysconf("SC_CLK_TCK")


# --- the report --------------------------------------------------------------------------------


def _section(
    bench: Bench, parked: list[tuple[int, Line]], replanned: list[str], gaps: list[float]
) -> Section:
    lines = bench.lines
    head = ["64 sessions per worker", "cycles/s", "CPU ms", "server CPU ms"]
    shown = {name: line for name, line in lines.items() if not name.startswith("one ")}
    rows = [_row(f"perdure, {name}" if "worker" in name else name, shown[name]) for name in shown]
    among = [_row(f"{count:,} parked", line) for count, line in parked]
    return Section(
        "PostgreSQL",
        [
            METHOD,
            Table(head, rows),
            "\n".join([*_fleet_findings(bench), _quick_answer(lines), _take_over(gaps)]),
            "One worker among sessions that wait, half of them with a deadline:",
            Table(["", *head[1:]], among),
            _parked_finding(parked, replanned),
        ],
    )


def _row(name: str, line: Line) -> list[str]:
    return [name, *(number(line.median(key)) for key in ("cycles_s", "cpu_ms", "server_ms"))]


def _fleet_findings(bench: Bench) -> list[str]:
    one, fleet = bench.lines["1 worker"], bench.lines[f"{FLEET} workers"]
    scale = 2.5 if (os.cpu_count() or 1) >= 4 else 1.2
    told = [
        _ratio(f"CPU per cycle with {FLEET} workers against 1", fleet, one, "cpu_ms", most=1.3),
        _ratio(f"cycles/s with {FLEET} workers against 1", fleet, one, "cycles_s", least=scale),
    ]
    for other in (LANGGRAPH, DBOS):
        line = bench.lines.get(other.name, Line())
        told.append(_ratio(f"cycles/s against {other.name}", one, line, "cycles_s", least=10))
    locks = bench.locks
    told.append(
        f"- connections seen waiting for a row of another: {locks.waiting} of {locks.active} at "
        f"work, in {locks.samples} looks; target 0: {'met' if not locks.waiting else 'missed'}"
    )
    return told


def _ratio(
    what: str, ours: Line, theirs: Line, key: str, *, most: float | None = None, least: float = 0
) -> str:
    value, base = ours.median(key), theirs.median(key)
    sign, bound = ("≥", least) if most is None else ("≤", most)
    if not value or not base:
        return f"- {what}: not measured; target {sign} {bound:g} x"
    found = value / base
    met = found >= least if most is None else found <= most
    return f"- {what}: {found:.2f} x; target {sign} {bound:g} x: {'met' if met else 'missed'}"


def _quick_answer(lines: dict[str, Line]) -> str:
    accepted = lines["one session"].median("accepted_ms")
    commit = lines["one commit"].median("handed_in_ms")
    if not accepted or not commit:
        return "- accepted result → next model request: not measured; target ≤ 5 x one commit"
    verdict = "met" if accepted <= 5 * commit else "missed"
    return (
        f"- accepted result → next model request: {number(accepted)} ms, {accepted / commit:.1f} x "
        f"one bare commit of {number(commit)} ms; target ≤ 5 x: {verdict}"
    )


def _take_over(gaps: list[float]) -> str:
    worst = max(gaps)
    return (
        f"- a worker is killed, another goes on with its session after {number(min(gaps))} to "
        f"{number(worst)} s ({len(gaps)} times); target ≤ 1 s: {'met' if worst <= 1 else 'missed'}"
    )


def _parked_finding(parked: list[tuple[int, Line]], replanned: list[str]) -> str:
    (few, base), (many, line) = parked
    told = [
        _ratio(f"{what} at {many:,} against {few:,}", line, base, key, most=1.2)
        for what, key in (("CPU per cycle", "cpu_ms"), ("server CPU per cycle", "server_ms"))
    ]
    plans = "all the same" if not replanned else f"different for {', '.join(replanned)}"
    return "\n".join([*told, f"- the plans of the statements at both: {plans}"])


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
