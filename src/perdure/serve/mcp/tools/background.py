"""The six tools for background agents, for MCP clients; agents have tools of the same names."""

from collections.abc import Sequence
from typing import Any, Final

from perdure.core.roles import Permit
from perdure.core.session.child_tasks import ChildTask, marked_description, task_answer
from perdure.core.session.children import TASK_STATUSES
from perdure.runtime.agents.delegation import SENT, check_launch, parse_timeout
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.serve.mcp.toolbox import (
    FILLED_TEXT,
    FINDINGS,
    LIST_LIMIT,
    PAGE,
    READS,
    TEXT,
    Json,
    LongAnswer,
    McpCall,
    McpTool,
    ToolAnswer,
    WaitTime,
    changes,
)
from perdure.serve.mcp.work import BackgroundWork
from perdure.views.task_bodies import DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS

_TASK_ID: Final[Json] = {**FILLED_TEXT, "description": "Id of the agent's task."}
_WAITABLE: Final[Json] = {
    "task_id": _TASK_ID,
    "block": {"type": "boolean", "default": False, "description": "Wait for the result."},
    "timeout": {
        "type": "number",
        "default": DEFAULT_TIMEOUT_MS,
        "description": f"Milliseconds to wait with block=true, at most {MAX_TIMEOUT_MS}.",
    },
}
_WAITING_FOR: Final[Json] = {
    "type": "array",
    "description": "Calls for which it waits for people, if there are any: tell them.",
    "items": {
        "type": "object",
        "properties": {
            "pendingID": TEXT,
            "kind": {"type": "string", "enum": ["approval", "question"]},
            "tool": TEXT,
            "prompt": {"type": ["string", "null"]},
            "approvers": {"type": "array", "items": TEXT},
            "missingApprovals": {"type": "integer"},
        },
    },
}
_ROW: Final[Json] = {
    "task_id": TEXT,
    "status": {"type": "string", "enum": list(TASK_STATUSES)},
    "resumeCount": {"type": "integer"},
    "queued": {"type": "boolean"},
    "agent": TEXT,
    "description": TEXT,
    "waitingFor": _WAITING_FOR,
    "findings": FINDINGS,
}
_OUTCOME: Final[Json] = {
    **_ROW,
    "message": TEXT,
    "output": TEXT,
    "decisions": {
        "type": "array",
        "description": "What the person who uses this client decided during the call.",
        "items": {"type": "object"},
    },
    "error": {"description": "Why it failed: a sentence, or an object with a code."},
}
_START: Final = changes(is_open=True)
_END: Final = changes(destroys=True, is_repeatable=True)


def background_tools(agents: Sequence[ReadyAgent]) -> list[McpTool]:
    """Return the tools that launch these agents and follow them."""
    return [_launch_tool(agents), OUTPUT, RESUME, LIST, CANCEL, CLEAR]


def _launch_tool(agents: Sequence[ReadyAgent]) -> McpTool:
    lines = [f"{item.name}: {item.agent.description or 'no description'}" for item in agents]
    return McpTool(
        name="background_task",
        title="Launch background agent",
        description=(
            "Launch an agent that works in the background, and continue. Its task_id is valid "
            "for days, also after a restart; read the result with background_output."
        ),
        permit=Permit.OPERATE,
        run=_launch,
        check=check_launch,
        is_quick=True,
        wait_time=_no_time,
        properties={
            "agent": {
                "type": "string",
                "enum": [item.name for item in agents],
                "description": "\n".join(lines),
            },
            "prompt": FILLED_TEXT,
            "description": {"type": "string", "description": "A few words for lists."},
        },
        required=("agent", "prompt"),
        output=_OUTCOME,
        annotations=_START,
    )


def _answer(task: ChildTask, **more: Any) -> ToolAnswer:
    return ToolAnswer({"success": True, **task_answer(task, agent=task.agent, **more)})


async def _launch(call: McpCall) -> LongAnswer:
    args = call.args
    task, _ = await call.service.background.launch(
        call.caller.home_tenant,
        args["agent"],
        args["prompt"],
        description=args.get("description"),
        by=call.caller.name,
    )
    return LongAnswer(BackgroundWork.ref(task))


def _no_time(_: Json) -> WaitTime:
    return WaitTime(0)


def _wait_time(args: Json) -> WaitTime:
    """Return how long a call with `block` waits. Raises Refused."""
    is_given = "timeout" in args
    return WaitTime(parse_timeout(args["timeout"] if is_given else DEFAULT_TIMEOUT_MS), is_given)


async def _find(call: McpCall) -> ChildTask:
    return await call.service.background.get(call.caller.home_tenant, call.args["task_id"])


async def _output(call: McpCall) -> ToolAnswer | LongAnswer:
    task = await _find(call)
    work = BackgroundWork(call.service)
    state = await work.state(call.caller.home_tenant, work.ref(task))
    if not call.args.get("block") or (state.has_ended and not state.waiting):
        return state.answer
    _wait_time(call.args)
    return LongAnswer(work.ref(task))


async def _resume(call: McpCall) -> ToolAnswer | LongAnswer:
    args, caller = call.args, call.caller
    is_blocking = bool(args.get("block"))
    if is_blocking:
        _wait_time(args)
    background = call.service.background
    # The reservation ends with the call, however long it waits for people.
    task = await background.resume(
        await _find(call),
        args["message"],
        wait_ms=MAX_TIMEOUT_MS if is_blocking else None,
        by=caller.name,
        via=caller.via,
    )
    if is_blocking and not task.is_queued:
        return LongAnswer(BackgroundWork.ref(task), task)
    if is_blocking:  # the run that answers a queued message has no id yet
        async with background.waiting_caller(task):
            pass
    return _answer(task, message=SENT)


async def _list(call: McpCall) -> ToolAnswer:
    status = call.args.get("status")
    tasks = [
        task
        async for task in call.service.background.tasks(call.caller.home_tenant, status=status)
        if task.parent is None
    ]
    tasks.sort(key=lambda task: (task.created_at, task.id), reverse=True)
    start, limit = int(call.args.get("offset", 0)), int(call.args.get("limit", LIST_LIMIT))
    shown = tasks[start : start + limit]
    page = await call.service.background.with_reasons(shown, call.caller.acts)
    rows = [
        task_answer(task, agent=task.agent, description=marked_description(task), **reasons)
        for task, reasons in page
    ]
    return ToolAnswer({"success": True, "tasks": rows, "count": len(tasks)})


async def _cancel(call: McpCall) -> ToolAnswer:
    caller = call.caller
    task = await call.service.background.cancel(await _find(call), caller.name, None, caller.via)
    return _answer(task, description=task.description)


async def _clear(call: McpCall) -> ToolAnswer:
    """Clear the tasks that this principal launched; those of others stay."""
    cleared = await call.service.clear_own(call.caller.home_tenant, call.caller.name)
    rows = [task_answer(task) for task in cleared]
    return ToolAnswer({"success": True, "cleared": len(rows), "tasks": rows})


OUTPUT: Final = McpTool(
    name="background_output",
    title="Read background agent",
    description=(
        "Read the result of a background agent. With block=true the call waits until it has "
        "finished, or for timeout milliseconds; if it waits for the person who uses this client, "
        "the call asks them, and if only other people can decide, it says who, without waiting "
        "unless you give a timeout."
    ),
    permit=Permit.READ,
    run=_output,
    wait_time=_wait_time,
    properties=_WAITABLE,
    required=("task_id",),
    output=_OUTCOME,
    annotations=READS,
)
RESUME: Final = McpTool(
    name="background_resume",
    title="Resume background agent",
    description=(
        "Send a follow-up message to a completed background agent, which still knows the "
        "whole conversation. With block=true the call waits for the answer."
    ),
    permit=Permit.OPERATE,
    run=_resume,
    wait_time=_wait_time,
    properties={**_WAITABLE, "message": FILLED_TEXT},
    required=("task_id", "message"),
    output=_OUTCOME,
    annotations=_START,
)
LIST: Final = McpTool(
    name="background_list",
    title="List background agents",
    description=(
        "List the background agents that were launched here, newest first. count is the number of "
        "all matches, before limit and offset."
    ),
    permit=Permit.READ,
    run=_list,
    properties={
        "status": {"type": "string", "enum": list(TASK_STATUSES)},
        **PAGE,
    },
    output={
        "tasks": {"type": "array", "items": {"type": "object", "properties": _ROW}},
        "count": {"type": "integer"},
    },
    annotations=READS,
    is_quick=True,
)
CANCEL: Final = McpTool(
    name="background_cancel",
    title="Cancel background agent",
    description="Cancel a running background agent, with everything that it launched.",
    permit=Permit.OPERATE,
    run=_cancel,
    properties={"task_id": _TASK_ID},
    required=("task_id",),
    output=_ROW,
    annotations=_END,
    is_quick=True,
)
CLEAR: Final = McpTool(
    name="background_clear",
    title="Clear background agents",
    description="Cancel your running background agents, and remove yours from the list.",
    permit=Permit.OPERATE,
    run=_clear,
    output={"cleared": {"type": "integer"}, "tasks": {"type": "array"}},
    annotations=_END,
    is_quick=True,
)
