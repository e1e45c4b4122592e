"""Workers on PostgreSQL: one and three, other libraries, many parked sessions, a killed worker.

A cycle is that of `bench_cycles`; the server is started for the benchmark, with fsync on.
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
from bench.contenders import Contender, NotMeasured, available, run_job
from bench.report import Section, Table, number
from tests.servers.components import Missing
from tests.servers.postgres import PostgresServer

FLEET = 3
SESSIONS = 64
ROUNDS, SECONDS, KILLS = 3, 4.0, 5
QUICK_SECONDS, QUICK_KILLS = 2.0, 2
STARTS_S = (4.0, 8.0, 16.0)  # until the common start; the next value if a process was not ready
MAX_DELAY_S = 0.2
SAMPLE_S = 0.05
FEW, MANY, QUICK_MANY = 1_000, 1_000_000, 20_000

METHOD = """\
The cycle of "Pause and resume" on a dedicated PostgreSQL server on the same machine. fsync and
synchronous_commit are on; only max_connections and max_wal_size differ from the defaults. Each
contender has its own database. A worker is a process with a Runtime that runs 64 sessions
concurrently; three workers share one database. CPU is that of the worker processes, server CPU that
of all processes of the server, both per cycle. Contenders alternate; the numbers are medians over
the rounds. While perdure runs, the benchmark queries `pg_stat_activity` every 50 ms for connections
that wait for a row lock of another connection."""

OURS = Contender("perdure", "perdure_postgres")
FLOOR = Contender("bare commits", "floor_postgres")
LANGGRAPH = Contender("LangGraph, sync", "langgraph_postgres", "langgraph", "sync")
DEFAULT = Contender("LangGraph, async", "langgraph_postgres", "langgraph", "async")
DBOS = Contender("DBOS", "dbos_postgres", "dbos")
OTHERS = (FLOOR, LANGGRAPH, DEFAULT, DBOS)
QUICK_OTHERS = (FLOOR, LANGGRAPH, DBOS)

LOCK_WAITS = """
    SELECT count(*) FILTER (WHERE wait_event_type = 'Lock'
                            AND wait_event IN ('transactionid', 'tuple')),
           count(*) FILTER (WHERE state = 'active')
    FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND datname = current_database()
      AND pid <> pg_backend_pid()
"""


@dataclass
class Slice:
    """Measurement of the concurrent processes of one contender."""

    cycles_s: float
    cpu_ms: float | None
    server_ms: float | None
    submitted_ms: float | None
    accepted_ms: float | None


@dataclass
class SliceResults:
    """Slices of one row of the table."""

    slices: list[Slice] = field(default_factory=list)

    def median(self, key: str) -> float | None:
        """Return the median over the rounds."""
        values = [getattr(entry, key) for entry in self.slices if getattr(entry, key) is not None]
        return statistics.median(values) if values else None


@dataclass
class Locks:
    """Sums of sampled connections: waiting for a lock, and active."""

    waiting: int = 0
    active: int = 0
    samples: int = 0


class FleetBenchmark:
    """PostgreSQL server and the results measured on it."""

    def __init__(self, server: PostgresServer, *, quick: bool) -> None:
        self.server = server
        self.seconds = QUICK_SECONDS if quick else SECONDS
        self.results: dict[str, SliceResults] = {}
        self.locks = Locks()

    def run_slice(
        self, name: str, contender: Contender, *, workers: int, sessions: int, url: str = ""
    ) -> None:
        """Run worker processes concurrently on one database and add their slice to the results."""
        results = self.results.setdefault(name, SliceResults())
        url = url or self.server.new_database()
        options: dict[str, Any] = {
            "sessions": sessions,
            "seconds": self.seconds,
            "variant": f"{contender.variant} {url}".strip(),
        }
        for start_s in STARTS_S:
            try:
                slice_, delay = self._run_workers(
                    contender, workers, start_s, options, url if contender is OURS else ""
                )
            except NotMeasured:
                return
            if delay <= MAX_DELAY_S:
                results.slices.append(slice_)
                return
            _log(f"{name}: a process started {delay:.1f} s late; retrying with a later start")

    def _run_workers(
        self,
        contender: Contender,
        workers: int,
        start_s: float,
        options: dict[str, Any],
        watched_url: str,
    ) -> tuple[Slice, float]:
        """Return the slice, and the delay of the process that was ready last."""
        begin_at = time.time() + start_s
        with ThreadPoolExecutor(workers) as pool:
            jobs = [
                pool.submit(run_job, contender, "cycles", begin_at=begin_at, **options)
                for _ in range(workers)
            ]
            time.sleep(max(0.0, begin_at - time.time()))
            before = server_cpu(self.server)
            self._sample_locks(watched_url, begin_at + self.seconds)
            outputs = [job.result() for job in jobs]
        server_s = server_cpu(self.server) - before
        return _merge_outputs(outputs, server_s), max(result["late_s"] for result in outputs)

    def _sample_locks(self, url: str, until: float) -> None:
        """Sample connections that wait for a row lock, until the slice ends."""
        name = url.rpartition("/")[2]
        while time.time() < until:
            if name:
                waiting, active = self.server.psql(LOCK_WAITS, name).split("|")
                self.locks.waiting += int(waiting)
                self.locks.active += int(active)
                self.locks.samples += 1
            time.sleep(SAMPLE_S)


def measure(*, quick: bool = False) -> Section:
    """Run all measurements; `quick` runs one short round with fewer parked sessions."""
    try:
        server = PostgresServer("max_wal_size=4GB")
    except Missing as missing:
        _log(f"POSTGRESQL IS NOT MEASURED: {missing}")
        return Section("PostgreSQL", [f"Not measured: {missing}."])
    try:
        bench = FleetBenchmark(server, quick=quick)
        for turn in range(1 if quick else ROUNDS):
            _log(f"postgres, round {turn + 1}")
            _run_round(bench, available(QUICK_OTHERS if quick else OTHERS))
        parked, replanned = _measure_parked(bench, QUICK_MANY if quick else MANY)
        kills = QUICK_KILLS if quick else KILLS
        gaps = [postgres_take_over.gap_s(server.new_database()) for _ in range(kills)]
        return _section(bench, parked, replanned, gaps)
    finally:
        server.end()


def _run_round(bench: FleetBenchmark, others: list[Contender]) -> None:
    bench.run_slice("1 worker", OURS, workers=1, sessions=SESSIONS)
    bench.run_slice(f"{FLEET} workers", OURS, workers=FLEET, sessions=SESSIONS)
    for contender in others:
        bench.run_slice(contender.name, contender, workers=1, sessions=SESSIONS)
    bench.run_slice("one session", OURS, workers=1, sessions=1)
    bench.run_slice("one commit", FLOOR, workers=1, sessions=1)


def _measure_parked(
    bench: FleetBenchmark, many: int
) -> tuple[list[tuple[int, SliceResults]], list[str]]:
    """Measure a worker with few and with many parked sessions; return also the changed plans."""
    plans: list[postgres_parked.Plans] = []
    urls = [bench.server.new_database() for _ in range(2)]
    for count, url in zip((FEW, many), urls, strict=True):
        _log(f"postgres, {count:,} parked sessions")
        anyio.run(postgres_parked.park, url, 1, count)
        plans.append(anyio.run(postgres_parked.plans, url))
    for _ in range(2):
        for count, url in zip((FEW, many), urls, strict=True):
            bench.run_slice(f"{count:,} parked", OURS, workers=1, sessions=SESSIONS, url=url)
    results = [(count, bench.results.pop(f"{count:,} parked")) for count in (FEW, many)]
    return results, [name for name in plans[0] if plans[0][name] != plans[1][name]]


def _merge_outputs(results: list[dict[str, Any]], server_s: float) -> Slice:
    cycles = sum(result["cycles"] for result in results)
    cpu = sum((result["cpu_ms"] or 0.0) * result["cycles"] for result in results)
    return Slice(
        sum(result["cycles_s"] for result in results),
        cpu / cycles if cycles else None,
        server_s * 1_000 / cycles if cycles else None,
        results[0]["submitted_ms"],
        results[0]["accepted_ms"],
    )


def server_cpu(server: PostgresServer) -> float:
    """Return the CPU seconds of all processes of the server, including ended ones."""
    main = server.place.pid
    assert main is not None
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(main)], capture_output=True, text=True, check=False
    )
    return _cpu_seconds(main, with_ended=True) + sum(
        _cpu_seconds(int(pid)) for pid in children.stdout.split()
    )


def _cpu_seconds(pid: int, *, with_ended: bool = False) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # the process has ended; its parent's counters include it
        return 0.0
    return sum(map(int, fields[11 : 15 if with_ended else 13])) / os.sysconf("SC_CLK_TCK")


# --- the report --------------------------------------------------------------------------------


def _section(
    bench: FleetBenchmark,
    parked: list[tuple[int, SliceResults]],
    replanned: list[str],
    gaps: list[float],
) -> Section:
    all_results = bench.results
    head = ["64 sessions per worker", "cycles/s", "CPU ms", "server CPU ms"]
    shown = {name: results for name, results in all_results.items() if not name.startswith("one ")}
    rows = [_row(f"perdure, {name}" if "worker" in name else name, shown[name]) for name in shown]
    parked_rows = [_row(f"{count:,} parked", results) for count, results in parked]
    return Section(
        "PostgreSQL",
        [
            METHOD,
            Table(head, rows),
            "\n".join(
                [*_fleet_findings(bench), _accepted_finding(all_results), _take_over_finding(gaps)]
            ),
            "One worker in a database with parked sessions, half of them with a deadline:",
            Table(["", *head[1:]], parked_rows),
            _parked_findings(parked, replanned),
        ],
    )


def _row(name: str, results: SliceResults) -> list[str]:
    return [name, *(number(results.median(key)) for key in ("cycles_s", "cpu_ms", "server_ms"))]


def _fleet_findings(bench: FleetBenchmark) -> list[str]:
    single, fleet = bench.results["1 worker"], bench.results[f"{FLEET} workers"]
    scale = 2.5 if (os.cpu_count() or 1) >= 4 else 1.2
    findings = [
        _ratio(
            f"CPU per cycle with {FLEET} workers compared with 1", fleet, single, "cpu_ms", most=1.3
        ),
        _ratio(
            f"cycles/s with {FLEET} workers compared with 1", fleet, single, "cycles_s", least=scale
        ),
    ]
    for other, least in ((LANGGRAPH, 20), (DBOS, 25)):
        other_results = bench.results.get(other.name, SliceResults())
        name = f"cycles/s with {FLEET} workers compared with {other.name}"
        findings.append(_ratio(name, fleet, other_results, "cycles_s", least=least))
    locks = bench.locks
    findings.append(
        f"- connections waiting for a row lock: {locks.waiting} of {locks.active} active ones, "
        f"in {locks.samples} samples; target 0: {'met' if not locks.waiting else 'missed'}"
    )
    return findings


def _ratio(
    name: str,
    ours: SliceResults,
    theirs: SliceResults,
    key: str,
    *,
    most: float | None = None,
    least: float = 0,
) -> str:
    value, base = ours.median(key), theirs.median(key)
    sign, bound = ("≥", least) if most is None else ("≤", most)
    if not value or not base:
        return f"- {name}: not measured; target {sign} {bound:g} x"
    ratio = value / base
    is_met = ratio >= least if most is None else ratio <= most
    return f"- {name}: {ratio:.2f} x; target {sign} {bound:g} x: {'met' if is_met else 'missed'}"


def _accepted_finding(results: dict[str, SliceResults]) -> str:
    accepted = results["one session"].median("accepted_ms")
    commit = results["one commit"].median("submitted_ms")
    if not accepted or not commit:
        return "- accepted result → next model request: not measured; target ≤ 5 x one commit"
    verdict = "met" if accepted <= 5 * commit else "missed"
    return (
        f"- accepted result → next model request: {number(accepted)} ms, {accepted / commit:.1f} x "
        f"one bare commit of {number(commit)} ms; target ≤ 5 x: {verdict}"
    )


def _take_over_finding(gaps: list[float]) -> str:
    worst = max(gaps)
    return (
        f"- after a worker is killed, another one continues its session after {number(min(gaps))} "
        f"to {number(worst)} s ({len(gaps)} kills); "
        f"target ≤ 1 s: {'met' if worst <= 1 else 'missed'}"
    )


def _parked_findings(parked: list[tuple[int, SliceResults]], replanned: list[str]) -> str:
    (few, base), (many, results) = parked
    findings = [
        _ratio(f"{name} at {many:,} compared with {few:,}", results, base, key, most=1.2)
        for name, key in (("CPU per cycle", "cpu_ms"), ("server CPU per cycle", "server_ms"))
    ]
    plans = "identical" if not replanned else f"different for {', '.join(replanned)}"
    return "\n".join([*findings, f"- query plans at both sizes: {plans}"])


def _log(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
