"""Cost of a durable session compared with the provider's SDK alone, and of a cold start."""

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
CLIENTS = ("sdk", "perdure")
Slice = dict[str, float]
MAX_CPU_MS, MAX_COMMITS, MAX_COLD_RATIO = 2.0, 2.0, 1.3

METHOD = f"""\
The fake endpoint of `perdure.testing`, in its own process, streams its responses without delay. A
session has {TURNS} turns with one call each, and a last turn without a call. "SDK" is a loop
around the provider's SDK with a list of messages and the tool, which stores nothing; "perdure" is
a session in a SQLite file that uses the same SDK. Slices run in their own processes and alternate;
the numbers are medians over {ROUNDS} rounds. CPU is that of all threads of the requesting process;
"committing" is the part of it that the store's thread takes. The history grows in both loops and is
sent in full with every request."""
COLD = """\
A cold start is one `perdure run` of one turn with a YAML file, from the start of the process to its
end. It is compared with starting Python and importing only the pydantic-ai module for that
provider. The bytecode of all modules is already compiled, as for installed packages. CPU, best of
{rounds}."""


def measure(*, quick: bool = False) -> Section:
    """Measure all formats; `quick` runs one round of a few sessions."""
    rounds, sessions = (1, 2) if quick else (ROUNDS, SESSIONS)
    ENVS.mkdir(exist_ok=True)
    cold_rounds = 2 if quick else COLD_ROUNDS
    with tempfile.TemporaryDirectory(prefix="models-", dir=ENVS) as name:
        folder = Path(name)
        with _running_endpoint(folder, script()) as url:
            lines = {format_: _measure_turns(format_, url, rounds, sessions) for format_ in NAMES}
        with _running_endpoint(folder, [{"text": "Hello."}]) as url:
            colds = {
                format_: _measure_cold_start(format_, url, folder, cold_rounds) for format_ in NAMES
            }
    findings = "\n".join([*_findings(lines), *_cold_findings(colds)])
    cold = COLD.format(rounds=cold_rounds)
    return Section("Real models", [METHOD, _table(lines), cold, _cold_table(colds), findings])


@contextmanager
def _running_endpoint(folder: Path, turns: list[dict[str, Any]]) -> Iterator[str]:
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


def _measure_turns(format_: str, url: str, rounds: int, sessions: int) -> dict[str, list[Slice]]:
    slices: dict[str, list[Slice]] = {client: [] for client in CLIENTS}
    for n in range(rounds):
        print(f"bench: models, {format_}, round {n + 1} of {rounds}", file=sys.stderr, flush=True)
        for client in CLIENTS:
            slices[client].append(_run_slice(client, format_, url, sessions))
    return slices


def _run_slice(client: str, format_: str, url: str, sessions: int) -> Slice:
    with tempfile.TemporaryDirectory(prefix="run-", dir=ENVS) as folder:
        job = {
            "client": client,
            "format": format_,
            "url": url,
            "folder": folder,
            "sessions": sessions,
        }
        command = [sys.executable, "-m", "bench.model_loops", json.dumps(job)]
        process = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    result: Slice = json.loads(process.stdout)
    return result


def _median(slices: list[Slice], key: str) -> float:
    return statistics.median(result[key] for result in slices)


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
    findings = []
    for format_, slices in lines.items():
        commits = _median(slices["perdure"], "commits")
        findings.append(_target(f"{format_}: commits per turn", commits, MAX_COMMITS))
        more = _median(slices["perdure"], "loop_ms") - _median(slices["sdk"], "loop_ms")
        name = f"{format_}: CPU ms per turn more than the SDK, without committing"
        findings.append(_target(name, more, MAX_CPU_MS))
    return findings


def _target(name: str, value: float, limit: float) -> str:
    verdict = "met" if value <= limit * 1.005 else f"missed by {value / limit:.2f} x"
    return f"- {name}: {number(value)}; target ≤ {limit:g}: {verdict}"


# --- a cold start ------------------------------------------------------------------------------


def _measure_cold_start(format_: str, url: str, folder: Path, rounds: int) -> tuple[float, float]:
    """Return the CPU seconds of `perdure run` and of the import alone."""
    provider, model = NAMES[format_]
    config = folder / f"{format_}.yaml"
    base_url = url if format_ == "anthropic" else f"{url}/v1"
    llm = {"provider": provider, "model": model, "api_key": KEY, "base_url": base_url}
    store = {"backend": "sql", "sql": {"driver": "sqlite", "database": f"{folder}/{format_}.db"}}
    content = {
        "session_stores": {"main": store},
        "llms": {"main": llm},
        "agents": {"bench": {"llm": "main", "session_store": "main"}},
    }
    config.write_text(json.dumps(content))
    module = "anthropic" if format_ == "anthropic" else "openai"
    import_only = [sys.executable, "-c", f"import pydantic_ai.models.{module}"]
    run = [sys.executable, "-m", "perdure.cli", "--config", str(config), "run", "bench", "hello"]
    compiled = folder / "compiled"
    for command in (run, import_only):
        _cpu_s(command, compiled)  # compiles the bytecode, so that no measured run has to
    pairs = [(_cpu_s(run, compiled), _cpu_s(import_only, compiled)) for _ in range(rounds)]
    ours, theirs = (min(column) for column in zip(*pairs, strict=True))
    return ours, theirs


def _cpu_s(command: list[str], compiled: Path) -> float:
    """Return the CPU seconds of a process; its bytecode is cached in `compiled`."""
    inherited = {
        key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"
    }
    env = {**inherited, "PYTHONPYCACHEPREFIX": str(compiled)}
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
    return Table(["cold start", "perdure run, CPU ms", "import, CPU ms", "ratio"], rows)


def _cold_findings(colds: dict[str, tuple[float, float]]) -> list[str]:
    return [
        _target(
            f"{format_}: a cold run compared with the import alone", ours / theirs, MAX_COLD_RATIO
        )
        for format_, (ours, theirs) in colds.items()
    ]
