"""MCP server of the tests, and the folder in which it records its effects."""

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
from tests.support.paths import ROOT

from perdure.mcp import MCPServer

PROGRAM = (sys.executable, "-m", "tests.runtime.mcp.provider")
SECRET = "secret-of-the-provider"  # noqa: S105


@dataclass(slots=True)
class World:
    """Folder with the effects of the server's tools."""

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
        """Return the server as a program that perdure starts."""
        env = {**self.env, **options.pop("env", {})}
        return MCPServer("shop", command=PROGRAM, env=env, cwd=ROOT, **options)

    def web(self, **options: Any) -> MCPServer:
        """Return the server as a URL."""
        self.port = self.port or free_port()
        return MCPServer("shop", url=f"http://127.0.0.1:{self.port}/mcp", **options)

    def start(self, **env: str) -> None:
        """Start the server and wait until it responds."""
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
        """Kill the server with SIGKILL."""
        for process in self.started:
            process.kill()
            process.wait()
        self.started.clear()

    def done(self) -> list[dict[str, Any]]:
        """Return the effects, in order."""
        path = self.folder / "done"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def tools(self) -> list[str]:
        """Return the tools of the effects."""
        return [line["tool"] for line in self.done()]

    def pids(self) -> list[int]:
        """Return the processes of the effects."""
        path = self.folder / "pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def hold(self, tool: str) -> Path:
        """Make a tool wait, after its effect, until the test releases it."""
        path = self.folder / f"hold-{tool}"
        os.mkfifo(path)
        return path


def is_alive(pid: int) -> bool:
    """Return True while a process runs."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
