"""A server that another process keeps for us, and that ends when we do, however we end."""

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
    """Where a server is."""

    port: int
    folder: Path
    pid: int | None  # None: it does not run


class Kept:
    """One server. Starting it twice is the same server again, at the same port."""

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
        # A session of its own: what is typed at the terminal is not for the keeper.
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
        """The process that keeps it."""
        return self._keeper.pid

    def start(self) -> Place:
        """Start it and wait until it answers. RuntimeError says why it did not."""
        return self._ask("start")

    def kill(self) -> Place:
        """SIGKILL, as a power cut would; what it has on its disk stays."""
        return self._ask("kill")

    def stop(self) -> Place:
        """End it in good order; what it has on its disk stays."""
        return self._ask("stop")

    def end(self) -> None:
        """Stop it and remove all it had."""
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
