"""Virtual environments of other projects, one each, with the versions pinned in constraints."""

import hashlib
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENVS = ROOT / ".bench"
LIMIT_S = 900

# The versions of these packages and their dependencies are pinned in peers/constraints-NAME.txt.
PACKAGES: dict[str, tuple[str, ...]] = {
    "langgraph": (
        "langgraph",
        "langgraph-checkpoint-sqlite",
        "langgraph-checkpoint-postgres",
        "psycopg-binary",
    ),
    "dbos": ("dbos", "pysqlite3"),  # DBOS needs a newer SQLite than many Python builds include
    "pydantic-ai": ("pydantic-ai-slim",),
    "openai-agents": ("openai-agents",),
    "google-adk": ("google-adk", "aiosqlite"),
    # No contender: a client of our MCP server in tests, whose adapter needs an older SDK.
    "langchain": ("langchain", "langchain-mcp-adapters", "langchain-openai"),
}


@cache
def ensure_python(env: str) -> str | None:
    """Return the interpreter of an environment, installing it if needed; None if that fails."""
    if not env:
        return sys.executable
    constraints = ROOT / "bench" / "peers" / f"constraints-{env}.txt"
    venv, fingerprint = ENVS / f"venv-{env}", _fingerprint(env, constraints)
    stamp = venv / "ready"
    python = venv / "bin" / "python"
    if stamp.exists() and stamp.read_text() == fingerprint and python.exists():
        return str(python)
    print(f"bench: installing {env}", file=sys.stderr, flush=True)
    problem = _install(venv, python, env, constraints)
    if problem:
        print(f"bench: {env} IS NOT MEASURED: {problem}", file=sys.stderr, flush=True)
        return None
    stamp.write_text(fingerprint)
    return str(python)


def pinned_version(env: str) -> str:
    """Return the name and pinned version of an environment's main package."""
    name = PACKAGES[env][0]
    constraints = ROOT / "bench" / "peers" / f"constraints-{env}.txt"
    pins = dict(line.split("==") for line in constraints.read_text().split() if "==" in line)
    return f"{name} {pins[name]}"


def _fingerprint(env: str, constraints: Path) -> str:
    text = f"{sys.version}\n{PACKAGES[env]}\n{constraints.read_text()}"
    return hashlib.sha256(text.encode()).hexdigest()


def _install(venv: Path, python: Path, env: str, constraints: Path) -> str:
    """Recreate the environment; return one line about the error, or an empty string."""
    shutil.rmtree(venv, ignore_errors=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    steps = (
        [sys.executable, "-m", "venv", str(venv)],
        [*pip, "--constraint", str(constraints), *PACKAGES[env]],
    )
    for step in steps:
        try:
            process = subprocess.run(
                step, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if process.returncode:
            return (process.stderr.strip().splitlines() or ["pip failed"])[-1]
    return ""
