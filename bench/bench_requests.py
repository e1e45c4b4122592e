"""CPU of requests through ASGI, compared with an older source tree.

`BENCH_BEFORE=FOLDER python -m bench requests`, where FOLDER has `src/perdure` of another version,
for example from `git archive`. Without it, only the present source is measured.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.envs import ENVS, ROOT
from bench.report import Section, Table

REQUESTS: Final = 1_000
ROUNDS: Final = 7
TARGETS: Final = {
    "POST /async-tool/result": 1.00,
    "GET /pending?limit=10": 0.75,
    "inbox with 50 rows": 1.05,
}

METHOD = f"""\
CPU of the process for one request, all threads included. The server runs in this process, without a
socket, on SQLite. The two versions run in turns, each {ROUNDS} times in a new process; the numbers
are medians of the fastest part of each run, and the noise is the range of the ratios of single
turns."""


def measure(*, quick: bool = False) -> Section:
    """Measure the present source, and the older one if there is any, in turns."""
    requests, rounds = (REQUESTS // 5, 3) if quick else (REQUESTS, ROUNDS)
    before = os.environ.get("BENCH_BEFORE")
    folders = [ROOT, *([Path(before)] if before else [])]
    turns = [_turn(folders, requests, is_reversed=n % 2 == 1) for n in range(rounds)]
    rows = []
    for name, target in TARGETS.items():
        values = [[run[name] for run in turn] for turn in turns]
        medians = [statistics.median(column) for column in zip(*values, strict=True)]
        cells = [f"{value:,.0f} µs" for value in medians]
        if before:
            ratios = [new / old for new, old in values]
            ratio = statistics.median(ratios)
            cells += [f"{ratio:.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}", f"≤ {target:.2f}"]
        rows.append([name, *cells])
    head = ["", "now", *(["before", "ratio", "noise", "target"] if before else [])]
    return Section("CPU of requests", [METHOD, Table(head, rows)])


def _turn(folders: list[Path], requests: int, *, is_reversed: bool) -> list[dict[str, float]]:
    """Measure each folder once; the first one is another one in every second turn."""
    order = folders[::-1] if is_reversed else folders
    times = {folder: _run(folder / "src", requests) for folder in order}
    return [times[folder] for folder in folders]


def _run(source: Path, requests: int) -> dict[str, float]:
    ENVS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="requests-", dir=ENVS) as folder:
        done = subprocess.run(
            [sys.executable, str(ROOT / "bench" / "request_cpu.py"), folder, str(requests)],
            env={**os.environ, "PYTHONPATH": str(source)},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode or not done.stderr.startswith(str(source)):
        sys.exit(f"{source} was not measured: {done.stderr[-2000:]}")
    times: dict[str, float] = json.loads(done.stdout)
    return times
