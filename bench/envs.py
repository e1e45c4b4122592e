"""The contenders' environments: one each, beside our own, in the versions of their constraints."""

import hashlib
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENVS = ROOT / ".bench"
LIMIT_S = 900

# What is asked for; the versions, transitive ones too, are in peers/constraints-NAME.txt.
PACKAGES: dict[str, tuple[str, ...]] = {
    "langgraph": (
        "langgraph",
        "langgraph-checkpoint-sqlite",
        "langgraph-checkpoint-postgres",
        "psycopg-binary",
    ),
    "dbos": ("dbos", "pysqlite3"),  # it needs a newer SQLite than many Pythons have
    "pydantic-ai": ("pydantic-ai-slim",),
    "openai-agents": ("openai-agents",),
    "google-adk": ("google-adk", "aiosqlite"),
}


@cache
def python_of(env: str) -> str | None:
    """The interpreter of an environment, made if need be; None, loudly, if it cannot be."""
    if not env:
        return sys.executable
    constraints = ROOT / "bench" / "peers" / f"constraints-{env}.txt"
    venv, wanted = ENVS / f"venv-{env}", _wanted(env, constraints)
    stamp = venv / "ready"
    python = venv / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        return str(python)
    print(f"bench: installing {env}", file=sys.stderr, flush=True)
    problem = _install(venv, python, env, constraints)
    if problem:
        print(f"bench: {env} IS NOT MEASURED: {problem}", file=sys.stderr, flush=True)
        return None
    stamp.write_text(wanted)
    return str(python)


def version_of(env: str) -> str:
    """The pinned version of an environment's main package."""
    name = PACKAGES[env][0]
    constraints = ROOT / "bench" / "peers" / f"constraints-{env}.txt"
    pins = dict(line.split("==") for line in constraints.read_text().split() if "==" in line)
    return f"{name} {pins[name]}"


def _wanted(env: str, constraints: Path) -> str:
    text = f"{sys.version}\n{PACKAGES[env]}\n{constraints.read_text()}"
    return hashlib.sha256(text.encode()).hexdigest()


def _install(venv: Path, python: Path, env: str, constraints: Path) -> str:
    """Make it anew; what went wrong, in one line."""
    shutil.rmtree(venv, ignore_errors=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    steps = (
        [sys.executable, "-m", "venv", str(venv)],
        [*pip, "--constraint", str(constraints), *PACKAGES[env]],
    )
    for step in steps:
        try:
            done = subprocess.run(
                step, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    return ""
