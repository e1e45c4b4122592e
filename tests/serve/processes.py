"""Servers as processes of their own, with a project to serve, to be killed and started again."""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2

from holdfast.client import Client

READY_S: Final = 60.0
MANY: Final = 50  # calls of one session of the agent `many`

TOOLS: Final = '''
import os
from holdfast import PendingCall, tool


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
OPS, CI = "ops-token-1f9c", "ci-token-77ab"


def make_project(folder: Path, store: str, **server: Any) -> None:
    """A project with two agents; `server` is laid over its usual configuration.

    The store is `sqlite` or the URL of a PostgreSQL.
    """
    sql = {"driver": "postgres", "database": store}
    if store == "sqlite":
        sql = {"driver": "sqlite", "database": "holdfast.db"}
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
    (folder / "holdfast.yaml").write_text(json.dumps(config))  # JSON is YAML


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Server:
    """`holdfast serve` on a port that stays its own over restarts."""

    folder: Path
    options: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, token: str | None = OPS, **options: Any) -> Client:
        return Client(self.url, token, **options)

    def start(self) -> None:
        """Begin; `ready` says when it can be asked."""
        with (self.folder / f"server-{self.port}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *[sys.executable, "-m", "holdfast.cli", "serve", "--port", str(self.port)],
                    *self.options,
                ],
                cwd=self.folder,
                env={**os.environ, "PYTHONUTF8": "1"},
                stdout=log,
                stderr=log,
            )

    async def ready(self) -> None:
        """Until it serves; says what it said if it ended instead."""
        with anyio.fail_after(READY_S):
            async with httpx2.AsyncClient() as http:
                while True:
                    if self.process is None or self.process.poll() is not None:
                        raise AssertionError(f"the server ended: {self.log()}")
                    try:
                        if (await http.get(f"{self.url}/readyz")).is_success:
                            return
                    except httpx2.TransportError:
                        await anyio.sleep(0.02)

    async def started(self) -> "Server":
        self.start()
        await self.ready()
        return self

    def kill(self) -> None:
        """As by power loss."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """As told to; its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(how)
        return process.wait(timeout=30)

    def log(self) -> str:
        return (self.folder / f"server-{self.port}.log").read_text(errors="replace")


def effects(folder: Path) -> list[str]:
    """What tools have done, in order."""
    file = folder / "effects.log"
    return file.read_text().splitlines() if file.exists() else []
