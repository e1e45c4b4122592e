"""`perdure serve` in its own process, which tests stop, kill and restart."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Self

import httpx2
from tests.servers.ports import free_port
from tests.support.paths import ROOT

from perdure.client import Client

APP: Final = """
from tests.support.http_shop import agent
from perdure import Runtime
rt = Runtime("sqlite:///h.db", agents=[agent()])
"""
CLI: Final = (sys.executable, "-m", "perdure.cli")


def around(**more: str) -> dict[str, str]:
    """Return the environment of a process that finds perdure and the tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]), **more}


class Server:
    """`perdure serve` in a folder, on the same port after every restart."""

    def __init__(self, folder: Path, *options: str, **env: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        self.said = ""
        self._command = [*CLI, "serve", "--port", str(self.port), *options]
        self._env = around(**env)
        self._log = folder / f"server-{self.port}.log"
        self._process: subprocess.Popen[str] | None = None
        self._clients: list[httpx2.Client] = []

    def begin(self) -> None:
        """Start the process without waiting until it listens."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.folder,
                env=self._env,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def start(self) -> Self:
        """Start the process and wait until it prints its address."""
        self.begin()
        assert self._process is not None
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline()
        assert self.said, self.log()
        return self

    def log(self) -> str:
        """Return the stderr of all its starts."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop the process with a signal; return its exit code."""
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

    def http(self, token: str | None = None, **options: Any) -> httpx2.Client:
        """Return an httpx client that is closed with the server."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        headers |= options.pop("headers", {})
        one = httpx2.Client(base_url=self.url, headers=headers, timeout=30, **options)
        self._clients.append(one)
        return one

    def client(self, token: str | None, **options: Any) -> Client:
        """Return a perdure client."""
        return Client(self.url, token, **options)


def shop_server(folder: Path, *options: str, **env: str) -> Server:
    """Return a server of the shop."""
    (folder / "app.py").write_text(APP)
    return Server(folder, "--app", "app:rt", *options, **env)


def run(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run another command to its end."""
    return subprocess.run(
        [*CLI, *args],
        cwd=folder,
        env=around(**env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
