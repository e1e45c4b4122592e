"""The way to the MCP servers of a runtime: connections while they are needed, lists kept.

A parked session holds nothing: a connection is opened for a call and closed when nobody has used
it for a while. The list is read anew whenever one is opened or used again after a pause.
"""

import asyncio
import importlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from perdure.errors import ConfigError, PerdureError, ToolError
from perdure.runtime.mcp.process import hidden
from perdure.runtime.mcp.servers import BrokeOff, Listed, MCPServer, MCPTools, ServerDown
from perdure.runtime.tools.outputs import Rendered
from perdure.runtime.values import Context, parse_duration

if TYPE_CHECKING:  # loads the library, which only a runtime with servers needs
    from perdure.runtime.mcp.connection import ServerConnection

logger = logging.getLogger("perdure")

PAUSES_S: Final = (0.5, 2.0)  # before another attempt to reach a server
NEXT_LOOK_S: Final = 10.0  # after a server could not be reached
_MOST_CALLS: Final = 16  # at one time, by the one program
_MOST_CONNECTIONS: Final = 8  # to a URL, each for one call at a time: one that breaks breaks one


class ServerConnections:
    """The way to one server."""

    def __init__(self, server: MCPServer) -> None:
        self.server = server
        self.tools: tuple[Listed, ...] | None = None
        is_program = server.url is None
        self._calls_each = _MOST_CALLS if is_program else 1
        self._places = asyncio.Semaphore(_MOST_CALLS if is_program else _MOST_CONNECTIONS)
        self._opening = asyncio.Lock()
        self._open: list[ServerConnection] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._down: PerdureError | None = None
        self._look_at = 0.0  # again, after it was down

    async def listed(self) -> tuple[Listed, ...]:
        """Its tools as last listed. Raises ServerDown; then only after a while it is asked anew."""
        if self.tools is not None:
            return self.tools
        loop = asyncio.get_running_loop()
        async with self._opening:
            if self.tools is not None:
                return self.tools
            if self._down is not None and loop.time() < self._look_at:
                raise self._down
            try:
                self._let_go(await self._opened())
            except PerdureError as error:
                self._down, self._look_at = error, loop.time() + NEXT_LOOK_S
                raise
        return self.tools or ()

    async def call(self, tool: Listed, ctx: Context[Any], *, may_repeat: bool) -> Rendered:
        """Call a tool. What cannot have been done yet is tried again, else only if it may repeat.

        Raises ToolError.
        """
        from perdure.runtime.mcp.content import returned

        why = ""
        for pause_s in (0.0, *PAUSES_S):
            await anyio.sleep(pause_s)
            try:
                async with self._borrowed(is_sure=not may_repeat) as connection:
                    connection.check(tool.name)
                    return returned(await connection.call(tool.name, ctx.args, ctx))
            except ServerDown as error:
                why = error.message
            except BrokeOff as error:
                why = f"the connection to MCP server {self.server.name!r} broke off: {error}"
                if error.reached and not may_repeat:
                    doubt = f"{why}. The call may or may not have been done."
                    raise ToolError(doubt, code="MCP_BROKE_OFF") from error
            except ToolError:
                raise
            except Exception as error:
                told = hidden(str(error), self.server.secrets)
                raise ToolError(f"MCP server {self.server.name!r}: {told}") from error
        raise ToolError(why, code="MCP_SERVER_DOWN")

    # --- connections --------------------------------------------------------------------------

    @asynccontextmanager
    async def _borrowed(self, *, is_sure: bool) -> AsyncIterator["ServerConnection"]:
        async with self._places:
            connection = await self._taken(is_sure=is_sure)
            try:
                yield connection
            except BrokeOff:
                self._hang_up(connection)
                raise
            finally:
                self._let_go(connection)

    async def _taken(self, *, is_sure: bool) -> "ServerConnection":
        async with self._opening:
            while (free := self._free()) is not None:
                free.users += 1
                if await free.answers(is_sure=is_sure):
                    self._heard(free.tools)
                    return free
                free.users -= 1
                self._hang_up(free)
            return await self._opened()

    def _free(self) -> "ServerConnection | None":
        for one in [one for one in self._open if not one.is_open]:
            self._hang_up(one)
        return next((one for one in self._open if one.users < self._calls_each), None)

    async def _opened(self) -> "ServerConnection":
        # Loading the library takes a while, in which drives must keep their leases.
        home = "perdure.runtime.mcp.connection"
        await anyio.to_thread.run_sync(importlib.import_module, home)
        from perdure.runtime.mcp.connection import ServerConnection

        connection = ServerConnection(self.server)
        await connection.open()
        connection.users += 1
        self._open.append(connection)
        self._heard(connection.tools)
        return connection

    def _heard(self, tools: tuple[Listed, ...]) -> None:
        self._down = None
        if tools != self.tools:
            self.tools = tools

    def _let_go(self, connection: "ServerConnection") -> None:
        connection.users -= 1
        if connection.users or connection not in self._open:
            return
        idle_s = parse_duration(self.server.idle_timeout) / 1_000

        def close_if_unused() -> None:
            if not connection.users and connection.unused_for() >= idle_s:
                self._hang_up(connection)

        asyncio.get_running_loop().call_later(idle_s, close_if_unused)

    def _hang_up(self, connection: "ServerConnection") -> None:
        if connection in self._open:
            self._open.remove(connection)
            task = asyncio.get_running_loop().create_task(connection.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close every connection, and wait for it."""
        for connection in tuple(self._open):
            self._hang_up(connection)
        while self._closing:
            await asyncio.wait(self._closing)


class ServerPool:
    """The servers of one runtime, by name."""

    def __init__(self, servers: Sequence[MCPServer] = ()) -> None:
        self._servers: dict[str, MCPServer] = {}
        self._lines: dict[str, ServerConnections] = {}
        for server in servers:
            self._know(server)

    def know(self, agent: str, chosen: Iterable[MCPTools]) -> None:
        """Be told what an agent uses. ConfigError for a name that stands for none, or for two."""
        for one in chosen:
            if isinstance(one.server, MCPServer):
                self._know(one.server)
            elif one.server not in self._servers:
                known = ", ".join(sorted(self._servers)) or "none"
                raise ConfigError(
                    f"agent {agent!r}: there is no MCP server {one.server!r}",
                    hint=f"MCP servers here: {known}",
                )

    def _know(self, server: MCPServer) -> None:
        if self._servers.setdefault(server.name, server) != server:
            raise ConfigError(
                f"there are two MCP servers named {server.name!r}",
                hint="give one of them another name",
            )

    def line(self, name: str) -> ServerConnections:
        """The way to a server; made in the event loop that uses it."""
        return self._lines.setdefault(name, ServerConnections(self._servers[name]))

    async def lists(self, names: Iterable[str]) -> Mapping[str, tuple[Listed, ...]]:
        """What these servers have. Raises ServerDown for the first that cannot be reached."""
        wanted = tuple(names)
        asked = (self.line(name).listed() for name in wanted)
        found = await asyncio.gather(*asked, return_exceptions=True)
        lists: dict[str, tuple[Listed, ...]] = {}
        for name, one in zip(wanted, found, strict=True):
            if isinstance(one, BaseException):
                raise one
            lists[name] = one
        return lists

    async def close(self) -> None:
        """Close every connection; the next use opens anew."""
        lines, self._lines = self._lines, {}
        for line in lines.values():
            await line.close()
