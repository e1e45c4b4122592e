"""Servers of the MCP benchmark: `python -m bench.mcp_servers KIND FOLDER`.

`bare` is a server of the SDK with a tool that does nothing and one that makes a durable commit;
`perdure` is the product. Both print their URL first.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any, Final

import mcp_types as types
import uvicorn
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from perdure import Agent, Principal, Runtime
from perdure.serve.http.app import Mount, application
from perdure.serve.http.middleware import Rules
from perdure.serve.limits import Rate
from perdure.serve.mcp.endpoint import PATH, McpEndpoint
from perdure.serve.mcp.toolbox import McpOptions
from perdure.store.base import Record, Store, Write
from perdure.store.sqlite.store import SqliteStore
from perdure.testing import ScriptedModel

UNLIMITED: Final = Rate(10**9, 10**9)


def bare_server(store: Store | None) -> Server[Any]:
    """Return a server of the SDK with two tools."""
    schema = {"type": "object", "properties": {}}
    tools = [types.Tool(name=name, input_schema=schema) for name in ("noop", "commit")]

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name == "commit" and store is not None:
            await store.commit([Write("bench", [Record("x", b"{}")], create="bench")])
        return types.CallToolResult(content=[types.TextContent(text="{}")])

    return Server("bare", on_list_tools=list_tools, on_call_tool=call_tool)


class _Announced(uvicorn.Server):
    """Server that prints its URL when it listens."""

    async def startup(self, sockets: Any = None) -> None:
        """Start to accept, and print the URL."""
        await super().startup(sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        print(f"http://127.0.0.1:{port}/mcp", flush=True)


async def serve(app: Any) -> None:
    """Serve an application on a free port."""
    config = uvicorn.Config(app, port=0, lifespan="off", log_level="error")
    await _Announced(config).serve()


async def serve_bare(folder: Path) -> None:
    """Serve the bare server over HTTP."""
    store = SqliteStore(folder / "bare.db")
    await store.open()
    manager = StreamableHTTPSessionManager(app=bare_server(store))
    async with manager.run():
        await serve(manager.asgi_app)


async def serve_perdure(folder: Path) -> None:
    """Serve the product, without a worker: nothing else runs in the process."""
    agent = Agent("idle", model=ScriptedModel([{"text": "x"}]))
    principal = Principal("bench", "admin")

    async def authenticate(_: Any) -> Principal:
        return principal

    async with Runtime(f"sqlite:///{folder / 'perdure.db'}", agents=[agent]) as rt:
        rules = Rules(per_source=UNLIMITED, per_id=UNLIMITED)
        mount = Mount(PATH, lambda state, limits: McpEndpoint(state, limits, McpOptions()))
        await serve(application(rt, authenticate, rules, mounts=[mount]))


if __name__ == "__main__":
    kind, target = sys.argv[1], Path(sys.argv[2])
    works = {"bare": serve_bare, "perdure": serve_perdure}
    asyncio.run(works[kind](target))
