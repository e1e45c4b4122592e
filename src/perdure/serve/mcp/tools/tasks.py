"""The eight tools for tasks, with the names, fields and answers of the published API.

Their list needs nothing of the runtime; `task_calls`, which does what they say, is imported with
the first call.
"""

from typing import Any, Final

from perdure.core.roles import Permit
from perdure.serve.mcp.toolbox import (
    FILLED_TEXT,
    PAGE,
    READS,
    TEXT,
    Json,
    LongAnswer,
    McpCall,
    McpTool,
    ToolAnswer,
    changes,
)
from perdure.tasks.model.status import Status

ALIASES: Final = {"stop_task": "cancel_task"}

_FLAG: Final[Json] = {"type": "boolean"}
_STATUS: Final[Json] = {"type": "string", "enum": [status.value for status in Status]}
_INSTANT: Final[Json] = {"type": "string", "format": "date-time"}
_TASK_ID: Final[Json] = {**FILLED_TEXT, "description": "Id of the task."}
_AGENT_ID: Final[Json] = {**FILLED_TEXT, "description": "Name of the agent, such as your own."}
TASK: Final[Json] = {
    "type": "object",
    "properties": {
        "id": TEXT,
        "name": TEXT,
        "status": _STATUS,
        "createdAt": _INSTANT,
        "updatedAt": _INSTANT,
        "owner": TEXT,
        "metadata": {"type": "object"},
        "agents": {"type": "array", "items": TEXT},
        "result": {"type": ["object", "null"]},
    },
    "required": ["id", "name", "status", "createdAt", "updatedAt"],
}
_AVAILABILITY: Final[Json] = {
    "type": "object",
    "description": "Only if commands cannot be executed here: why, and what to do.",
}


def _tool(name: str, **fields: Any) -> McpTool:
    async def run(call: McpCall) -> ToolAnswer | LongAnswer:
        from perdure.serve.mcp.tools.task_calls import CALLS

        return await CALLS[name](call)

    return McpTool(name=name, run=run, **fields)


CREATE: Final = _tool(
    "create_task_sandbox",
    title="Create task sandbox",
    description=(
        "Create a new task sandbox: a durable task with a workspace of its own. It survives "
        "restarts; return to it later with its taskId. Attach an agent before executing commands."
    ),
    permit=Permit.OPERATE,
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
        "taskId": TEXT,
        "status": _STATUS,
        "createdAt": _INSTANT,
        "execution": _AVAILABILITY,
    },
    annotations=changes(),
)
ATTACH: Final = _tool(
    "attach_agent_to_task",
    title="Attach agent to task",
    description="Attach an AI agent to an existing task. The first agent starts the task.",
    permit=Permit.OPERATE,
    is_quick=True,
    properties={"taskId": _TASK_ID, "agentId": _AGENT_ID},
    required=("taskId", "agentId"),
    output={"taskId": TEXT, "agentId": TEXT, "attached": _FLAG},
    annotations=changes(is_repeatable=True),
)
DETACH: Final = _tool(
    "detach_agent_from_task",
    title="Detach agent from task",
    description=(
        "Detach an agent from a task. The task continues; detached is false if the agent was not "
        "attached."
    ),
    permit=Permit.OPERATE,
    is_quick=True,
    properties={"taskId": _TASK_ID, "agentId": _AGENT_ID},
    required=("taskId", "agentId"),
    output={"taskId": TEXT, "agentId": TEXT, "detached": _FLAG},
    annotations=changes(is_repeatable=True),
)
EXECUTE: Final = _tool(
    "execute_in_task",
    title="Execute in task",
    description=(
        "Execute a command in a task, with sh in its workspace, confined by the sandbox. The task "
        "must be running: attach an agent first. One command runs at a time. If it takes long, "
        "the answer is a handle: call get_task_status then."
    ),
    permit=Permit.OPERATE,
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
        "taskId": TEXT,
        "exitCode": {"type": ["integer", "null"]},
        "stdout": TEXT,
        "stderr": TEXT,
        "duration": {"type": "number", "description": "Execution time in ms."},
        "reason": {"type": "string", "description": "exited, timeout, interrupted, …"},
        "signal": {"type": ["integer", "null"]},
        "truncated": _FLAG,
        "sandbox": TEXT,
        "executionId": TEXT,
        "problem": {"type": ["string", "null"]},
        "status": {"type": "string", "description": "running, if it has not ended yet."},
        "pollAfterMs": {"type": "integer"},
        "message": TEXT,
    },
    annotations=changes(destroys=True, is_open=True),
)
LIST: Final = _tool(
    "list_tasks",
    title="List tasks",
    description=(
        "List all tasks, newest first, with optional filters. count is the number of all matches, "
        "before limit and offset."
    ),
    permit=Permit.READ,
    is_quick=True,
    properties={
        "status": _STATUS,
        "owner": {"type": "string", "description": "Only tasks of this owner."},
        **PAGE,
    },
    output={"tasks": {"type": "array", "items": TASK}, "count": {"type": "integer"}},
    annotations=READS,
)
GET: Final = _tool(
    "get_task_status",
    title="Get task status",
    description=(
        "Get task status and details. lastExecution is the last command in the task, with its "
        "output; while it runs that is the output so far, and you can call this tool again."
    ),
    permit=Permit.READ,
    is_quick=True,
    properties={"taskId": _TASK_ID},
    required=("taskId",),
    output={
        "taskId": TEXT,
        "status": _STATUS,
        "task": TASK,
        "execution": _AVAILABILITY,
        "lastExecution": {"type": "object"},
    },
    annotations=READS,
)
CANCEL: Final = _tool(
    "cancel_task",
    title="Cancel task",
    description="Cancel a task that is pending or running, with the command that runs in it.",
    permit=Permit.OPERATE,
    is_quick=True,
    properties={"taskId": _TASK_ID},
    required=("taskId",),
    output={"taskId": TEXT, "status": _STATUS, "task": TASK},
    annotations=changes(destroys=True, is_repeatable=True),
)
DELETE: Final = _tool(
    "delete_task",
    title="Delete task",
    description="Delete a task and clean up all its resources: workspace, log, checkpoints, locks.",
    permit=Permit.ADMIN,
    is_quick=True,
    properties={"taskId": _TASK_ID},
    required=("taskId",),
    output={"taskId": TEXT, "message": TEXT},
    annotations=changes(destroys=True, is_repeatable=True),
)


def task_tools() -> list[McpTool]:
    """Return the tools for tasks, in the order of the published API."""
    return [CREATE, ATTACH, DETACH, EXECUTE, LIST, GET, CANCEL, DELETE]
