"""The folder in which a provider of tools writes down what it does, and the provider itself."""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers.ports import free_port

from perdure.mcp import MCPServer

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "tests.mcp.provider")
SECRET = "secret-of-the-provider"  # noqa: S105


@dataclass(slots=True)
class World:
    """What the tools of a provider did."""

    folder: Path
    port: int = 0
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        return {
            "WORLD": str(self.folder),
            "PYTHONPATH": str(ROOT / "src"),
            "TOKEN": SECRET,
        }

    def program(self, **options: Any) -> MCPServer:
        """The provider as a program that is started for us."""
        env = {**self.env, **options.pop("env", {})}
        return MCPServer("shop", command=PROGRAM, env=env, cwd=ROOT, **options)

    def web(self, **options: Any) -> MCPServer:
        """The provider as a server that runs somewhere."""
        self.port = self.port or free_port()
        return MCPServer("shop", url=f"http://127.0.0.1:{self.port}/mcp", **options)

    def start(self, **env: str) -> None:
        """Start it; when this returns it answers."""
        self.port = self.port or free_port()
        command = [*PROGRAM, str(self.port)]
        around = {**os.environ, **self.env, **env}
        process = subprocess.Popen(command, cwd=ROOT, env=around, stderr=subprocess.DEVNULL)
        self.started.append(process)
        while process.poll() is None:
            with suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            time.sleep(0.02)
        raise AssertionError("the provider did not start")

    def kill(self) -> None:
        """As kill -9 does."""
        for process in self.started:
            process.kill()
            process.wait()
        self.started.clear()

    def done(self) -> list[dict[str, Any]]:
        """What was done, one after the other."""
        path = self.folder / "done"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def tools(self) -> list[str]:
        """The tools that did something."""
        return [line["tool"] for line in self.done()]

    def pids(self) -> list[int]:
        """The processes that provided."""
        path = self.folder / "pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def hold(self, tool: str) -> Path:
        """Let a tool wait, once it has written down what it did, until somebody writes here."""
        path = self.folder / f"hold-{tool}"
        os.mkfifo(path)
        return path


def is_alive(pid: int) -> bool:
    """Whether a process still runs."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
