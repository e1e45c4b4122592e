"""The eight tools for tasks, with the names, fields and answers of the published API.

Their list needs nothing of the runtime; `task_calls`, which does what they say, is imported with
the first call.
"""

from typing import Final

from perdure.core.roles import Permit
from perdure.core.tasks.status import Status
from perdure.serve.mcp.toolbox import (
    LIST_LIMIT,
    Json,
    LongAnswer,
    McpCall,
    McpTool,
    Run,
    ToolAnswer,
)

ALIASES: Final = {"stop_task": "cancel_task"}

_TEXT: Final[Json] = {"type": "string"}
_FLAG: Final[Json] = {"type": "boolean"}
_STATUS: Final[Json] = {"type": "string", "enum": [status.value for status in Status]}
_TASK_ID: Final[Json] = {"type": "string", "minLength": 1, "description": "Id of the task."}
_AGENT_ID: Final[Json] = {
    "type": "string",
    "minLength": 1,
    "description": "Name of the agent, such as your own.",
}
TASK: Final[Json] = {
    "type": "object",
    "properties": {
        "id": _TEXT,
        "name": _TEXT,
        "status": _STATUS,
        "createdAt": {"type": "string", "format": "date-time"},
        "updatedAt": {"type": "string", "format": "date-time"},
        "owner": _TEXT,
        "metadata": {"type": "object"},
        "agents": {"type": "array", "items": _TEXT},
        "result": {"type": ["object", "null"]},
    },
    "required": ["id", "name", "status", "createdAt", "updatedAt"],
}
_AVAILABILITY: Final[Json] = {
    "type": "object",
    "description": "Only if commands cannot be executed here: why, and what to do.",
}
_READ: Final = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}
_CHANGE: Final = {
    "readOnlyHint": False,
    "destructiveHint": False,
    "idempotentHint": True,
    "openWorldHint": False,
}
_COUNT: Final[Json] = {"type": "integer", "minimum": 0}


def _later(name: str) -> Run:
    """Return the function that runs a call."""

    async def run(call: McpCall) -> ToolAnswer | LongAnswer:
        from perdure.serve.mcp.tools.task_calls import CALLS

        return await CALLS[name](call)

    return run


CREATE: Final = McpTool(
    name="create_task_sandbox",
    title="Create task sandbox",
    description=(
        "Create a new task sandbox: a durable task with a workspace of its own. It survives "
        "restarts; return to it later with its taskId. Attach an agent before executing commands."
    ),
    permit=Permit.OPERATE,
    run=_later("create_task_sandbox"),
    is_quick=True,
    properties={
        "taskId": {"type": "string", "description": "Id of the task; a new one if left out."},
        "name": {"type": "string", "description": "Name of the task."},
        "owner": {"type": "string", "description": "Agent ID or 'system'."},
        "metadata": {"type": "object", "description": "Custom metadata."},
    },
    required=("name",),
    unchecked=frozenset({"taskId", "name", "owner", "metadata"}),
    output={
        "taskId": _TEXT,
        "status": _STATUS,
        "createdAt": {"type": "string", "format": "date-time"},
        "execution": _AVAILABILITY,
    },
    annotations={
        "readOnlyHint": False,
        "destructiveHint": False,
        "idempotentHint": False,
        "openWorldHint": False,
    },
)
ATTACH: Final = McpTool(
    name="attach_agent_to_task",
    title="Attach agent to task",
    description="Attach an AI agent to an existing task. The first agent starts the task.",
    permit=Permit.OPERATE,
    run=_later("attach_agent_to_task"),
    is_quick=True,
    properties={"taskId": _TASK_ID, "agentId": _AGENT_ID},
    required=("taskId", "agentId"),
    output={"taskId": _TEXT, "agentId": _TEXT, "attached": _FLAG},
    annotations=_CHANGE,
)
DETACH: Final = McpTool(
    name="detach_agent_from_task",
    title="Detach agent from task",
    description=(
        "Detach an agent from a task. The task continues; detached is false if the agent was not "
        "attached."
    ),
    permit=Permit.OPERATE,
    run=_later("detach_agent_from_task"),
    is_quick=True,
    properties={"taskId": _TASK_ID, "agentId": _AGENT_ID},
    required=("taskId", "agentId"),
    output={"taskId": _TEXT, "agentId": _TEXT, "detached": _FLAG},
    annotations=_CHANGE,
)
EXECUTE: Final = McpTool(
    name="execute_in_task",
    title="Execute in task",
    description=(
        "Execute a command in a task, with sh in its workspace, confined by the sandbox. The task "
        "must be running: attach an agent first. One command runs at a time. If it takes long, "
        "the answer is a handle: call get_task_status then."
    ),
    permit=Permit.OPERATE,
    run=_later("execute_in_task"),
    properties={
        "taskId": _TASK_ID,
        "command": {"type": "string", "description": "Command to execute."},
        "timeout": {
            "type": "number",
            "default": 30_000,
            "description": "Timeout in ms; then the command and all that it started is killed.",
        },
    },
    required=("taskId", "command"),
    output={
        "taskId": _TEXT,
        "exitCode": {"type": ["integer", "null"]},
        "stdout": _TEXT,
        "stderr": _TEXT,
        "duration": {"type": "number", "description": "Execution time in ms."},
        "reason": {"type": "string", "description": "exited, timeout, interrupted, …"},
        "signal": {"type": ["integer", "null"]},
        "truncated": _FLAG,
        "sandbox": _TEXT,
        "executionId": _TEXT,
        "problem": {"type": ["string", "null"]},
        "status": {"type": "string", "description": "running, if it has not ended yet."},
        "pollAfterMs": {"type": "integer"},
        "message": _TEXT,
    },
    annotations={
        "readOnlyHint": False,
        "destructiveHint": True,
        "idempotentHint": False,
        "openWorldHint": True,
    },
)
LIST: Final = McpTool(
    name="list_tasks",
    title="List tasks",
    description=(
        "List all tasks, newest first, with optional filters. count is the number of all matches, "
        "before limit and offset."
    ),
    permit=Permit.READ,
    run=_later("list_tasks"),
    is_quick=True,
    properties={
        "status": _STATUS,
        "owner": {"type": "string", "description": "Only tasks of this owner."},
        "limit": {**_COUNT, "default": LIST_LIMIT, "description": "Maximum results to return."},
        "offset": {**_COUNT, "default": 0, "description": "Pagination offset."},
    },
    output={"tasks": {"type": "array", "items": TASK}, "count": {"type": "integer"}},
    annotations=_READ,
)
GET: Final = McpTool(
    name="get_task_status",
    title="Get task status",
    description=(
        "Get task status and details. lastExecution is the last command in the task, with its "
        "output; while it runs that is the output so far, and you can call this tool again."
    ),
    permit=Permit.READ,
    run=_later("get_task_status"),
    is_quick=True,
    properties={"taskId": _TASK_ID},
    required=("taskId",),
    output={
        "taskId": _TEXT,
        "status": _STATUS,
        "task": TASK,
        "execution": _AVAILABILITY,
        "lastExecution": {"type": "object"},
    },
    annotations=_READ,
)
CANCEL: Final = McpTool(
    name="cancel_task",
    title="Cancel task",
    description="Cancel a task that is pending or running, with the command that runs in it.",
    permit=Permit.OPERATE,
    run=_later("cancel_task"),
    is_quick=True,
    properties={"taskId": _TASK_ID},
    required=("taskId",),
    output={"taskId": _TEXT, "status": _STATUS, "task": TASK},
    annotations={**_CHANGE, "destructiveHint": True},
)
DELETE: Final = McpTool(
    name="delete_task",
    title="Delete task",
    description="Delete a task and clean up all its resources: workspace, log, checkpoints, locks.",
    permit=Permit.ADMIN,
    run=_later("delete_task"),
    is_quick=True,
    properties={"taskId": _TASK_ID},
    required=("taskId",),
    output={"taskId": _TEXT, "message": _TEXT},
    annotations={**_CHANGE, "destructiveHint": True},
)


def task_tools() -> list[McpTool]:
    """Return the tools for tasks, in the order of the published API."""
    return [CREATE, ATTACH, DETACH, EXECUTE, LIST, GET, CANCEL, DELETE]
