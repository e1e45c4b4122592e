"""Server that a keeper process owns, and that ends with the tests, however they end."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.components import unprivileged

KEEPER = Path(__file__).with_name("keeper.py")


@dataclass(frozen=True, slots=True)
class Place:
    """Address of a server."""

    port: int
    folder: Path
    pid: int | None  # None: it is not running


class Kept:
    """Server. Starting it again uses the same data and port."""

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        prepare: tuple[list[str], ...] = (),
        files: dict[str, str] | None = None,
        ready: tuple[str, ...] = (),
        stop: str = "SIGTERM",
    ) -> None:
        # A separate session: signals from the terminal are not for the keeper.
        self._keeper = subprocess.Popen(
            [sys.executable, str(KEEPER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._tell(
            {
                "name": name,
                "command": command,
                "prepare": list(prepare),
                "files": files or {},
                "ready": list(ready),
                "stop": stop,
                "popen": unprivileged().popen,
            }
        )

    @property
    def keeper_pid(self) -> int:
        """Process id of the keeper."""
        return self._keeper.pid

    def start(self) -> Place:
        """Start it and wait until it responds. Raises RuntimeError."""
        return self._ask("start")

    def kill(self) -> Place:
        """Kill it with SIGKILL; its data stays."""
        return self._ask("kill")

    def stop(self) -> Place:
        """Stop it in good order; its data stays."""
        return self._ask("stop")

    def end(self) -> None:
        """Stop it and remove its data."""
        self._keeper.communicate()

    def _ask(self, word: str) -> Place:
        self._tell(word)
        assert self._keeper.stdout is not None
        said = self._keeper.stdout.readline()
        if not said:
            raise RuntimeError("the keeper of a server has died")
        answer = json.loads(said)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return Place(answer["port"], Path(answer["folder"]), answer["pid"])

    def _tell(self, what: str | dict[str, Any]) -> None:
        assert self._keeper.stdin is not None
        line = what if isinstance(what, str) else json.dumps(what)
        self._keeper.stdin.write(line + "\n")
        self._keeper.stdin.flush()
