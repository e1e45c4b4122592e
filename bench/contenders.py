"""Who is measured, in which setting, and how one is made to do a job in a process of its own."""

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.envs import ENVS, ROOT, python_of, version_of

LIMIT_S = 240


@dataclass(frozen=True)
class Contender:
    """One line of the tables."""

    name: str
    module: str
    env: str = ""  # "": our own
    variant: str = ""
    setting: str = ""
    crashes: bool = True

    @property
    def version(self) -> str:
        """The library and its version."""
        return version_of(self.env) if self.env else ""


OURS = Contender(
    "perdure", "perdure", setting="as shipped: Runtime on a file, leases and fences on"
)
FLOOR = Contender(
    "bare commits",
    "floor",
    setting="four inserts with Python's sqlite3; no runtime at all",
    crashes=False,
)
LANGGRAPH = Contender(
    "LangGraph, sync",
    "langgraph",
    "langgraph",
    "sync",
    'AsyncSqliteSaver, `durability="sync"`: its most durable setting',
)
ALL = (
    OURS,
    FLOOR,
    LANGGRAPH,
    Contender(
        "LangGraph, async",
        "langgraph",
        "langgraph",
        "async",
        'AsyncSqliteSaver, `durability="async"`: its default',
    ),
    Contender(
        "LangGraph, exit",
        "langgraph",
        "langgraph",
        "exit",
        'AsyncSqliteSaver, `durability="exit"`: stores only the end of each run',
    ),
    Contender(
        "DBOS",
        "dbos",
        "dbos",
        "",
        "SQLite as it opens it; polls every 10 ms instead of each second",
    ),
    Contender(
        "DBOS, WAL",
        "dbos",
        "dbos",
        "wal",
        "the same, its file set to WAL by hand before it opens it",
    ),
    Contender(
        "Pydantic AI",
        "pydantic_ai",
        "pydantic-ai",
        "",
        "deferred tool; the caller stores the history as one row when a run pauses or ends",
    ),
    Contender(
        "OpenAI Agents",
        "openai_agents",
        "openai-agents",
        "",
        "SQLiteSession; the caller stores the RunState as one row when a run pauses",
    ),
    Contender(
        "Google ADK",
        "google_adk",
        "google-adk",
        "",
        "SqliteSessionService, a resumable App with a long-running tool",
    ),
)
QUICK = (OURS, FLOOR, LANGGRAPH)


class NotMeasured(Exception):
    """A contender did not finish its job."""


def present(wanted: tuple[Contender, ...]) -> list[Contender]:
    """Those whose environment is there or can be made."""
    return [one for one in wanted if python_of(one.env) is not None]


def do(one: Contender, job: str, *, before: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """Let a contender do a job in a new process and a new folder. Raises NotMeasured."""
    python = python_of(one.env)
    assert python is not None
    ENVS.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=ENVS))
    asked = {"job": job, "folder": str(folder), "variant": one.variant, **more}
    command = [*before, python, "-m", f"bench.peers.{one.module}_peer", json.dumps(asked)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotMeasured(_loudly(one, job, f"not done after {LIMIT_S} s")) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    said = done.stdout.strip().splitlines()
    if done.returncode or not said:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise NotMeasured(_loudly(one, job, last))
    result: dict[str, Any] = json.loads(said[-1])
    return result


def _loudly(one: Contender, job: str, problem: str) -> str:
    text = f"{one.name}: {job} IS NOT MEASURED: {problem}"
    print(f"bench: {text}", file=sys.stderr, flush=True)
    return text
