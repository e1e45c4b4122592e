"""What a durable session costs over the provider's own library, and how a cold start compares."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.envs import ENVS, ROOT
from bench.model_loops import KEY, NAMES, TURNS, script
from bench.report import Section, Table, number

ROUNDS, SESSIONS = 5, 10
COLD_ROUNDS = 7
WHO = ("sdk", "perdure")
Slice = dict[str, float]
MOST_CPU_MS, MOST_COMMITS, MOST_COLD = 2.0, 2.0, 1.3

METHOD = f"""\
The fake endpoint of `perdure.testing`, a process of its own, answers at once and streamed. A
session is {TURNS} turns with a call each and a last one. The bare loop is the provider's SDK, a
list of messages and the tool, with nothing kept; perdure is a session on a SQLite file, through
the same SDK. Slices run in processes of their own, in turns; medians over {ROUNDS} rounds. CPU is
all threads of the asking process; "committing" is what of it the store's own thread took. The
histories grow in both, and are sent whole every time."""
COLD = """\
Cold: from starting `perdure run` with a YAML file to its end, one turn, against starting Python
and importing only the class of pydantic-ai that speaks to the provider. Both find the bytecode of
all they load, as installed packages do. CPU, best of {rounds}."""


def measure(*, quick: bool = False) -> Section:
    """All formats; `quick` is one round of few sessions."""
    rounds, sessions = (1, 2) if quick else (ROUNDS, SESSIONS)
    ENVS.mkdir(exist_ok=True)
    cold_rounds = 2 if quick else COLD_ROUNDS
    with tempfile.TemporaryDirectory(prefix="models-", dir=ENVS) as name:
        folder = Path(name)
        with _endpoint(folder, script()) as url:
            lines = {format_: _turns(format_, url, rounds, sessions) for format_ in NAMES}
        with _endpoint(folder, [{"text": "Hello."}]) as url:
            colds = {format_: _cold(format_, url, folder, cold_rounds) for format_ in NAMES}
    findings = "\n".join([*_findings(lines), *_cold_findings(colds)])
    cold = COLD.format(rounds=cold_rounds)
    return Section("Real models", [METHOD, _table(lines), cold, _cold_table(colds), findings])


@contextmanager
def _endpoint(folder: Path, turns: list[dict[str, Any]]) -> Iterator[str]:
    path = folder / "script.json"
    path.write_text(json.dumps(turns))
    command = [sys.executable, "-m", "perdure.testing.endpoint", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


# --- turns -------------------------------------------------------------------------------------


def _turns(format_: str, url: str, rounds: int, sessions: int) -> dict[str, list[Slice]]:
    slices: dict[str, list[Slice]] = {who: [] for who in WHO}
    for n in range(rounds):
        print(f"bench: models, {format_}, round {n + 1} of {rounds}", file=sys.stderr, flush=True)
        for who in WHO:
            slices[who].append(_slice(who, format_, url, sessions))
    return slices


def _slice(who: str, format_: str, url: str, sessions: int) -> Slice:
    with tempfile.TemporaryDirectory(prefix="run-", dir=ENVS) as folder:
        job = {"who": who, "format": format_, "url": url, "folder": folder, "sessions": sessions}
        command = [sys.executable, "-m", "bench.model_loops", json.dumps(job)]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found: Slice = json.loads(done.stdout)
    return found


def _median(slices: list[Slice], key: str) -> float:
    return statistics.median(one[key] for one in slices)


def _table(lines: dict[str, dict[str, list[Slice]]]) -> Table:
    head = ["per turn", "SDK, CPU ms", "perdure", "more", "committing", "SDK, ms", "perdure"]
    rows = []
    for format_, slices in lines.items():
        bare, ours = slices["sdk"], slices["perdure"]
        cpu = [_median(bare, "cpu_ms"), _median(ours, "cpu_ms")]
        wall = [_median(bare, "wall_ms"), _median(ours, "wall_ms")]
        committing = cpu[1] - _median(ours, "loop_ms")
        cells = [*cpu, cpu[1] - cpu[0], committing, *wall]
        rows.append([format_, *map(number, cells)])
    return Table(head, rows)


def _findings(lines: dict[str, dict[str, list[Slice]]]) -> list[str]:
    told = []
    for format_, slices in lines.items():
        commits = _median(slices["perdure"], "commits")
        told.append(_target(f"{format_}: commits per turn", commits, MOST_COMMITS))
        more = _median(slices["perdure"], "loop_ms") - _median(slices["sdk"], "loop_ms")
        what = f"{format_}: CPU ms per turn over the SDK, beside committing"
        told.append(_target(what, more, MOST_CPU_MS))
    return told


def _target(what: str, value: float, most: float) -> str:
    verdict = "met" if value <= most * 1.005 else f"missed by {value / most:.2f} x"
    return f"- {what}: {number(value)}; target ≤ {most:g}: {verdict}"


# --- a cold start ------------------------------------------------------------------------------


def _cold(format_: str, url: str, folder: Path, rounds: int) -> tuple[float, float]:
    """CPU seconds of our command and of the import alone."""
    provider, model = NAMES[format_]
    config = folder / f"{format_}.yaml"
    base_url = url if format_ == "anthropic" else f"{url}/v1"
    llm = {"provider": provider, "model": model, "api_key": KEY, "base_url": base_url}
    store = {"backend": "sql", "sql": {"driver": "sqlite", "database": f"{folder}/{format_}.db"}}
    whole = {
        "session_stores": {"main": store},
        "llms": {"main": llm},
        "agents": {"bench": {"llm": "main", "session_store": "main"}},
    }
    config.write_text(json.dumps(whole))
    module = "anthropic" if format_ == "anthropic" else "openai"
    alone = [sys.executable, "-c", f"import pydantic_ai.models.{module}"]
    run = [sys.executable, "-m", "perdure.cli", "--config", str(config), "run", "bench", "hello"]
    compiled = folder / "compiled"
    for command in (run, alone):
        _cpu_s(command, compiled)  # compiles what was not
    pairs = [(_cpu_s(run, compiled), _cpu_s(alone, compiled)) for _ in range(rounds)]
    ours, theirs = (min(column) for column in zip(*pairs, strict=True))
    return ours, theirs


def _cpu_s(command: list[str], compiled: Path) -> float:
    """CPU seconds of a process, from its start to its end; its bytecode is kept in a folder."""
    given = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    env = {**given, "PYTHONPYCACHEPREFIX": str(compiled)}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, env=env) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return usage.ru_utime + usage.ru_stime


def _cold_table(colds: dict[str, tuple[float, float]]) -> Table:
    rows = [
        [format_, number(ours * 1000), number(theirs * 1000), number(ours / theirs)]
        for format_, (ours, theirs) in colds.items()
    ]
    return Table(["cold", "perdure run, CPU ms", "import, CPU ms", "ratio"], rows)


def _cold_findings(colds: dict[str, tuple[float, float]]) -> list[str]:
    return [
        _target(f"{format_}: a cold run against the import alone", ours / theirs, MOST_COLD)
        for format_, (ours, theirs) in colds.items()
    ]
