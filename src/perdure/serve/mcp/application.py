"""The MCP application: the SDK's server with our tools and methods, for both transports.

It lists its tools without the runtime, so that a server on stdio answers while it still starts;
whatever needs the runtime is in `methods`.
"""

from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.lowlevel.server import Server

from perdure.serve.mcp.results import COMPLETE, SERVER_ERROR, call_result, protocol_error
from perdure.serve.mcp.tasks_extension import EXTENSION, Context, TaskParams, UpdateParams
from perdure.serve.mcp.toolbox import Json, Toolbox, failure

if TYPE_CHECKING:  # imports the runtime
    from perdure.serve.mcp.methods import Methods

Handler = Callable[[Context, Any], Awaitable[Any]]
OpenMethods = Callable[[], Awaitable["Methods"]]

LIST_TTL_MS: Final = 60_000
INSTRUCTIONS: Final = (
    "perdure keeps tasks: each has a workspace, a log and checkpoints, and survives restarts. "
    "Create one with create_task_sandbox, attach yourself with attach_agent_to_task, run commands "
    "with execute_in_task, and return to it at any time with its taskId."
)


class Application:
    """Handlers of one MCP server; `open_methods` opens the runtime, if it is not open yet."""

    def __init__(self, toolbox: Toolbox, open_methods: OpenMethods) -> None:
        self.toolbox = toolbox
        self.has_listed = False
        self._open_methods = open_methods
        self.server: Server[Any] = self._server()

    def _server(self) -> Server[Any]:
        hint = CacheHint(LIST_TTL_MS, "private")
        server: Server[Any] = Server(
            "perdure",
            version=version("perdure"),
            title="perdure",
            instructions=INSTRUCTIONS,
            cache_hints={
                "tools/list": hint,
                "resources/templates/list": hint,
                "resources/list": CacheHint(),
                "resources/read": CacheHint(),
            },
            get_tool_input_schema=_header_schema,
            on_list_tools=self.list_tools,
            on_subscribe_resource=self._later(lambda methods: methods.subscribe),
            on_unsubscribe_resource=self._later(lambda methods: methods.unsubscribe),
            on_subscriptions_listen=self._later(lambda methods: methods.listen),
        )
        server.extensions[EXTENSION] = {}
        server.add_request_handler("tools/call", types.CallToolRequestParams, self.call_tool)
        for method, (params, choose) in _METHODS.items():
            server.add_request_handler(method, params, self._later(choose))
        return server

    async def list_tools(self, _: Context, __: types.PaginatedRequestParams | None) -> Any:
        """List the tools, always in the same order."""
        self.has_listed = True
        return {"resultType": COMPLETE, "tools": self.toolbox.descriptions}

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> Json:
        """Call a tool. A store that cannot be opened is a failure of the call."""
        try:
            methods = await self._open_methods()
        except Exception as error:  # noqa: BLE001 - the edge of a call: nothing may end the server
            return call_result(failure(error))
        return await methods.call_tool(ctx, params)

    def _later(self, choose: "Callable[[Methods], Handler]") -> Handler:
        """Return a handler that opens the runtime first."""

        async def handle(ctx: Context, params: Any) -> Any:
            try:
                methods = await self._open_methods()
            except Exception as error:
                raise protocol_error(SERVER_ERROR, error) from error
            return await choose(methods)(ctx, params)

        return handle


_METHODS: "Final[dict[str, tuple[Any, Callable[[Methods], Handler]]]]" = {
    "resources/list": (types.PaginatedRequestParams, lambda methods: methods.list_resources),
    "resources/templates/list": (
        types.PaginatedRequestParams,
        lambda methods: methods.list_templates,
    ),
    "resources/read": (types.ReadResourceRequestParams, lambda methods: methods.read_resource),
    "tasks/get": (TaskParams, lambda methods: methods.get_task),
    "tasks/update": (UpdateParams, lambda methods: methods.update_task),
    "tasks/cancel": (TaskParams, lambda methods: methods.cancel_task),
}


def _header_schema(_: str) -> None:
    """Return no schema to search at each call: no tool of ours has arguments in headers."""


def application_of(methods: "Methods") -> Application:
    """Return the application of a runtime that is open."""

    async def open_methods() -> "Methods":
        return methods

    return Application(methods.toolbox, open_methods)
