"""SIGKILL of MCP servers: handles still answer, nothing ran twice, over both transports."""

import json
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from tests.support.mcp_client import MODERN, TASKS, RawClient, open_folder, unconfined
from tests.support.server import CLI, Server, around

WAIT_S = 60
TOOLS = '''
import os, time
from perdure import tool

@tool(idempotent=False)
def note() -> str:
    """Note, then wait for a file."""
    fd = os.open("effects.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, b"note\\n")
    os.close(fd)
    return "noted"
'''


@pytest.fixture
def project() -> Iterator[Path]:
    """Folder of a project with one agent, whose commands run without a sandbox."""
    with open_folder() as folder:
        (folder / "tools.py").write_text(TOOLS)
        turns = [
            {"calls": [{"tool": "note", "args": {}}]},
            {"calls": [{"tool": "ask_user", "args": {"question": "Continue?"}}]},
            {"text": "finished"},
        ]
        (folder / "script.json").write_text(json.dumps(turns))
        config = {
            "session_stores": {
                "main": {"backend": "sql", "sql": {"driver": "sqlite", "database": "p.db"}}
            },
            "llms": {"script": {"provider": "scripted", "script": "script.json"}},
            "agents": {
                "helper": {
                    "llm": "script",
                    "session_store": "main",
                    "tools": ["tools:note", "ask_user"],
                }
            },
            "tasks": unconfined(folder),
            "server": {"rate_limit": {"per_source": "100000/s", "per_id": "100000/s"}},
        }
        (folder / "perdure.yaml").write_text(json.dumps(config))
        yield folder


class Stdio:
    """`perdure mcp` in its own process, spoken to in the stateless protocol."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._number = 0

    def start(self) -> None:
        """Start the process."""
        self._process = subprocess.Popen(
            [*CLI, "mcp", "--config", str(self._folder / "perdure.yaml")],
            cwd=self._folder,
            env=around(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def kill(self) -> None:
        """Kill the process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    async def aclose(self) -> None:
        """Close nothing more: the pipes are closed."""

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send one request and wait for its reply."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._number += 1
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {
                "elicitation": {},
                "extensions": {TASKS: {}},
            },
        }
        body = {"jsonrpc": "2.0", "id": self._number, "method": method}
        line = json.dumps({**body, "params": {**params, "_meta": meta}})
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        while True:
            reply = json.loads(self._process.stdout.readline())  # nothing else is on stdout
            if reply.get("id") == self._number:
                return reply["result"] if "result" in reply else {"error": reply["error"]}

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Do the same in a thread."""
        return await anyio.to_thread.run_sync(self.ask, method, params)

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool."""
        return await self.request("tools/call", {"name": tool, "arguments": arguments})


class Http:
    """`perdure serve` in its own process."""

    def __init__(self, folder: Path) -> None:
        self._server = Server(folder)
        self._client = httpx2.AsyncClient(base_url=self._server.url, timeout=60)
        self._raw = RawClient(self._client)
        self.request, self.call = self._raw.request, self._raw.call

    def start(self) -> None:
        """Start the process."""
        self._server.start()

    def kill(self) -> None:
        """Kill the process."""
        self._server.kill()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()


Process = Stdio | Http


@asynccontextmanager
async def served(kind: type[Process], folder: Path) -> AsyncIterator[Process]:
    process = kind(folder)
    await anyio.to_thread.run_sync(process.start)
    try:
        yield process
    finally:
        process.kill()
        await process.aclose()


async def until(process: Process, task: str, *statuses: str) -> dict[str, Any]:
    with anyio.fail_after(WAIT_S):
        while True:
            value = await process.request("tasks/get", {"taskId": task})
            assert "error" not in value, value
            if value["status"] in statuses:
                return value
            await anyio.sleep(0.05)


def effect_files(project: Path) -> list[Path]:
    return list(project.rglob("workspace/effects"))


async def first_effect(project: Path) -> Path:
    """Return the workspace once the command, which another process runs, has begun."""
    with anyio.fail_after(WAIT_S):
        while True:
            files = await anyio.to_thread.run_sync(effect_files, project)
            if files:
                return files[0].parent
            await anyio.sleep(0.02)


async def first_output(process: Process, task: str) -> None:
    """Return once the process has recorded output of the command that runs in a task."""
    with anyio.fail_after(WAIT_S):
        while True:
            status = (await process.call("get_task_status", taskId=task))["structuredContent"]
            if status["lastExecution"]["stdout"]:
                return
            await anyio.sleep(0.02)


@pytest.mark.parametrize("kind", [Stdio, Http])
async def test_a_handle_answers_after_a_kill_and_nothing_ran_twice(
    project: Path, kind: type[Process]
) -> None:
    """S3.8, G2, G3"""
    async with served(kind, project) as process:
        agent = (await process.call("background_task", agent="helper", prompt="go"))["taskId"]
        waiting = await until(process, agent, "input_required")
        await process.call("create_task_sandbox", name="x", taskId="t")
        await process.call("attach_agent_to_task", taskId="t", agentId="me")
        line = "echo ran >> effects; echo begun; sleep 600"
        command = await process.call("execute_in_task", taskId="t", command=line, timeout=900_000)
        workspace = await first_effect(project)
        await first_output(process, "t")
    async with served(kind, project) as process:
        again = await until(process, agent, "input_required")
        assert again["inputRequests"] == waiting["inputRequests"]
        key = next(iter(again["inputRequests"]))
        answer = {key: {"action": "accept", "content": {"answer": "yes"}}}
        await process.request("tasks/update", {"taskId": agent, "inputResponses": answer})
        done = await until(process, agent, "completed")
        assert done["result"]["structuredContent"]["output"] == "finished"
        ended = await until(process, command["taskId"], "completed")
        value = ended["result"]["structuredContent"]
        assert (value["success"], value["reason"]) == (False, "interrupted")
        assert value["stdout"] == "begun\n"
        status = (await process.call("get_task_status", taskId="t"))["structuredContent"]
        assert status["lastExecution"]["reason"] == "interrupted"
    assert (project / "effects.log").read_text() == "note\n"
    assert (workspace / "effects").read_text() == "ran\n"


async def test_two_servers_on_one_file_answer_for_each_other(project: Path) -> None:
    """SX.4"""
    async with served(Http, project) as first, served(Http, project) as second:
        await first.call("create_task_sandbox", name="x", taskId="t")
        await second.call("attach_agent_to_task", taskId="t", agentId="me")
        task = (await first.call("background_task", agent="helper", prompt="go"))["taskId"]
        waiting = await until(second, task, "input_required")
        key = next(iter(waiting["inputRequests"]))
        answer = {key: {"action": "accept", "content": {"answer": "yes"}}}
        await second.request("tasks/update", {"taskId": task, "inputResponses": answer})
        done = await until(first, task, "completed")
        assert done["result"]["structuredContent"]["output"] == "finished"
        command = await second.call("execute_in_task", taskId="t", command="echo hi")
        ended = await until(first, command["taskId"], "completed")
        assert ended["result"]["structuredContent"]["stdout"] == "hi\n"
    assert (project / "effects.log").read_text() == "note\n"
