"""Methods of the MCP extension for tasks, on the handles of a store."""

from typing import Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from perdure.errors import NotFound, Refused
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.serve.mcp.calls.inputs import Inputs, input_requests
from perdure.serve.mcp.results import call_result, protocol_error
from perdure.serve.mcp.tasks_extension import (
    Context,
    check_elicitation,
    check_request,
    may_elicit,
)
from perdure.serve.mcp.toolbox import Json, McpOptions, Toolbox, failure
from perdure.serve.mcp.work import Works, WorkState
from perdure.tasks.handles import CallHandle, CallHandles, WorkRef
from perdure.views.base import iso

POLL_MS: Final = 2_000


class TaskMethods:
    """Methods of the extension, on the handles of a store."""

    def __init__(self, service: Service, toolbox: Toolbox, options: McpOptions) -> None:
        self._service = service
        self._toolbox = toolbox
        self._options = options
        self._handles = CallHandles(service.tasks.store)
        self._works = Works(service)

    async def create(self, caller: Caller, tool: str, work: WorkRef) -> Json:
        """Record a handle and return the result that names it: durable before it is sent."""
        handle = await self._handles.create(caller.home_tenant, caller.name, tool, work)
        state = await self._works.state(handle.tenant, work)
        fields = self._fields(handle, state, "working")
        return {"resultType": "task", **fields}

    async def get(self, ctx: Context, caller: Caller, task_id: str) -> Json:
        """Return the task with its result, its error, or the inputs for which it waits."""
        check_request(ctx, task_id)
        handle, state = await self._find(caller, task_id)
        if not state.has_ended:
            forms = Inputs(self._service, caller, self._options).forms(state.waiting)
            if forms and may_elicit(ctx):
                fields = self._fields(handle, state, "input_required")
                return {**fields, "inputRequests": input_requests(forms)}
            return {**self._fields(handle, state, "working"), **_waiting_message(state)}
        if state.status == "cancelled":
            return self._fields(handle, state, "cancelled")
        return self._ended(handle, state)

    def _ended(self, handle: CallHandle, state: WorkState) -> Json:
        try:
            answer = self._toolbox.find(handle.tool).outcome(state.answer)
        except MCPError as error:
            fields = self._fields(handle, state, "failed")
            return {**fields, "error": error.error.model_dump(mode="json", exclude_none=True)}
        except NotFound as error:  # a tool of an earlier configuration
            answer = failure(error)
        fields = self._fields(handle, state, "completed")
        return {**fields, "result": call_result(answer, has_links=self._options.links)}

    async def update(
        self, ctx: Context, caller: Caller, task_id: str, responses: dict[str, Any]
    ) -> Json:
        """Answer inputs for which a task waits; a subset is enough, and repeats do no harm."""
        check_request(ctx, task_id)
        check_elicitation(ctx)
        _, state = await self._find(caller, task_id)
        inputs = Inputs(self._service, caller, self._options)
        try:
            await inputs.settle(inputs.forms(state.waiting), responses)
        except Refused as error:
            raise protocol_error(INVALID_PARAMS, error) from error
        return {}

    async def cancel(self, ctx: Context, caller: Caller, task_id: str) -> Json:
        """Cancel the work of a task; on one that has ended, nothing happens."""
        check_request(ctx, task_id)
        handle, state = await self._find(caller, task_id)
        if not state.has_ended:
            await self._works.cancel(caller, handle.work)
        return {}

    async def _find(self, caller: Caller, task_id: str) -> tuple[CallHandle, WorkState]:
        try:
            handle = await self._handles.get(task_id, caller.home_tenant, caller.name)
            return handle, await self._works.state(handle.tenant, handle.work)
        except NotFound as error:
            raise protocol_error(INVALID_PARAMS, error) from error

    def _fields(self, handle: CallHandle, state: WorkState, status: str) -> Json:
        return {
            "taskId": handle.id,
            "status": status,
            "createdAt": iso(handle.created_at),
            "lastUpdatedAt": iso(max(handle.created_at, state.updated_at)),
            "ttlMs": None,  # until the task itself is deleted
            "pollIntervalMs": POLL_MS,
        }


def _waiting_message(state: WorkState) -> Json:
    return {"statusMessage": state.answer.fields["message"]} if state.waiting else {}
