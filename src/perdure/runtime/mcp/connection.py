"""One connection to an MCP server, in a task of its own: who opens it need not be who closes it."""

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

from perdure.errors import ToolError
from perdure.runtime.mcp.content import listed
from perdure.runtime.mcp.process import Stderr, exits_with_parent, hidden, hide_in_logs, is_there
from perdure.runtime.mcp.servers import BrokeOff, Listed, MCPServer, ServerDown
from perdure.runtime.values import Context, parse_duration

EFFECT: Final = "perdure/effectID"  # in `_meta`: the same at every attempt
_PAGES: Final = 100  # of a list
_PROBE_AFTER_S: Final = 1.0  # unused for longer, a connection is asked whether it is one
_PROBE_S: Final = 10.0
_CLOSED: Final = types.CONNECTION_CLOSED
_FORGOTTEN: Final = "Session terminated"  # a server that started anew knows no older session

# What the library logs of errors that it also raises is for who configures logging.
logging.getLogger("mcp").addHandler(logging.NullHandler())


class ServerConnection:
    """An open connection, until it is closed or falls."""

    def __init__(self, server: MCPServer) -> None:
        self.server = server
        self.users = 0
        self.tools: tuple[Listed, ...] = ()
        self._used_at = 0.0
        self._client: Client | None = None
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._status: int | None = None  # of the last answer by HTTP that was a refusal

    @property
    def is_open(self) -> bool:
        """Whether it has not fallen yet, as far as we know."""
        return self._task is not None and not self._task.done() and not self._over.is_set()

    def unused_for(self) -> float:
        """Seconds since it was last used."""
        return asyncio.get_running_loop().time() - self._used_at

    async def open(self) -> None:
        """Connect, and read the list. Raises ServerDown."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Client] = loop.create_future()
        # In an empty context: it outlives the call for which it is opened.
        empty = contextvars.Context()
        self._task = loop.create_task(self._live(opened), context=empty)
        limit_s = parse_duration(self.server.connect_timeout) / 1_000
        try:
            async with asyncio.timeout(limit_s):
                self._client = await opened
                self.tools = await self._listed()
        except TimeoutError:
            await self.close()
            raise ServerDown(self._down(f"no answer within {limit_s:g} s")) from None
        except ServerDown:
            await self.close()
            raise
        except Exception as error:
            await self.close()
            raise ServerDown(self._down(self._why(error))) from error
        except BaseException:
            await self.close()
            raise
        self._used_at = loop.time()

    async def close(self) -> None:
        """End it, and with it the program that was started for it."""
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
            pass  # called off while it was being opened
        except Exception as error:  # noqa: BLE001 - whatever a server and its transport do
            if not opened.done():
                opened.set_exception(error)
        if not opened.done():
            opened.cancel()

    # --- transports ---------------------------------------------------------------------------

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        async with AsyncExitStack() as stack:
            if self.server.url is None:
                transport, started = self._program(stack)
            else:
                transport, started = self._web(self.server.url, stack), None
            client = await stack.enter_async_context(Client(transport, cache=None))
            if started is not None:
                started.started()
            yield client

    def _program(self, stack: AsyncExitStack) -> tuple[Any, Stderr]:
        server = self.server
        env = dict(server.env)
        if not is_there(server.command, {"PATH": os.environ.get("PATH", os.defpath), **env}):
            raise ServerDown(self._down(f"there is no program {server.command[0]!r}"))
        said = Stderr(server.name, server.secrets)
        stack.callback(said.close)
        stack.callback(self._hear, said)
        program, *args = exits_with_parent(server.command, os.getpid())
        wanted = StdioServerParameters(command=program, args=args, env=env, cwd=server.cwd)
        return stdio_client(wanted, errlog=said.file), said

    def _hear(self, said: Stderr) -> None:
        self._last_words = said.last_line()

    def _web(self, url: str, stack: AsyncExitStack) -> Any:
        async def note(response: httpx2.Response) -> None:
            self._status = response.status_code if response.status_code >= 400 else None

        hide_in_logs(self.server.secrets)
        # Our own limits count, for the call as for the connection.
        web = httpx2.AsyncClient(
            headers=dict(self.server.headers),
            timeout=httpx2.Timeout(30, read=None),
            event_hooks={"response": [note]},
        )
        stack.push_async_callback(web.aclose)
        return streamable_http_client(url, http_client=web)

    # --- using it -----------------------------------------------------------------------------

    async def _listed(self) -> tuple[Listed, ...]:
        client, found, cursor = self._open_client(), list[Listed](), None
        if client.server_capabilities.tools is None:
            return ()
        for _ in range(_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += [listed(tool) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                break
        return tuple(found)

    def check(self, tool: str) -> None:
        """Raise ToolError if the server does not list a tool any more."""
        if all(one.name != tool for one in self.tools):
            raise ToolError(
                f"MCP server {self.server.name!r} has no tool {tool!r} any more",
                code="TOOL_MISSING",
            )

    async def answers(self, *, is_sure: bool) -> bool:
        """Whether there is still somebody: asked for the list, unless it was used just now.

        `is_sure`: asked in any case, for what could not be repeated.
        """
        if not is_sure and self.unused_for() <= _PROBE_AFTER_S:
            return self.is_open
        try:
            async with asyncio.timeout(_PROBE_S):
                self.tools = await self._listed()
        except Exception:  # noqa: BLE001 - whatever it is, another connection is opened
            return False
        self._used_at = asyncio.get_running_loop().time()
        return True

    async def call(
        self, tool: str, args: Mapping[str, Any], ctx: Context[Any]
    ) -> types.CallToolResult:
        """Call a tool. Raises BrokeOff if the connection ended, MCPError for an error it told."""

        async def told(progress: float, total: float | None, message: str | None) -> None:
            percent = min(max(100 * progress / total, 0.0), 100.0) if total else None
            await ctx.progress(message or f"{progress:g}", percent)

        meta: Any = {EFFECT: ctx.effect_id} if ctx.effect_id else None
        try:
            return await self._open_client().call_tool(
                tool, dict(args), progress_callback=told, meta=meta
            )
        except MCPError as error:
            if error.code == _CLOSED or error.message == _FORGOTTEN:
                reached = error.message != _FORGOTTEN
                raise BrokeOff(self._why(error), reached=reached) from error
            raise
        except (OSError, httpx2.TransportError, anyio.BrokenResourceError) as error:
            raise BrokeOff(self._why(error), reached=True) from error
        except anyio.ClosedResourceError as error:
            raise BrokeOff(self._why(error), reached=False) from error
        finally:
            self._used_at = asyncio.get_running_loop().time()

    def _open_client(self) -> Client:
        if self._client is None or not self.is_open:
            raise anyio.ClosedResourceError
        return self._client

    # --- telling ------------------------------------------------------------------------------

    _last_words: str = ""

    def _down(self, why: str) -> str:
        return f"MCP server {self.server.name!r} cannot be reached: {why}"

    def _why(self, error: BaseException) -> str:
        """What went wrong, in one line, without secrets."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        text = hidden(str(error), self.server.secrets).partition("\n")[0].strip()
        told = [text or type(error).__name__]
        if self._status is not None:
            told.append(f"HTTP {self._status}")
        if self._last_words:
            told.append(self._last_words)
        return "; ".join(told)[:400]
