"""Methods of the MCP server that need the runtime: tool calls, resources, subscriptions, tasks."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from perdure.core.roles import Permit
from perdure.errors import NotFound, Refused
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.serve.mcp.access import caller_of
from perdure.serve.mcp.calls.callers import gone_of, waiting_caller
from perdure.serve.mcp.calls.long_calls import LongCalls, ToolRequest
from perdure.serve.mcp.resources import TEMPLATES, TaskResources
from perdure.serve.mcp.results import COMPLETE, SERVER_ERROR, call_result, protocol_error
from perdure.serve.mcp.subscriptions import Subscriptions
from perdure.serve.mcp.task_methods import TaskMethods
from perdure.serve.mcp.tasks_extension import Context, TaskParams, UpdateParams, is_declared
from perdure.serve.mcp.toolbox import Json, LongAnswer, McpOptions, Toolbox, failure

R = TypeVar("R")

RESOURCE_NOT_FOUND: Final = -32002  # of the era of sessions


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a server: the service, its options, and the caller on stdio."""

    service: Service
    options: McpOptions
    closing: anyio.Event
    local: Caller | None = None


class Methods:
    """Methods of one MCP server."""

    def __init__(self, parts: Parts, toolbox: Toolbox) -> None:
        self.parts = parts
        self.service = parts.service
        self.toolbox = toolbox
        self.long_calls = LongCalls(parts.service, parts.options, parts.closing)
        self.tasks = TaskMethods(parts.service, toolbox, parts.options)
        self.resources = TaskResources(parts.service)
        self.subscriptions = Subscriptions(parts.service)

    def caller(self, ctx: Context) -> Caller:
        """Return the caller of a request."""
        return caller_of(ctx.request, self.parts.local)

    # --- tools --------------------------------------------------------------------------------

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> Json:
        """Call a tool; a failure of ours is a result, an unknown tool is the protocol's error."""
        caller = self.caller(ctx)
        try:
            tool = self.toolbox.find(params.name)
        except NotFound as error:
            raise protocol_error(types.INVALID_PARAMS, error) from error
        try:
            args = self.toolbox.check(caller, params.name, params.arguments)
            request = ToolRequest.of(ctx, caller, tool, args, params)
            repeated = await self.long_calls.repeated(request)
            answer = repeated or await self.toolbox.run(self.service, caller, params.name, args)
            if not isinstance(answer, LongAnswer):
                return call_result(answer, has_links=self.parts.options.links)
            return await self._long_result(request, answer)
        except MCPError:
            raise
        except Exception as error:  # noqa: BLE001 - the edge of a call: nothing may end the server
            return call_result(failure(error))

    async def _long_result(self, request: ToolRequest, long: LongAnswer) -> Json:
        ctx = request.ctx
        async with waiting_caller(self.service, long.reserved, gone_of(ctx.request)) as waiting:
            if is_declared(ctx):
                return await self.tasks.create(request.caller, request.tool.name, long.work)
            return await self.long_calls.result(request, long.work, waiting)

    # --- resources ----------------------------------------------------------------------------

    async def list_resources(self, ctx: Context, params: types.PaginatedRequestParams) -> Json:
        """List the tasks as resources."""
        page = await self._method(ctx, self.resources.page, params.cursor)
        return {"resultType": COMPLETE, **page}

    async def list_templates(self, _: Context, __: types.PaginatedRequestParams) -> Json:
        """List the forms of URIs."""
        return {"resultType": COMPLETE, "resourceTemplates": TEMPLATES}

    async def read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> Json:
        """Read a resource."""
        contents = await self._method(ctx, self.resources.read, str(params.uri))
        return {"resultType": COMPLETE, "contents": contents}

    async def subscribe(
        self, ctx: Context, params: types.SubscribeRequestParams
    ) -> types.EmptyResult:
        """Subscribe a session to a resource."""

        async def subscribe(caller: Caller) -> None:
            await self.subscriptions.subscribe(ctx, caller, str(params.uri))

        await self._method(ctx, subscribe)
        return types.EmptyResult()

    async def unsubscribe(
        self, ctx: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        """End the subscription of a session."""
        self.subscriptions.unsubscribe(ctx, self.caller(ctx), str(params.uri))
        return types.EmptyResult()

    async def listen(self, ctx: Context, params: types.SubscriptionsListenRequestParams) -> Any:
        """Serve one stream of updates."""

        async def listen(caller: Caller) -> Any:
            return await self.subscriptions.listen(ctx, caller, params)

        return await self._method(ctx, listen)

    # --- tasks --------------------------------------------------------------------------------

    async def get_task(self, ctx: Context, params: TaskParams) -> Json:
        """Return a task of the extension."""

        async def get(caller: Caller) -> Json:
            caller.require(Permit.READ)
            return await self.tasks.get(ctx, caller, params.task_id)

        return await self._task_method(ctx, get)

    async def cancel_task(self, ctx: Context, params: TaskParams) -> Json:
        """Cancel a task of the extension."""

        async def cancel(caller: Caller) -> Json:
            caller.require(Permit.OPERATE)
            return await self.tasks.cancel(ctx, caller, params.task_id)

        return await self._task_method(ctx, cancel)

    async def update_task(self, ctx: Context, params: UpdateParams) -> Json:
        """Answer the inputs for which a task of the extension waits."""

        async def update(caller: Caller) -> Json:
            caller.require(Permit.OPERATE)
            return await self.tasks.update(ctx, caller, params.task_id, params.input_responses)

        return await self._task_method(ctx, update)

    async def _task_method(self, ctx: Context, run: Callable[[Caller], Awaitable[Json]]) -> Json:
        return {"resultType": COMPLETE, **await self._method(ctx, run)}

    async def _method(self, ctx: Context, run: Callable[..., Awaitable[R]], *arguments: Any) -> R:
        """Run a method that is not a tool call: a failure of ours is the protocol's error."""
        try:
            return await run(self.caller(ctx), *arguments)
        except NotFound as error:
            is_old = ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS
            code = RESOURCE_NOT_FOUND if is_old else types.INVALID_PARAMS
            raise protocol_error(code, error) from error
        except Refused as error:
            raise protocol_error(types.INVALID_PARAMS, error) from error
        except MCPError:
            raise
        except Exception as error:
            raise protocol_error(SERVER_ERROR, error) from error
