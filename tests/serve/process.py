"""A real server in a process of its own, to be stopped, killed and started again."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Self

import httpx2
from tests.servers.ports import free_port

from perdure.client import Client

APP: Final = """
from tests.serve.shop import agent
from perdure import Runtime
rt = Runtime("sqlite:///h.db", agents=[agent()])
"""
ROOT: Final = Path(__file__).parents[2]
CLI: Final = (sys.executable, "-m", "perdure.cli")


def around(**more: str) -> dict[str, str]:
    """The environment of a process that finds our code, and what is beside the tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]), **more}


class Server:
    """`perdure serve` in a folder, on a port that stays its own over restarts."""

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
        """Start it, and do not wait until it can be asked."""
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
        """Start it, and wait until it says where it listens."""
        self.begin()
        assert self._process is not None
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline()
        assert self.said, self.log()
        return self

    def log(self) -> str:
        """What it wrote to stderr, over all its lives."""
        return self._log.read_text(errors="replace")

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

    def http(self, token: str | None = None, **options: Any) -> httpx2.Client:
        """A plain client that lives as long as the server is held."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        headers |= options.pop("headers", {})
        one = httpx2.Client(base_url=self.url, headers=headers, timeout=30, **options)
        self._clients.append(one)
        return one

    def client(self, token: str | None, **options: Any) -> Client:
        """A client of ours."""
        return Client(self.url, token, **options)


def shop_server(folder: Path, *options: str, **env: str) -> Server:
    """One that serves the shop of these tests."""
    (folder / "app.py").write_text(APP)
    return Server(folder, "--app", "app:rt", *options, **env)


def run(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Another command, to its end."""
    return subprocess.run(
        [*CLI, *args],
        cwd=folder,
        env=around(**env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
