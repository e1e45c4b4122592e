"""`perdure mcp` in its own process, and lines to and from it."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.server import around

# Without -P, Python itself imports modules of the current folder.
PROGRAM: Final = (sys.executable, "-P", "-m", "perdure.cli")
WAIT_S: Final = 60
INITIALIZE: Final = {
    "jsonrpc": "2.0",
    "id": "first",
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}
INITIALIZED: Final = {"jsonrpc": "2.0", "method": "notifications/initialized"}
OWN_FOLDERS: Final = {"XDG_DATA_HOME": "data", "XDG_CONFIG_HOME": "config"}


class StdioProcess:
    """A server in its own process, and lines to and from it."""

    def __init__(
        self, folder: Path, *options: str, program: Sequence[str] = PROGRAM, **env: str
    ) -> None:
        own = {name: str(folder / path) for name, path in OWN_FOLDERS.items()}
        self.process = subprocess.Popen(
            [*program, "mcp", *options],
            cwd=folder,
            env=around(**{**own, **env}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout

    def send(self, *messages: Any) -> None:
        """Send messages; bytes are sent as they are."""
        for message in messages:
            is_raw = isinstance(message, bytes)
            self._stdin.write(message if is_raw else json.dumps(message).encode() + b"\n")
        self._stdin.flush()

    def reply(self) -> dict[str, Any]:
        """Return the next line of the server."""
        value: dict[str, Any] = json.loads(self._stdout.readline())
        return value

    def log_line(self) -> str:
        """Return the next line of the log."""
        assert self.process.stderr is not None
        return self.process.stderr.readline().decode()

    def call(self, request_id: int, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its fields."""
        self.send(call(request_id, tool, **arguments))
        reply = self.reply()
        assert reply["id"] == request_id
        value: dict[str, Any] = reply["result"]["structuredContent"]
        return value

    def finish(self) -> list[dict[str, Any]]:
        """Close stdin; return the rest of the lines of a process that ends well."""
        self._stdin.close()
        lines = [json.loads(line) for line in self._stdout]
        assert self.process.wait(WAIT_S) == 0
        return lines


def call(request_id: int, tool: str, **arguments: Any) -> dict[str, Any]:
    """Return the message of a tool call."""
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


@contextmanager
def started(
    folder: Path, *options: str, program: Sequence[str] = PROGRAM, **env: str
) -> Iterator[StdioProcess]:
    """Yield a server that was started in a folder; kill it if the test fails."""
    server = StdioProcess(folder, *options, program=program, **env)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.__exit__(None, None, None)  # closes the pipes
