"""Keeper of one server for the process that holds its input: `python keeper.py`, in lines of JSON.

It is a separate process so that the server ends with its owner, even after `kill -9`: the input
ends, and the keeper stops the server and removes its folder. The reply to each line is one line of
JSON: the address of the server, or an error.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PORT_TRIES = 5
READY_S = 60.0
STOP_S = 10.0
POLL_S = 0.05


class Failed(Exception):
    """The server did not start; the text says why."""


@dataclass
class Server:
    """Server with its folder and port; `{folder}` and `{port}` stand for them in the options.

    Options: `name`, `files` (by name), `prepare` (commands, once), `command`, `ready` (a command
    that succeeds when the server responds; without it the port is tried), `stop` (a signal) and
    `popen` (the user it runs as).
    """

    told: dict[str, Any]
    folder: Path = field(init=False)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        root = os.environ.get("PYTEST_DEBUG_TEMPROOT")
        self.folder = Path(tempfile.mkdtemp(prefix=f"perdure-{self.told['name']}-", dir=root))
        self._own(self.folder)

    def start(self) -> None:
        """Start it, first on a free port, then on the same one. Raises Failed."""
        for command in [] if self.port else self._prepared():
            self._run(command)
        last = Failed("no port was free")
        for _ in range(1 if self.port else PORT_TRIES):
            port = self.port or _free_port()
            try:
                self._start_at(port)
            except Failed as failed:  # another process may have taken the port meanwhile
                last = failed
            else:
                self.port = port
                return
        raise last

    def kill(self) -> None:
        """Kill it and its child processes, which could serve clients for a while without it."""
        processes = [] if self.process is None else _children(self.process.pid)
        self._end(signal.SIGKILL)
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + STOP_S
        while any(map(_is_running, processes)) and time.monotonic() < until:
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Stop it; after some seconds, kill it."""
        self._end(signal.Signals[self.told["stop"]])

    def remove(self) -> None:
        """Stop it and remove its folder, which may take a while."""
        self.stop()
        gone = self.folder.with_name(f"{self.folder.name}.gone")
        self.folder.rename(gone)
        subprocess.Popen(["rm", "-rf", str(gone)], start_new_session=True)

    def answer(self) -> dict[str, Any]:
        """Return its address."""
        pid = None if self.process is None else self.process.pid
        return {"pid": pid, "port": self.port, "folder": str(self.folder)}

    def _prepared(self) -> list[list[str]]:
        for name in self.told["files"]:
            path = self.folder / name
            path.touch(mode=0o600)
            self._own(path)
        self._write_files(0)
        return [self._filled(command, 0) for command in self.told["prepare"]]

    def _write_files(self, port: int) -> None:
        for name, text in self.told["files"].items():
            (self.folder / name).write_text(self._filled([text], port)[0])

    def _start_at(self, port: int) -> None:
        self._write_files(port)
        log = self.folder / "log"
        with log.open("ab") as output:
            self._own(log)
            self.process = subprocess.Popen(
                self._filled(self.told["command"], port),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                **self.told["popen"],
            )
        until = time.monotonic() + READY_S
        while not self._is_ready(port):
            if self.process.poll() is not None or time.monotonic() > until:
                self.kill()
                said = log.read_text(errors="replace").strip().splitlines()[-5:]
                raise Failed(f"{self.told['name']} did not come up: {' / '.join(said)}")
            time.sleep(POLL_S)

    def _is_ready(self, port: int) -> bool:
        ready = self.told["ready"]
        if ready:
            asked = subprocess.run(self._filled(ready, port), capture_output=True, check=False)
            return asked.returncode == 0
        with closing(socket.socket()) as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.folder,
            check=False,
            **self.told["popen"],
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()[-3:]
            raise Failed(f"{Path(command[0]).name} failed: {' / '.join(said)}")

    def _end(self, how: signal.Signals) -> None:
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            self.process.send_signal(how)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def _filled(self, words: list[str], port: int) -> list[str]:
        folder = str(self.folder)
        return [word.replace("{folder}", folder).replace("{port}", str(port)) for word in words]

    def _own(self, path: Path) -> None:
        popen = self.told["popen"]
        if popen:
            shutil.chown(path, popen["user"], popen["group"])


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def _is_running(pid: int) -> bool:
    """Return whether a process has not ended; one that nobody has waited for yet has."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _do(server: Server, word: str) -> dict[str, Any]:
    deeds = {"start": server.start, "kill": server.kill, "stop": server.stop}
    try:
        deeds[word]()
    except (Failed, OSError) as failed:
        return {"error": str(failed)}
    return server.answer()


def main() -> None:
    """Serve commands until the input ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    told = sys.stdin.readline()
    if not told:
        return
    server = Server(json.loads(told))
    try:
        with suppress(BrokenPipeError):  # the owner is gone: the input has ended too
            for line in sys.stdin:
                _say(_do(server, line.strip()))
    finally:
        server.remove()


if __name__ == "__main__":
    main()
