"""Forms at clients of the official SDKs, in both eras and on both transports, across SIGKILL."""

import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import anyio
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp_types import ElicitResult, InputRequiredResult
from tests.support.mcp_client import MODERN, fields, open_folder, unconfined
from tests.support.npm import installed
from tests.support.server import CLI, Server, around

WAIT_S = 120
PACKAGES: Final = ("@modelcontextprotocol/sdk@1.32.2", "@modelcontextprotocol/client@2.4.0")
SCRIPT: Final = Path(__file__).parents[1] / "support" / "asking_client.cjs"
APPROVE: Final[dict[str, Any]] = {"action": "accept", "content": {"decision": "approve"}}
TOOLS = '''
import os
from perdure import tool

@tool(requires_approval=True, redact=["card"])
def refund(cents: int, card: str) -> str:
    """Refund."""
    fd = os.open("effects.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, f"{cents}\\n".encode())
    os.close(fd)
    return "refunded"
'''
CALL: Final = {"tool": "refund", "args": {"cents": 5, "card": "4111-secret"}}


@pytest.fixture
def project() -> Iterator[Path]:
    """Folder of a project with an agent whose refund a person must approve."""
    with open_folder() as folder:
        (folder / "tools.py").write_text(TOOLS)
        (folder / "script.json").write_text(json.dumps([{"calls": [CALL]}, {"text": "finished"}]))
        sql = {"driver": "sqlite", "database": "p.db"}
        config = {
            "session_stores": {"main": {"backend": "sql", "sql": sql}},
            "llms": {"script": {"provider": "scripted", "script": "script.json"}},
            "agents": {
                "shop": {"llm": "script", "session_store": "main", "tools": ["tools:refund"]}
            },
            "tasks": unconfined(folder),
            "server": {"mcp": {"approve": True}},
        }
        (folder / "perdure.yaml").write_text(json.dumps(config))
        yield folder


def stdio_command(folder: Path) -> list[str]:
    """Return the command of a server on stdio, which writes down the id of its process."""
    server = " ".join([*CLI, "mcp", "--approve", "--config", f"{folder}/perdure.yaml"])
    return ["/bin/sh", "-c", f"cd {folder}; echo $$ >> {folder}/pids; exec {server}"]


def kill_stdio(folder: Path) -> None:
    """Kill the server that a client has started last."""
    os.kill(int((folder / "pids").read_text().split()[-1]), signal.SIGKILL)


def check_outcome(project: Path, result: dict[str, Any]) -> None:
    assert (result["status"], result["output"]) == ("completed", "finished"), result
    (decision,) = result["decisions"]
    assert (decision["decision"], decision["recorded"]) == ("approve", True)
    assert (project / "effects.log").read_text() == "5\n"


# --- the SDK for Python -------------------------------------------------------------------------


class Person:
    """The person at a client: answers a form when the test says so."""

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.answers = anyio.Event()
        self.forms: list[Any] = []

    async def __call__(self, _: Any, params: Any) -> ElicitResult:
        """Wait, then approve."""
        self.forms.append(params)
        self.asked.set()
        await self.answers.wait()
        return ElicitResult(action="accept", content={"decision": "approve"})


class PythonClient:
    """A client of the SDK for Python, on one transport, in one era."""

    def __init__(self, transport: str, era: str, project: Path) -> None:
        self._is_http = transport == "http"
        self._era = era
        self._project = project
        self.server = Server(project)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__()

    def start(self) -> None:
        """Start the server, unless each client starts its own."""
        if self._is_http:
            self.server.start()

    def kill(self) -> None:
        """Kill the server."""
        if self._is_http:
            self.server.kill()
        else:
            kill_stdio(self._project)

    @asynccontextmanager
    async def connected(self, person: Person) -> AsyncIterator[Client]:
        """Yield a client; its end may fail if the server was killed."""
        target: Any = f"{self.server.url}/mcp"
        if not self._is_http:
            command, *args = stdio_command(self._project)
            target = stdio_client(StdioServerParameters(command=command, args=args, env=around()))
        callback: Any = person
        async with Client(target, mode=self._era, elicitation_callback=callback) as client:
            yield client

    async def interrupted_call(self, person: Person) -> str:
        """Launch an agent, wait for it until the person is asked, and kill the server."""
        task = ""
        with suppress(Exception):
            async with self.connected(person) as client, anyio.create_task_group() as calls:
                task = await launched(client)
                calls.start_soon(waiting, client, task)
                await person.asked.wait()
                self.kill()
                calls.cancel_scope.cancel()
        return task


async def launched(client: Client) -> str:
    value = await client.call_tool("background_task", {"agent": "shop", "prompt": "go"})
    return str(fields(value)["task_id"])


async def waiting(client: Client, task: str) -> dict[str, Any]:
    arguments = {"task_id": task, "block": True}
    return fields(await client.call_tool("background_output", arguments))


@pytest.mark.parametrize("era", [MODERN, "legacy"])
@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_a_person_is_asked_again_after_a_kill_and_the_call_runs_once(
    project: Path, transport: str, era: str
) -> None:
    """G3, S4.27"""
    first, second = Person(), Person()
    with PythonClient(transport, era, project) as sdk, anyio.fail_after(WAIT_S):
        task = await sdk.interrupted_call(first)
        sdk.start()
        second.answers.set()
        async with sdk.connected(second) as client:
            check_outcome(project, await waiting(client, task))
    assert [form.message for form in first.forms] == [form.message for form in second.forms]
    assert "4111" not in str(first.forms)


async def test_a_stateless_call_continues_on_a_server_that_was_killed_before_the_answer(
    project: Path,
) -> None:
    """G3, SX.4"""
    person = Person()
    with PythonClient("http", MODERN, project) as sdk, anyio.fail_after(WAIT_S):
        async with sdk.connected(person) as client, anyio.create_task_group() as calls:

            async def restart() -> None:
                await person.asked.wait()
                sdk.kill()
                sdk.start()
                person.answers.set()

            calls.start_soon(restart)
            check_outcome(project, await waiting(client, await launched(client)))
    assert len(person.forms) == 1


async def test_another_server_with_the_same_store_takes_the_answer(project: Path) -> None:
    """G4, SX.4"""
    with (
        PythonClient("http", MODERN, project) as sdk,
        PythonClient("http", MODERN, project) as other,
        anyio.fail_after(WAIT_S),
    ):
        async with sdk.connected(Person()) as client:
            arguments = {"task_id": await launched(client), "block": True}
            form = await client.session.call_tool(
                "background_output", arguments, allow_input_required=True
            )
        assert isinstance(form, InputRequiredResult)
        answer = ElicitResult(action="accept", content={"decision": "approve"})
        async with other.connected(Person()) as client:
            result = await client.call_tool(
                "background_output",
                arguments,
                input_responses=dict.fromkeys(form.input_requests or {}, answer),
                request_state=form.request_state,
            )
    check_outcome(project, fields(result))


# --- the SDKs for TypeScript --------------------------------------------------------------------


@pytest.fixture(scope="module")
def modules() -> Path:
    """The folder of both SDKs, installed by npm at the first run."""
    return installed("mcp-sdks", PACKAGES, "MCP SDKs for TypeScript")


class NodeClient:
    """A client of an SDK for TypeScript in its own process."""

    def __init__(self, *words: str) -> None:
        self._process = subprocess.Popen(
            ["node", str(SCRIPT), *words],
            env=around(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self, name: str) -> Any:
        """Return the value of the next line, which has this name."""
        assert self._process.stdout is not None
        line = json.loads(self._process.stdout.readline() or "{}")
        assert name in line, line
        return line[name]

    def answer(self, response: dict[str, Any]) -> None:
        """Answer the form that is shown."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(response) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.__exit__(None, None, None)  # closes the pipes


@pytest.fixture
def start_node() -> Iterator[Any]:
    """Start clients that end with the test."""
    clients: list[NodeClient] = []

    def start(*words: Any) -> NodeClient:
        clients.append(NodeClient(*map(str, words)))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


SDKS: Final = [("v1", "legacy"), ("v2", "legacy"), ("v2", MODERN)]


@pytest.mark.parametrize("killed", ["server", "client"])
@pytest.mark.parametrize("sdk, era", SDKS)
def test_a_typescript_client_is_asked_again_over_http_after_a_kill(
    modules: Path, project: Path, start_node: Any, sdk: str, era: str, killed: str
) -> None:
    """G3, S4.27"""
    with Server(project) as server:
        words = (modules, sdk, era, f"{server.url}/mcp")
        first = start_node(*words)
        task, form = first.read("task_id"), first.read("asked")
        assert form["requestedSchema"]["properties"]["decision"]["enum"] == [
            *("approve", "edit", "deny"),
        ]
        assert "4111" not in str(form)
        if killed == "server":
            server.kill()
            server.start()
        first.close()
        second = start_node(*words, task)
        assert second.read("task_id") == task
        assert second.read("asked")["message"] == form["message"]
        second.answer(APPROVE)
        check_outcome(project, second.read("result"))


def test_a_stateless_typescript_call_continues_on_a_server_that_was_killed(
    modules: Path, project: Path, start_node: Any
) -> None:
    """G3, SX.4"""
    with Server(project) as server:
        client = start_node(modules, "v2", MODERN, f"{server.url}/mcp")
        client.read("task_id")
        client.read("asked")
        server.kill()
        server.start()
        client.answer(APPROVE)
        check_outcome(project, client.read("result"))


@pytest.mark.parametrize("sdk, era", SDKS)
def test_a_typescript_client_is_asked_again_over_stdio_after_a_kill(
    modules: Path, project: Path, start_node: Any, sdk: str, era: str
) -> None:
    """G3, S4.27"""
    words = (modules, sdk, era, json.dumps(stdio_command(project)))
    first = start_node(*words)
    task = first.read("task_id")
    first.read("asked")
    kill_stdio(project)
    first.close()
    second = start_node(*words, task)
    assert second.read("task_id") == task
    second.read("asked")
    second.answer(APPROVE)
    check_outcome(project, second.read("result"))
