"""Cost of the readable files of a files store: cycles in one beside the same cycles on SQLite."""

import statistics
import sys
from typing import Any

from bench.contenders import OURS, OURS_IN_FILES, run_job
from bench.report import Section, Table, number

LEVELS = (1, 64)
ROUNDS, CYCLES = 5, {1: 300, 64: 1280}
QUICK_ROUNDS = 1
TARGET = 1.5

METHOD = f"""\
The cycles of the first section, in a files store and in one SQLite file, in turns. A files store is
the same database; a thread writes the log of each session, a file for each session and call, and an
index. CPU is that of the process until the store is closed, so the files that are still to be
written then count too. The ratio is the median of the rounds; the target is at most {TARGET}."""


def measure(*, quick: bool = False) -> Section:
    """Run both in turns, at one and at 64 sessions at a time."""
    rows = []
    for level in LEVELS:
        rounds = [_run_round(level) for _ in range(QUICK_ROUNDS if quick else ROUNDS)]
        ratios = [files["cpu_to_close_ms"] / ours["cpu_to_close_ms"] for ours, files in rounds]
        for name, index in (("SQLite", 0), ("files", 1)):
            results = [results[index] for results in rounds]
            cpu = statistics.median(result["cpu_to_close_ms"] for result in results)
            rate = statistics.median(result["cycles_s"] for result in results)
            ratio = number(statistics.median(ratios)) if index else ""
            rows.append([name, str(level), number(rate), f"{cpu:.2f} ms", ratio])
    table = Table(["store", "at a time", "cycles/s", "CPU of a cycle", "ratio"], rows)
    return Section("Files store", [METHOD, table])


def _run_round(level: int) -> tuple[dict[str, Any], dict[str, Any]]:
    ours, files = (
        run_job(contender, "cycles", sessions=level, cycles=CYCLES[level])
        for contender in (OURS, OURS_IN_FILES)
    )
    print(f"files, {level} at a time", file=sys.stderr, flush=True)
    return ours, files
