"""MCP clients for tests: in this process on an application, and on a server in its own process."""

import json
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
from mcp import Client
from mcp_types import CallToolResult

from perdure import Runtime
from perdure.app import service_of
from perdure.core.roles import Principal
from perdure.options import TaskOptions
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.serve.mcp.access import mcp_caller
from perdure.serve.mcp.application import Application, application_of
from perdure.serve.mcp.methods import Methods, Parts
from perdure.serve.mcp.toolbox import McpOptions
from perdure.serve.mcp.tools.catalog import toolbox_of

MODERN: Final = "2026-07-28"
TASKS: Final = "io.modelcontextprotocol/tasks"


def methods(
    rt: Runtime, *, options: McpOptions | None = None, principal: Principal | None = None
) -> Methods:
    """Return the methods of an MCP server on an open runtime, for one principal."""
    who = principal or Principal("ana", "admin")
    caller = mcp_caller(Caller(who, who.tenant))
    service, chosen = service_of(rt), options or McpOptions()
    toolbox = toolbox_of(service.agents.all(), chosen)
    return Methods(Parts(service, chosen, anyio.Event(), caller), toolbox)


def application(rt: Runtime, **options: Any) -> Application:
    """Return an MCP application on an open runtime, for one principal."""
    return application_of(methods(rt, **options))


@asynccontextmanager
async def connected(rt: Runtime, *, mode: str = "auto", **options: Any) -> AsyncIterator[Client]:
    """Yield the SDK's client, connected to an application in this process."""
    async with Client(application(rt, **options).server, mode=mode) as client:
        yield client


def fields(result: CallToolResult) -> dict[str, Any]:
    """Return the fields of an answer, which are the same in both of its forms."""
    value: dict[str, Any] = result.structured_content
    assert json.loads(result.content[0].text) == value  # type: ignore[union-attr]
    return value


def error_code(result: CallToolResult) -> str:
    """Return the code of an answer that is a failure."""
    assert result.is_error
    value = fields(result)
    assert value["success"] is False
    assert set(value["error"]) == {"code", "message", "details"}
    code: str = value["error"]["code"]
    return code


class RawClient:
    """Client that sends exactly what a test says, over HTTP, in the stateless protocol."""

    def __init__(
        self,
        http: httpx2.AsyncClient,
        *,
        extensions: dict[str, Any] | None = None,
        shows_forms: bool = True,
        elicitation: dict[str, Any] | None = None,
    ) -> None:
        self._http = http
        self._elicitation = {"elicitation": elicitation or {}} if shows_forms else {}
        self._extensions = {TASKS: {}} if extensions is None else extensions
        self._number = 0

    def envelope(self) -> dict[str, Any]:
        """Return the `_meta` of a request."""
        capabilities = {**self._elicitation, "extensions": self._extensions}
        return {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": capabilities,
            "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
        }

    async def post(self, method: str, params: dict[str, Any], **headers: str) -> httpx2.Response:
        """Post one request."""
        self._number += 1
        name = params.get("taskId") or params.get("uri") or params.get("name")
        sent = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": MODERN,
            "Mcp-Method": method,
            **({} if name is None else {"Mcp-Name": name}),
            **{key.replace("_", "-"): value for key, value in headers.items()},
        }
        body = {"jsonrpc": "2.0", "id": self._number, "method": method}
        body["params"] = {**params, "_meta": self.envelope()}
        return await self._http.post("/mcp", json=body, headers=sent)

    async def request(self, method: str, params: dict[str, Any], **headers: str) -> dict[str, Any]:
        """Post one request; return its result, or its error under `error`."""
        response = await self.post(method, params, **headers)
        reply: dict[str, Any] = _reply(response)
        return reply["result"] if "result" in reply else {"error": reply["error"]}

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool."""
        return await self.request("tools/call", {"name": tool, "arguments": arguments})


def _reply(response: httpx2.Response) -> Any:
    if response.headers["content-type"].startswith("text/event-stream"):
        lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
        return json.loads(lines[-1].removeprefix("data: "))
    return response.json()


@contextmanager
def open_folder() -> Iterator[Path]:
    """Yield a folder that every user of the machine can enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-mcp-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def unconfined(folder: Path) -> TaskOptions:
    """Return options of tasks whose commands run without a sandbox; root needs another user."""
    user: TaskOptions = {"run_as": "nobody"} if os.geteuid() == 0 else {}
    return {"root": str(folder / "tasks"), "sandbox": "none", **user}
