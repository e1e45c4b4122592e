"""Claude Code, opencode and Codex with our server, each set up by `perdure mcp install`.

Their model is the fake provider, so what they call is scripted; what they send, and what they do
when our server is killed, is their own. `make clients` runs it.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.mcp_client import open_folder, unconfined
from tests.support.mcp_programs import PACKAGES, PROGRAMS, McpProgram
from tests.support.npm import installed
from tests.support.server import CLI, Server, around

from perdure.testing.endpoint import Endpoint, fake_endpoint

pytestmark = [
    pytest.mark.clients,
    pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name),
]
Call = tuple[str, dict[str, Any]]
TASK: Final = {"taskId": "primes"}
CREATE: Final[Call] = ("create_task_sandbox", {**TASK, "name": "Primes"})
ATTACH: Final[Call] = ("attach_agent_to_task", {**TASK, "agentId": "me"})
POLL: Final[Call] = ("get_task_status", TASK)
DELETE: Final[Call] = ("delete_task", TASK)
ANA: Final = "ana-token-5c0e-91d2ab"
END: Final = "All is done."
END_S: Final = 120
PAUSE_S: Final = 3
STALLS: Final = 8  # waits for a stall, of 30 s each


def execute(command: str) -> Call:
    """Return a call that executes a command."""
    return ("execute_in_task", {**TASK, "command": command})


@pytest.fixture(scope="module")
def programs() -> Path:
    """The folder of the clients' programs, installed by npm at the first run."""
    return installed("mcp-clients", PACKAGES, "MCP clients") / ".bin"


@pytest.fixture
def server() -> Iterator[Server]:
    """`perdure serve` without agents."""
    with served() as running:
        yield running


@contextmanager
def served(**options: Any) -> Iterator[Server]:
    """Run `perdure serve` with these options of `server`."""
    with open_folder() as folder:
        configure(folder, **options)
        with Server(folder) as running:
            yield running


def configure(folder: Path, **options: Any) -> Path:
    """Write a configuration without agents, whose commands run without a sandbox."""
    sql = {"driver": "sqlite", "database": "p.db"}
    config = {
        "session_stores": {"main": {"backend": "sql", "sql": sql}},
        "tasks": unconfined(folder),
        "server": options,
    }
    file = folder / "perdure.yaml"
    file.write_text(json.dumps(config))
    return file


class Conversation:
    """A client that was set up by `perdure mcp install` and runs with a scripted model."""

    def __init__(self, program: McpProgram, endpoint: Endpoint, process: Any, log: Path) -> None:
        self._program = program
        self._endpoint = endpoint
        self._process = process
        self._log = log

    def wait_for_stall(self) -> None:
        """Wait until the client has sent the results before the turn that stalls."""
        for _ in range(STALLS):
            try:
                self._endpoint.wait_for_stall()
            except TimeoutError:
                continue
            return
        pytest.fail(f"{self._log.read_text()}\n{self._endpoint.refused}")

    def finish(self) -> list[Any]:
        """Let the client end; return the results of its calls, parsed where they are JSON."""
        self._endpoint.go_on()
        self._process.wait(timeout=END_S)
        assert END in self._log.read_text(), (self._log.read_text(), self._endpoint.refused)
        texts = self._program.results(self._endpoint.requests[-1].body)
        return [_parsed(text) for text in texts]


def _parsed(text: str) -> Any:
    """Return the object in a result; clients put links or a duration before it."""
    start = text.find('{"')
    return json.loads(text[start:]) if start >= 0 else text


@contextmanager
def conversation(
    program: McpProgram,
    programs: Path,
    calls: Sequence[Call],
    *options: str,
    stall: int = 99,
    **variables: str,
) -> Iterator[Conversation]:
    """Run a client in a new home; the turn `stall` waits until the conversation finishes."""
    turns = [program.turn(tool, arguments) for tool, arguments in calls]
    for turn in turns[stall : stall + 1]:
        turn["fail"] = ["stall"]
    for turn in turns[stall + 1 : -1]:  # the model takes its time before it polls again
        turn["fail"] = [{"fail": "rate_limit", "retry_after": PAUSE_S}]
    strict = not program.uses_newest_models
    with open_folder() as home, fake_endpoint([*turns, {"text": END}], strict=strict) as endpoint:
        env = program.environment(home, endpoint.url)
        subprocess.run(
            [*CLI, "mcp", "install", program.name, *options],
            env={**env, "PYTHONPATH": around()["PYTHONPATH"]},
            cwd=home,
            check=True,
            capture_output=True,
        )
        name, *words = program.command
        log = home / "client.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [str(programs / name), *words, "Compute primes in a task."],
                cwd=home,
                env={**env, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            yield Conversation(program, endpoint, process, log)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_client_continues_with_its_task_after_the_server_was_killed(
    program: McpProgram, programs: Path, server: Server
) -> None:
    """S3.1, S3.14"""
    command = execute("echo 2 3 5 > primes; cat primes")
    calls = [CREATE, ATTACH, command, *[POLL] * program.polls, DELETE]
    with conversation(program, programs, calls, "--http", server.url, stall=3) as client:
        client.wait_for_stall()
        server.kill()
        server.start()
        created, attached, executed, *_, polled, deleted = client.finish()
    assert created["status"] == "pending"
    assert attached["attached"] is True
    assert executed["stdout"] == "2 3 5\n"
    assert polled["status"] == "running"
    assert polled["lastExecution"]["stdout"] == "2 3 5\n"
    assert deleted["success"] is True


def test_a_client_whose_command_was_killed_with_the_server_learns_its_output_so_far(
    program: McpProgram, programs: Path, server: Server
) -> None:
    """S3.1, S3.14"""
    command = execute("echo begun; touch started; sleep 600")
    calls = [CREATE, ATTACH, command, *[POLL] * program.polls, DELETE]
    with conversation(program, programs, calls, "--http", server.url, stall=3) as client:
        wait_for_file(server.folder, "started")
        server.kill()
        server.start()
        client.wait_for_stall()
        *_, polled, deleted = client.finish()
    assert polled["lastExecution"]["reason"] == "interrupted"
    assert polled["lastExecution"]["stdout"] == "begun\n"
    assert deleted["success"] is True


def wait_for_file(folder: Path, name: str) -> None:
    """Wait until a command has made a file below a folder."""
    deadline = time.monotonic() + END_S
    while not list(folder.rglob(name)):
        assert time.monotonic() < deadline, f"{name} does not exist"
        time.sleep(0.05)


def test_a_client_sends_the_token_that_its_entry_names(program: McpProgram, programs: Path) -> None:
    """S3.1, S3.14"""
    tokens = [{"name": "ana", "token": ANA, "role": "admin"}]
    calls = [CREATE, DELETE]
    with served(tokens=tokens) as server:
        options = ("--http", server.url)
        with conversation(program, programs, calls, *options, PERDURE_TOKEN=ANA) as client:
            created, deleted = client.finish()
    assert created["status"] == "pending"
    assert deleted["success"] is True


def test_a_client_starts_our_server_and_finds_its_task_in_its_next_session(
    program: McpProgram, programs: Path
) -> None:
    """S3.1, S3.14"""
    calls = [CREATE, ATTACH, execute("echo 2 3 5")]
    with open_folder() as folder:
        options = ("--config", str(configure(folder)))
        with conversation(program, programs, calls, *options) as client:
            created, _, executed = client.finish()
        with conversation(program, programs, [POLL, DELETE], *options) as client:
            polled, deleted = client.finish()
    assert created["status"] == "pending"  # so the first turn had our tools
    assert executed["stdout"] == polled["lastExecution"]["stdout"] == "2 3 5\n"
    assert deleted["success"] is True
