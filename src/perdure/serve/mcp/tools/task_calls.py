"""Calls of the eight tools for tasks: each is one verb of the runtime, and its answer."""

from collections.abc import Mapping
from typing import Final

from perdure.runtime.tasks.entries import get_task
from perdure.runtime.tasks.handles import WorkRef
from perdure.runtime.tasks.values import TaskRef
from perdure.runtime.tasks.verbs import TaskVerbs
from perdure.serve.mcp.resources import task_uri
from perdure.serve.mcp.toolbox import LIST_LIMIT, Json, Link, LongAnswer, McpCall, Run, ToolAnswer

PAGING: Final = frozenset({"limit", "offset"})


def _verbs(call: McpCall) -> TaskVerbs:
    return TaskVerbs(call.service.tasks, call.caller.tenant)


def _links(task_id: str) -> tuple[Link, ...]:
    return (Link(task_uri(task_id), f"Task {task_id}"),)


def _answer(value: Json, *names: str) -> ToolAnswer:
    """Return an answer with these fields of a verb's value, in this order, and with links."""
    return ToolAnswer(_plain(value, *names).fields, _links(str(value["taskId"])))


def _plain(value: Json, *names: str) -> ToolAnswer:
    fields = {name: value[name] for name in names if name in value}
    if fields.get("execution", {}).get("available"):
        del fields["execution"]  # worth a model's attention only if commands cannot run
    return ToolAnswer(fields)


async def _create(call: McpCall) -> ToolAnswer:
    value = await _verbs(call).create(call.args)
    return _answer(value, "success", "taskId", "status", "createdAt", "execution")


async def _attach(call: McpCall) -> ToolAnswer:
    value = await _verbs(call).attach(call.args["taskId"], call.args["agentId"])
    return _answer(value, "success", "taskId", "agentId", "attached")


async def _detach(call: McpCall) -> ToolAnswer:
    value = await _verbs(call).detach(call.args["taskId"], call.args["agentId"])
    return _answer(value, "success", "taskId", "agentId", "detached")


async def _list(call: McpCall) -> ToolAnswer:
    filters = {"limit": LIST_LIMIT, **call.args, "kind": "sandbox"}
    for name in PAGING & call.args.keys():
        filters[name] = int(call.args[name])  # JSON does not distinguish 1 and 1.0
    value = await _verbs(call).list(filters)
    return _plain(value, "success", "tasks", "count")


async def _get(call: McpCall) -> ToolAnswer:
    value = await _verbs(call).status(call.args["taskId"])
    return _answer(value, "success", "taskId", "status", "task", "execution", "lastExecution")


async def _execute(call: McpCall) -> LongAnswer:
    task_id, verbs = call.args["taskId"], _verbs(call)
    options = {"timeout": call.args.get("timeout"), "by": call.caller.name}
    started = await verbs.executions.start(task_id, call.args["command"], options)
    ref = TaskRef(call.caller.home_tenant, task_id)
    stream = (await get_task(call.service.tasks.store, ref)).stream
    return LongAnswer(WorkRef("execution", task_id, started["executionId"], stream))


async def _cancel(call: McpCall) -> ToolAnswer:
    value = await _verbs(call).cancel(call.args["taskId"])
    return _answer(value, "success", "taskId", "status", "task")


async def _delete(call: McpCall) -> ToolAnswer:
    value = await _verbs(call).delete(call.args["taskId"])
    return _plain(value, "success", "taskId", "message")


CALLS: Final[Mapping[str, Run]] = {
    "create_task_sandbox": _create,
    "attach_agent_to_task": _attach,
    "detach_agent_from_task": _detach,
    "execute_in_task": _execute,
    "list_tasks": _list,
    "get_task_status": _get,
    "cancel_task": _cancel,
    "delete_task": _delete,
}
