"""A real server in a process of its own, to be stopped, killed and started again."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import httpx2

APP = """
from tests.serve.shop import agent
from holdfast import Runtime
rt = Runtime("sqlite:///h.db", agents=[agent()])
"""
ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Server:
    """`holdfast serve` in a folder."""

    def __init__(self, folder: Path, *options: str, **env: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        (folder / "app.py").write_text(APP)
        self._command = [sys.executable, "-m", "holdfast.cli", "serve", *options]
        if not any(one in ("--config", "--store") for one in options):
            self._command += ["--app", "app:rt"]
        path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        self._env = {**os.environ, "PYTHONPATH": path, **env}
        self._process: subprocess.Popen[str] | None = None
        self._clients: list[httpx2.Client] = []
        self.said = ""

    def start(self) -> Self:
        """Start it, and wait until it says where it listens."""
        command = [*self._command, "--port", str(self.port)]
        with (self.folder / "log.txt").open("a") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._env,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline()
        assert self.said, (self.folder / "log.txt").read_text()
        return self

    def log(self) -> str:
        """What it wrote to stderr, over all its lives."""
        return (self.folder / "log.txt").read_text()

    def kill(self) -> None:
        """As by power loss of the process."""
        self._end(signal.SIGKILL)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end; answers its exit code."""
        return self._end(number)

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return code

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        for one in self._clients:
            one.close()
        if self._process is not None:
            self.kill()

    def client(self, token: str | None = None, **options: Any) -> httpx2.Client:
        """A client that lives as long as the server is held."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        headers |= options.pop("headers", {})
        one = httpx2.Client(base_url=self.url, headers=headers, timeout=30, **options)
        self._clients.append(one)
        return one


def run(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Another command, to its end."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
