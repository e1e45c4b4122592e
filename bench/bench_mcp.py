"""Cost of the MCP server beside bare servers of the SDK, in one run, as CPU of the server.

The sides take turns in the same round, so that other load on the machine affects all of them; CPU
time is counted and not wall time, for the same reason.
"""

import asyncio
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2
from bench.report import Section, Table, number

CONNECTIONS: Final = 16
VERSION: Final = "2026-07-28"
TICKS: Final = os.sysconf("SC_CLK_TCK")
BARE_STDIO: Final = """
import anyio
import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server

async def list_tools(ctx, params):
    return types.ListToolsResult(tools=[types.Tool(name="noop", input_schema={"type": "object"})])

async def main():
    server = Server("bare", on_list_tools=list_tools)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
"""
ABOUT: Final = """CPU of the server per request of the stateless protocol, over 16 connections.
*bare* is a server of the MCP library with one tool that does nothing; *bare with a commit* has a
tool that makes one durable commit to SQLite. perdure checks token, host, origin, rate, role and
arguments, and reads or writes its store."""


@dataclass
class Side:
    """One server and the call that it gets."""

    name: str
    process: "ServerProcess"
    tool: str
    arguments: dict[str, Any]
    aim: str = ""
    costs: list[float] = field(default_factory=list)  # CPU seconds per request, by round


class ServerProcess:
    """A server in its own process."""

    def __init__(self, kind: str, folder: Path) -> None:
        command = [sys.executable, "-m", "bench.mcp_servers", kind, str(folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def cpu_seconds(self) -> float:
        """Return the CPU time of the process so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def stop(self) -> None:
        """Stop the process."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def body(tool: str, arguments: dict[str, Any], number_: int) -> tuple[dict[str, Any], Any]:
    """Return headers and body of a call."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": {
            "extensions": {"io.modelcontextprotocol/tasks": {}}
        },
    }
    is_poll = tool == "tasks/get"
    method = "tasks/get" if is_poll else "tools/call"
    params = dict(arguments) if is_poll else {"name": tool, "arguments": arguments}
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": method,
        "Mcp-Name": arguments["taskId"] if is_poll else tool,
    }
    request = {"jsonrpc": "2.0", "id": number_, "method": method}
    return headers, {**request, "params": {**params, "_meta": meta}}


async def call(client: httpx2.AsyncClient, url: str, tool: str, arguments: dict[str, Any]) -> Any:
    """Make one call and return its result."""
    headers, request = body(tool, arguments, 1)
    reply = (await client.post(url, json=request, headers=headers)).json()
    assert "result" in reply, reply
    assert not reply["result"].get("isError"), reply
    return reply["result"]


async def measure_round(client: httpx2.AsyncClient, side: Side, calls: int) -> None:
    """Send calls over all connections; note the server's CPU per call."""
    left = iter(range(calls))
    before = side.process.cpu_seconds()

    async def connection() -> None:
        for _ in left:
            await call(client, side.process.url, side.tool, side.arguments)

    await asyncio.gather(*(connection() for _ in range(CONNECTIONS)))
    side.costs.append((side.process.cpu_seconds() - before) / calls)


async def measure_sides(folder: Path, quick: bool) -> tuple[list[Side], list[list[str]]]:
    """Return the sides of the two comparisons, and the rows of polls among many tasks."""
    bare, product = ServerProcess("bare", folder), ServerProcess("perdure", folder)
    limits = httpx2.Limits(max_connections=CONNECTIONS)
    try:
        async with httpx2.AsyncClient(timeout=60, limits=limits) as client:
            created = await call(client, product.url, "create_task_sandbox", {"name": "x"})
            task = {"taskId": created["structuredContent"]["taskId"]}
            sides = [
                Side("bare", bare, "noop", {}),
                Side("get_task_status", product, "get_task_status", task, "at most 2x"),
                Side("bare with a commit", bare, "commit", {}),
                Side(
                    "create_task_sandbox",
                    product,
                    "create_task_sandbox",
                    {"name": "x"},
                    "at most 2x",
                ),
            ]
            rounds, calls = (2, 200) if quick else (7, 1_000)
            for index in range(rounds + 1):
                for side in sides:
                    await measure_round(client, side, calls if index else 50)
            for side in sides:
                del side.costs[0]
            polls = await measure_polls(client, product, quick)
    finally:
        bare.stop()
        product.stop()
    return sides, polls


async def measure_polls(
    client: httpx2.AsyncClient, product: ServerProcess, quick: bool
) -> list[list[str]]:
    """Return the CPU per poll of a task among few and among many."""
    rows, first = [], 0.0
    handles: list[dict[str, str]] = []
    for total in (10, 100) if quick else (10, 100, 1_000):
        while len(handles) < total:
            arguments = {"agent": "idle", "prompt": "go"}
            result = await call(client, product.url, "background_task", arguments)
            handles.append({"taskId": result["taskId"]})
        costs = []
        for _ in range(3):
            before = product.cpu_seconds()
            for number_ in range(300):
                await call(client, product.url, "tasks/get", handles[number_ % total])
            costs.append((product.cpu_seconds() - before) / 300)
        cost = statistics.median(costs)
        first = first or cost
        rows.append([f"{total:,}", f"{number(cost * 1000)} ms", f"{cost / first:.2f}x"])
    return rows


def start_cpu(command: Sequence[str], folder: Path) -> float:
    """Return the CPU from the start of a server on stdio to its list of tools."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        list(command),
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "XDG_DATA_HOME": str(folder)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    info = {"name": "bench", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
    for line in (
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ):
        process.stdin.write(json.dumps(line) + "\n")
    process.stdin.flush()
    for _ in range(2):
        assert process.stdout.readline()
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_starts(folder: Path, quick: bool) -> list[list[str]]:
    """Return the rows of the two servers on stdio."""
    commands = {
        "bare": [sys.executable, "-c", BARE_STDIO],
        "perdure mcp": [sys.executable, "-m", "perdure.cli", "mcp"],
    }
    costs: dict[str, list[float]] = {name: [] for name in commands}
    for index in range(3 if quick else 9):
        for name, command in commands.items():
            cost = start_cpu(command, folder)
            if index:
                costs[name].append(cost)
    bare = statistics.median(costs["bare"])
    return [
        [
            name,
            f"{number(statistics.median(values) * 1000)} ms",
            "" if name == "bare" else f"{statistics.median(values) / bare:.2f}x",
            "" if name == "bare" else "at most 1.3x",
        ]
        for name, values in costs.items()
    ]


def rows(sides: Sequence[Side]) -> list[list[str]]:
    """Return the rows of pairs of sides: the bare one, and ours."""
    cells = []
    for bare, side in zip(sides[::2], sides[1::2], strict=True):
        low = statistics.median(bare.costs)
        ratio = statistics.median(
            ours / theirs for ours, theirs in zip(side.costs, bare.costs, strict=True)
        )
        cells.append([bare.name, f"{number(low * 1000)} ms", "", ""])
        cost = statistics.median(side.costs)
        cells.append([side.name, f"{number(cost * 1000)} ms", f"{ratio:.2f}x", side.aim])
    return cells


def measure(*, quick: bool) -> Section:
    """Return the section."""
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as name:
        sides, polls = asyncio.run(measure_sides(Path(name), quick))
        starts = measure_starts(Path(name), quick)
    return Section(
        "MCP server",
        [
            ABOUT,
            Table(("call", "CPU", "to bare", "aim"), rows(sides)),
            "CPU from the start of a server on stdio to its list of tools:",
            Table(("server", "CPU", "to bare", "aim"), starts),
            "CPU of a poll (`tasks/get`) of one of so many tasks, which should stay flat:",
            Table(("tasks", "CPU", "to 10"), polls),
        ],
    )
