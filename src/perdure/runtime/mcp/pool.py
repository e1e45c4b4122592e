"""Pool of connections to the MCP servers of a runtime, with their lists of tools.

A parked session holds no connection: one is opened for a call and closed after an idle time. The
list of tools is read again when a connection is opened or used after a pause.
"""

import asyncio
import importlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from perdure import host
from perdure.errors import ConfigError, PerdureError, ToolError
from perdure.runtime.mcp.process import mask_secrets
from perdure.runtime.mcp.servers import (
    ConnectionBroken,
    ListedTool,
    MCPServer,
    MCPTools,
    ServerDown,
)
from perdure.runtime.tools.outputs import Rendered
from perdure.runtime.values import Context
from perdure.views.values import parse_duration

if TYPE_CHECKING:  # imports the MCP library, which only a runtime with servers needs
    from perdure.runtime.mcp.connection import ServerConnection

logger = logging.getLogger("perdure")

PAUSES_S: Final = (0.5, 2.0)  # before another attempt to reach a server
RETRY_AFTER_S: Final = 10.0  # after a server could not be reached
_MAX_CALLS: Final = 16  # at a time, by one program
_MAX_CONNECTIONS: Final = 8  # to a URL, each for one call at a time: a broken one fails one call


class ServerConnections:
    """The connections to one server."""

    def __init__(self, server: MCPServer) -> None:
        self.server = server
        self.tools: tuple[ListedTool, ...] | None = None
        is_program = server.url is None
        self._calls_each = _MAX_CALLS if is_program else 1
        self._slots = asyncio.Semaphore(_MAX_CALLS if is_program else _MAX_CONNECTIONS)
        self._opening = asyncio.Lock()
        self._open: list[ServerConnection] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._down: PerdureError | None = None
        self._retry_at = 0.0  # after it was down

    async def list_tools(self) -> tuple[ListedTool, ...]:
        """Return its tools as last listed. Raises ServerDown, without a new attempt for a while."""
        if self.tools is not None:
            return self.tools
        async with self._opening:
            if self.tools is not None:
                return self.tools
            if self._down is not None and host.elapsed() < self._retry_at:
                raise self._down
            try:
                self._release(await self._open_connection())
            except PerdureError as error:
                self._down, self._retry_at = error, host.elapsed() + RETRY_AFTER_S
                raise
        return self.tools or ()

    async def call(self, tool: ListedTool, ctx: Context[Any], *, may_repeat: bool) -> Rendered:
        """Call a tool. Raises ToolError.

        A call that did not reach the server is retried; another one only if it `may_repeat`.
        """
        from perdure.runtime.mcp.content import tool_output

        reason = ""
        for pause_s in (0.0, *PAUSES_S):
            await asyncio.sleep(pause_s)
            try:
                async with self._connection(must_probe=not may_repeat) as connection:
                    connection.check(tool.name)
                    return tool_output(await connection.call(tool.name, ctx.args, ctx))
            except ServerDown as error:
                reason = error.message
            except ConnectionBroken as error:
                reason = f"the connection to MCP server {self.server.name!r} broke: {error}"
                if error.reached and not may_repeat:
                    text = f"{reason}. The call may or may not have run."
                    raise ToolError(text, code="MCP_BROKE_OFF") from error
            except ToolError:
                raise
            except Exception as error:
                text = mask_secrets(str(error), self.server.secrets)
                raise ToolError(f"MCP server {self.server.name!r}: {text}") from error
        raise ToolError(reason, code="MCP_SERVER_DOWN")

    # --- connections --------------------------------------------------------------------------

    @asynccontextmanager
    async def _connection(self, *, must_probe: bool) -> AsyncIterator["ServerConnection"]:
        async with self._slots:
            connection = await self._acquire(must_probe=must_probe)
            try:
                yield connection
            except ConnectionBroken:
                self._close_soon(connection)
                raise
            finally:
                self._release(connection)

    async def _acquire(self, *, must_probe: bool) -> "ServerConnection":
        async with self._opening:
            while (free := self._free()) is not None:
                free.users += 1
                if await free.is_alive(must_probe=must_probe):
                    self._update_tools(free.tools)
                    return free
                free.users -= 1
                self._close_soon(free)
            return await self._open_connection()

    def _free(self) -> "ServerConnection | None":
        for broken in [connection for connection in self._open if not connection.is_open]:
            self._close_soon(broken)
        return next((item for item in self._open if item.users < self._calls_each), None)

    async def _open_connection(self) -> "ServerConnection":
        # In a thread: importing the library takes a while, and drives must renew their leases.
        module = "perdure.runtime.mcp.connection"
        await host.run_in_thread(importlib.import_module, module)
        from perdure.runtime.mcp.connection import ServerConnection

        connection = ServerConnection(self.server)
        await connection.open()
        connection.users += 1
        self._open.append(connection)
        self._update_tools(connection.tools)
        return connection

    def _update_tools(self, tools: tuple[ListedTool, ...]) -> None:
        self._down = None
        if tools != self.tools:
            self.tools = tools

    def _release(self, connection: "ServerConnection") -> None:
        connection.users -= 1
        if connection.users or connection not in self._open:
            return
        idle_s = parse_duration(self.server.idle_timeout) / 1_000

        def close_if_unused() -> None:
            if not connection.users and connection.unused_for() >= idle_s:
                self._close_soon(connection)

        asyncio.get_running_loop().call_later(idle_s, close_if_unused)

    def _close_soon(self, connection: "ServerConnection") -> None:
        if connection in self._open:
            self._open.remove(connection)
            task = asyncio.get_running_loop().create_task(connection.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close every connection and wait until it is closed."""
        for connection in tuple(self._open):
            self._close_soon(connection)
        while self._closing:
            await asyncio.wait(self._closing)


class ServerPool:
    """The servers of one runtime, by name."""

    def __init__(self, servers: Sequence[MCPServer] = ()) -> None:
        self._servers: dict[str, MCPServer] = {}
        self._connections: dict[str, ServerConnections] = {}
        for server in servers:
            self._add(server)

    def register(self, agent: str, chosen: Iterable[MCPTools]) -> None:
        """Add the servers of an agent. Raises ConfigError for an unknown or ambiguous name."""
        for choice in chosen:
            if isinstance(choice.server, MCPServer):
                self._add(choice.server)
            elif choice.server not in self._servers:
                names = ", ".join(sorted(self._servers)) or "none"
                raise ConfigError(
                    f"agent {agent!r}: there is no MCP server {choice.server!r}",
                    hint=f"MCP servers here: {names}",
                )

    def _add(self, server: MCPServer) -> None:
        if self._servers.setdefault(server.name, server) != server:
            raise ConfigError(
                f"there are two MCP servers named {server.name!r}",
                hint="give one of them another name",
            )

    def connections(self, name: str) -> ServerConnections:
        """Return the connections to a server, created in the event loop that uses them."""
        return self._connections.setdefault(name, ServerConnections(self._servers[name]))

    async def list_tools(self, names: Iterable[str]) -> Mapping[str, tuple[ListedTool, ...]]:
        """Return the tools of these servers. Raises ServerDown for the first one out of reach."""
        servers = tuple(names)
        requests = (self.connections(name).list_tools() for name in servers)
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
        lists: dict[str, tuple[ListedTool, ...]] = {}
        for name, outcome in zip(servers, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            lists[name] = outcome
        return lists

    async def close(self) -> None:
        """Close every connection; the next use opens new ones."""
        connections, self._connections = self._connections, {}
        for server in connections.values():
            await server.close()
