"""One connection to an MCP server, in its own asyncio task: any task may open or close it."""

import asyncio
import contextvars
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import anyio
import httpx2
from mcp import Client, types
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from perdure import host
from perdure.errors import ToolError
from perdure.runtime.mcp.content import to_listed_tool
from perdure.runtime.mcp.process import (
    Stderr,
    exits_with_parent,
    is_installed,
    mask_in_logs,
    mask_secrets,
)
from perdure.runtime.mcp.servers import ConnectionBroken, ListedTool, MCPServer, ServerDown
from perdure.runtime.values import Context
from perdure.views.values import parse_duration

EFFECT: Final = "perdure/effectID"  # in `_meta`: the same at every attempt
_PAGES: Final = 100  # of a list of tools, at most
_PROBE_AFTER_S: Final = 1.0  # a connection unused for longer is probed before its next use
_PROBE_S: Final = 10.0
_CLOSED: Final = types.CONNECTION_CLOSED
_SESSION_LOST: Final = "Session terminated"  # the server was restarted and lost its session

# The library also logs errors that it raises; only an application that configures logging sees it.
logging.getLogger("mcp").addHandler(logging.NullHandler())


class ServerConnection:
    """A connection, until it is closed or breaks."""

    def __init__(self, server: MCPServer) -> None:
        self.server = server
        self.users = 0
        self.tools: tuple[ListedTool, ...] = ()
        self._used_at = 0.0
        self._client: Client | None = None
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._status: int | None = None  # of the last HTTP response, if it was an error

    @property
    def is_open(self) -> bool:
        """True if it is not known to be broken."""
        return self._task is not None and not self._task.done() and not self._over.is_set()

    def unused_for(self) -> float:
        """Return the seconds since its last use."""
        return host.elapsed() - self._used_at

    async def open(self) -> None:
        """Connect and list the tools. Raises ServerDown."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Client] = loop.create_future()
        # In an empty context: it outlives the call that opens it.
        empty = contextvars.Context()
        self._task = loop.create_task(self._live(opened), context=empty)
        limit_s = parse_duration(self.server.connect_timeout) / 1_000
        try:
            async with asyncio.timeout(limit_s):
                self._client = await opened
                self.tools = await self._list_tools()
        except TimeoutError:
            await self.close()
            raise ServerDown(self._down(f"no answer within {limit_s:g} s")) from None
        except ServerDown:
            await self.close()
            raise
        except Exception as error:
            await self.close()
            raise ServerDown(self._down(self._reason(error))) from error
        except BaseException:
            await self.close()
            raise
        self._used_at = host.elapsed()

    async def close(self) -> None:
        """Close it, and end the program that was started for it."""
        self._over.set()
        task = self._task
        if task is None:
            return
        if self._client is None:
            task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])

    async def _live(self, opened: "asyncio.Future[Client]") -> None:
        try:
            async with self._connected() as client:
                if not opened.done():
                    opened.set_result(client)
                await self._over.wait()
        except asyncio.CancelledError:
            pass  # cancelled while it was being opened
        except Exception as error:  # noqa: BLE001 - errors of the MCP library are not enumerable
            if not opened.done():
                opened.set_exception(error)
        if not opened.done():
            opened.cancel()

    # --- transports ---------------------------------------------------------------------------

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        async with AsyncExitStack() as stack:
            if self.server.url is None:
                transport, stderr = self._program(stack)
            else:
                transport, stderr = self._web(self.server.url, stack), None
            client = await stack.enter_async_context(Client(transport, cache=None))
            if stderr is not None:
                stderr.close_write_end()
            yield client

    def _program(self, stack: AsyncExitStack) -> tuple[Any, Stderr]:
        server = self.server
        env = dict(server.env)
        if not is_installed(server.command, {"PATH": os.environ.get("PATH", os.defpath), **env}):
            raise ServerDown(self._down(f"there is no program {server.command[0]!r}"))
        stderr = Stderr(server.name, server.secrets)
        stack.callback(stderr.close)
        stack.callback(self._keep_last_line, stderr)
        program, *args = exits_with_parent(server.command, host.process_id())
        parameters = StdioServerParameters(command=program, args=args, env=env, cwd=server.cwd)
        return stdio_client(parameters, errlog=stderr.file), stderr

    def _keep_last_line(self, stderr: Stderr) -> None:
        self._last_line = stderr.last_line()

    def _web(self, url: str, stack: AsyncExitStack) -> Any:
        async def keep_status(response: httpx2.Response) -> None:
            self._status = response.status_code if response.status_code >= 400 else None

        mask_in_logs(self.server.secrets)
        # No read timeout: calls and connections have their own limits.
        web = httpx2.AsyncClient(
            headers=dict(self.server.headers),
            timeout=httpx2.Timeout(30, read=None),
            event_hooks={"response": [keep_status]},
        )
        stack.push_async_callback(web.aclose)
        return streamable_http_client(url, http_client=web)

    # --- use ----------------------------------------------------------------------------------

    async def _list_tools(self) -> tuple[ListedTool, ...]:
        client, tools, cursor = self._open_client(), list[ListedTool](), None
        if client.server_capabilities.tools is None:
            return ()
        for _ in range(_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += [to_listed_tool(tool) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                break
        return tuple(tools)

    def check(self, tool: str) -> None:
        """Raise ToolError if the server no longer lists a tool."""
        if all(listed.name != tool for listed in self.tools):
            raise ToolError(
                f"MCP server {self.server.name!r} no longer has a tool {tool!r}",
                code="TOOL_MISSING",
            )

    async def is_alive(self, *, must_probe: bool) -> bool:
        """Return True if the server still responds to a request for its tools.

        A connection that was just used is not probed, unless `must_probe`: then a call follows
        that may not be repeated.
        """
        if not must_probe and self.unused_for() <= _PROBE_AFTER_S:
            return self.is_open
        try:
            async with asyncio.timeout(_PROBE_S):
                self.tools = await self._list_tools()
        except Exception:  # noqa: BLE001 - after any error another connection is opened
            return False
        self._used_at = host.elapsed()
        return True

    async def call(
        self, tool: str, args: Mapping[str, Any], ctx: Context[Any]
    ) -> types.CallToolResult:
        """Call a tool. Raises ConnectionBroken, or MCPError for an error that the server sent."""

        async def report(progress: float, total: float | None, message: str | None) -> None:
            percent = min(max(100 * progress / total, 0.0), 100.0) if total else None
            await ctx.progress(message or f"{progress:g}", percent)

        meta: Any = {EFFECT: ctx.effect_id} if ctx.effect_id else None
        try:
            return await self._open_client().call_tool(
                tool, dict(args), progress_callback=report, meta=meta
            )
        except MCPError as error:
            if error.code == _CLOSED or error.message == _SESSION_LOST:
                reached = error.message != _SESSION_LOST
                raise ConnectionBroken(self._reason(error), reached=reached) from error
            raise
        except (OSError, httpx2.TransportError, anyio.BrokenResourceError) as error:
            raise ConnectionBroken(self._reason(error), reached=True) from error
        except anyio.ClosedResourceError as error:
            raise ConnectionBroken(self._reason(error), reached=False) from error
        finally:
            self._used_at = host.elapsed()

    def _open_client(self) -> Client:
        if self._client is None or not self.is_open:
            raise anyio.ClosedResourceError
        return self._client

    # --- errors -------------------------------------------------------------------------------

    _last_line: str = ""  # of the program's standard error

    def _down(self, reason: str) -> str:
        return f"MCP server {self.server.name!r} cannot be reached: {reason}"

    def _reason(self, error: BaseException) -> str:
        """Return the reason of an error in one line, without secrets."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        text = mask_secrets(str(error), self.server.secrets).partition("\n")[0].strip()
        parts = [text or type(error).__name__]
        if self._status is not None:
            parts.append(f"HTTP {self._status}")
        if self._last_line:
            parts.append(self._last_line)
        return "; ".join(parts)[:400]
