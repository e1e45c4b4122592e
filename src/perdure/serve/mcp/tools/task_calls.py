"""Calls of the eight tools for tasks: each is one verb of the runtime, and its answer."""

from collections.abc import Mapping
from typing import Any, Final

from perdure.serve.mcp.resources import task_uri
from perdure.serve.mcp.specification import execution_fields, specified, task_answer, task_fields
from perdure.serve.mcp.toolbox import LIST_LIMIT, Link, LongAnswer, McpCall, Run, ToolAnswer
from perdure.tasks.entries import get_task
from perdure.tasks.handles import WorkRef
from perdure.tasks.values import TaskRef
from perdure.tasks.verbs import TaskVerbs
from perdure.views.base import iso
from perdure.views.tasks import SandboxTask

PAGING: Final = frozenset({"limit", "offset"})


def _verbs(call: McpCall) -> TaskVerbs:
    return TaskVerbs(call.service.tasks, call.caller.tenant)


def _links(task_id: str) -> tuple[Link, ...]:
    return (Link(task_uri(task_id), f"Task {task_id}"),)


def _answer(task: SandboxTask, /, **more: Any) -> ToolAnswer:
    """Return an answer about a task with these fields, and with links."""
    return ToolAnswer(task_answer(task, **more), _links(task.id))


async def _create(call: McpCall) -> ToolAnswer:
    task = await _verbs(call).create(call.args)
    return _answer(task, status=task.status, createdAt=iso(task.created_at_ms))


async def _attach(call: McpCall) -> ToolAnswer:
    agent = call.args["agentId"]
    task = await _verbs(call).attach(call.args["taskId"], agent)
    return _answer(task, agentId=agent, attached=True)


async def _detach(call: McpCall) -> ToolAnswer:
    task = await _verbs(call).detach(call.args["taskId"], call.args["agentId"])
    return _answer(task, agentId=task.agent_id, detached=task.detached)


async def _list(call: McpCall) -> ToolAnswer:
    filters = {"limit": LIST_LIMIT, **call.args, "kind": "sandbox"}
    for name in PAGING & call.args.keys():
        filters[name] = int(call.args[name])  # JSON does not distinguish 1 and 1.0
    page = await _verbs(call).list(filters)
    tasks = [task_fields(task) for task in page.tasks if isinstance(task, SandboxTask)]
    return ToolAnswer({"success": True, "tasks": tasks, "count": page.count})


async def _get(call: McpCall) -> ToolAnswer:
    task, last = await _verbs(call).status(call.args["taskId"])
    answer = _answer(task, status=task.status, task=task_fields(task))
    if last is not None:
        answer.fields["lastExecution"] = execution_fields(last)
    return answer


async def _execute(call: McpCall) -> LongAnswer:
    task_id, verbs = call.args["taskId"], _verbs(call)
    options = {"timeout": call.args.get("timeout"), "by": call.caller.name}
    started = await verbs.executions.start(task_id, call.args["command"], options)
    ref = TaskRef(call.caller.home_tenant, task_id)
    stream = (await get_task(call.service.tasks.store, ref)).stream
    return LongAnswer(WorkRef("execution", task_id, started.execution_id, stream))


async def _cancel(call: McpCall) -> ToolAnswer:
    task = await _verbs(call).cancel(call.args["taskId"])
    return _answer(task, status=task.status, task=task_fields(task))


async def _delete(call: McpCall) -> ToolAnswer:
    deleted = await _verbs(call).delete(call.args["taskId"])
    return ToolAnswer({"success": True, **specified(deleted)})


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
