"""Project for servers in their own processes; its tools record their effects in a file."""

import json
from pathlib import Path
from typing import Any, Final

MANY: Final = 50  # calls of one session of the agent `many`

TOOLS: Final = '''
import os
from perdure import PendingCall, tool


def note(line):
    """What was done, where no crash loses it."""
    fd = os.open("effects.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, f"{line}\\n".encode())
    os.fsync(fd)
    os.close(fd)


@tool(requires_approval=True)
def refund(order_id: int, cents: int) -> str:
    """Pay money back."""
    note(f"refund {order_id} {cents}")
    return f"refunded {cents}"


@tool(deferred=True, timeout="24h")
def deploy(branch: str, call: PendingCall) -> str:
    """Deploy a branch."""
    note(f"deploy {branch} {call.effect_id}")
    return f"job-{branch}"


@tool(deferred=True, timeout="24h")
def ask(n: int, call: PendingCall) -> str:
    """Ask somebody elsewhere."""
    return f"job-{n}"
'''

SCRIPTS: Final[dict[str, list[dict[str, Any]]]] = {
    "shop": [
        {
            "text": "I refund and deploy.",
            "calls": [
                {"tool": "refund", "args": {"order_id": 991, "cents": 4200}},
                {"tool": "deploy", "args": {"branch": "main"}},
            ],
        },
        {"text": "All done."},
    ],
    "many": [
        {"calls": [{"tool": "ask", "args": {"n": n}} for n in range(MANY)]},
        {"text": "All answered."},
    ],
}
TOOLS_OF: Final = {"shop": ["tools:refund", "tools:deploy"], "many": ["tools:ask"]}
OPS, CI = "ops-token-1f9c-44e07d", "ci-token-77ab-08d3c1"


def make_project(folder: Path, store: str, **server: Any) -> None:
    """Write a project with two agents; `server` overrides its default configuration.

    The store is `sqlite` or the URL of a PostgreSQL database.
    """
    sql = {"driver": "postgres", "database": store}
    if store == "sqlite":
        sql = {"driver": "sqlite", "database": "perdure.db"}
    (folder / "tools.py").write_text(TOOLS)
    for name, script in SCRIPTS.items():
        (folder / f"{name}.json").write_text(json.dumps(script))
    config = {
        "session_stores": {"main": {"backend": "sql", "sql": sql}},
        "llms": {name: {"provider": "scripted", "script": f"{name}.json"} for name in SCRIPTS},
        "agents": {
            name: {"llm": name, "session_store": "main", "tools": TOOLS_OF[name]}
            for name in SCRIPTS
        },
        "server": {
            "rate_limit": {"per_source": "100000/s", "per_id": "100000/s"},
            "tokens": [
                {"name": "ops", "token": OPS, "role": "admin"},
                {"name": "ci", "token": CI, "role": "submitter"},
            ],
            **server,
        },
    }
    (folder / "perdure.yaml").write_text(json.dumps(config))  # JSON is YAML


def effects(folder: Path) -> list[str]:
    """Return the effects of the tools, in order."""
    file = folder / "effects.log"
    return file.read_text().splitlines() if file.exists() else []
