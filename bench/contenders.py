"""Contenders of the benchmarks with their settings, and the function that runs a job with one."""

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.envs import ENVS, ROOT, ensure_python, pinned_version

LIMIT_S = 240


@dataclass(frozen=True)
class Contender:
    """Library and setting that is measured: one row of the tables."""

    name: str
    module: str
    env: str = ""  # empty: the environment of this process
    variant: str = ""
    setting: str = ""
    crashes: bool = True

    @property
    def version(self) -> str:
        """Return the library and its pinned version."""
        return pinned_version(self.env) if self.env else ""


OURS = Contender(
    "perdure",
    "perdure",
    setting="Runtime on a file, as shipped; an external tool and `run(results=…)`",
)
OURS_IN_FILES = Contender(
    "perdure, files",
    "perdure",
    variant="files",
    setting="as perdure, in a folder: a file for each session and call, and an index",
)
OURS_DEFERRED = Contender(
    "perdure, deferred",
    "perdure",
    variant="deferred",
    setting="a deferred tool, whose start is recorded too; `submit_result`, then `run()`",
)
FLOOR = Contender(
    "bare commits",
    "floor",
    setting="four inserts with Python's sqlite3, without a runtime",
    crashes=False,
)
LANGGRAPH = Contender(
    "LangGraph, sync",
    "langgraph",
    "langgraph",
    "sync",
    'AsyncSqliteSaver, `durability="sync"`: its most durable setting',
)
LANGGRAPH_THREADS = Contender(
    "LangGraph, threads",
    "langgraph",
    "langgraph",
    "threads",
    'SqliteSaver, `durability="sync"`: one thread for each session',
)
ALL = (
    OURS,
    OURS_DEFERRED,
    FLOOR,
    LANGGRAPH,
    LANGGRAPH_THREADS,
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
        "SQLite with its default settings; polls every 10 ms instead of every second",
    ),
    Contender(
        "DBOS, WAL",
        "dbos",
        "dbos",
        "wal",
        "the same, with the file set to WAL before DBOS opens it",
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
QUICK = (OURS, OURS_DEFERRED, FLOOR, LANGGRAPH, LANGGRAPH_THREADS)


class NotMeasured(Exception):
    """Error: a contender did not finish its job."""


def available(contenders: tuple[Contender, ...]) -> list[Contender]:
    """Return the contenders whose environment exists or can be installed."""
    return [contender for contender in contenders if ensure_python(contender.env) is not None]


def run_job(
    contender: Contender, job: str, *, prefix: tuple[str, ...] = (), **options: Any
) -> dict[str, Any]:
    """Run a job with a contender in a new process and a new folder. Raises NotMeasured."""
    python = ensure_python(contender.env)
    assert python is not None
    ENVS.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=ENVS))
    request = {"job": job, "folder": str(folder), "variant": contender.variant, **options}
    command = [*prefix, python, "-m", f"bench.peers.{contender.module}_peer", json.dumps(request)]
    try:
        process = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotMeasured(
            _report_problem(contender, job, f"not finished after {LIMIT_S} s")
        ) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    output = process.stdout.strip().splitlines()
    if process.returncode or not output:
        last = (process.stderr.strip().splitlines() or ["the process printed nothing"])[-1]
        raise NotMeasured(_report_problem(contender, job, last))
    result: dict[str, Any] = json.loads(output[-1])
    return result


def _report_problem(contender: Contender, job: str, problem: str) -> str:
    text = f"{contender.name}: {job} IS NOT MEASURED: {problem}"
    print(f"bench: {text}", file=sys.stderr, flush=True)
    return text
