"""Background tools of an agent with `sub_agents`: launch, read, resume, list, cancel, clear.

The tools check their arguments and phrase their answers; `ChildCalls`, which the engine puts into
the context of a call, does the work. Every answer has `task_id`, `status` and `resumeCount`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from perdure.core.session.child_tasks import STILL_RUNNING
from perdure.core.session.children import TASK_STATUSES
from perdure.core.session.follow_ups import NO_RULES, FollowUpRules
from perdure.core.text import is_visible
from perdure.errors import PerdureError, Refused, ToolError
from perdure.runtime.tools.tool import Tool
from perdure.runtime.values import Context
from perdure.views.task_bodies import DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS


class SubAgent(Struct, frozen=True):
    """An agent that another one may launch."""

    name: str
    description: str = ""


class ChildWait(Struct, frozen=True):
    """Return value of a tool whose call waits for a background agent, until a deadline."""

    mail: str
    timeout_ms: int
    details: dict[str, Any]  # task_id, status and resumeCount
    waiting: dict[str, Any] = {}  # waitingFor and a message, for a call that does not wait itself


class ChildAnswer(Struct, frozen=True):
    """Return value of a tool that delivers mail to the model."""

    answer: dict[str, Any]
    mail: tuple[str, ...] = ()


class ChildCalls(Protocol):
    """Background agents of the session that a call belongs to."""

    async def launch(self, agent: str, prompt: str, description: str | None) -> dict[str, Any]:
        """Launch a background agent; return the answer."""
        ...

    async def output(self, task_id: str) -> ChildAnswer | ChildWait:
        """Return the outcome of a task, or how to wait for it."""
        ...

    async def resume(self, task_id: str, message: str) -> ChildWait:
        """Send a follow-up to a completed task."""
        ...

    async def list(self, status: str | None) -> dict[str, Any]:
        """List the tasks that were not cleared."""
        ...

    async def cancel(self, task_id: str) -> dict[str, Any]:
        """Cancel a running task."""
        ...

    async def clear(self) -> dict[str, Any]:
        """Cancel the running tasks and remove all from the list."""
        ...


def background_tools(
    sub_agents: Sequence[SubAgent], rules: FollowUpRules = NO_RULES
) -> tuple[Tool[..., Any], ...]:
    """Return the six background tools of an agent that may launch these agents."""
    if not sub_agents:
        return ()
    return (
        replace(
            _tool("background_task", _LAUNCH, _launch, _launch_schema(sub_agents), _REQUIRED),
            _check=check_launch,
        ),
        _tool("background_output", _OUTPUT, _output, _WAITABLE, ("task_id",)),
        _tool(
            "background_resume",
            _resume_text(rules),
            _resume,
            {**_WAITABLE, "message": {"type": "string", "minLength": 1}},
            ("task_id", "message"),
        ),
        _tool("background_list", _LIST, _list, {"status": {"enum": [*TASK_STATUSES, None]}}, ()),
        _tool("background_cancel", _CANCEL, _cancel, {"task_id": _TASK_ID}, ("task_id",)),
        _tool("background_clear", _CLEAR, _clear, {}, ()),
    )


_REQUIRED: Final = ("agent", "prompt")  # arguments of a launch, each with text
BACKGROUND_TOOLS: Final = frozenset(
    {
        "background_task",
        "background_output",
        "background_resume",
        "background_list",
        "background_cancel",
        "background_clear",
    }
)
_LAUNCH: Final = (
    "Launch another agent that works in the background, and continue. Returns a task_id at once; "
    "you are notified when the agent has finished."
)
_OUTPUT: Final = (
    "Read the result of a background task. With block=true the call waits until the task has "
    "finished, or for `timeout` milliseconds."
)
_RESUME: Final = (
    "Send a follow-up message to a completed background task. Its agent still knows the whole "
    "conversation. With block=true the call waits for the answer; otherwise you are notified."
)
_LIST: Final = "List your background tasks, with their statuses."
_CANCEL: Final = "Cancel a running background task."
_CLEAR: Final = "Cancel your running background tasks, and remove all of them from the list."
SENT: Final = "The follow-up was sent. You will be notified when the answer has arrived."
_TOLD: Final = ("task_id", "status", "resumeCount", "reason")  # details of errors for the model
_TASK_ID: Final[Mapping[str, Any]] = {"type": "string", "minLength": 1}
_WAITABLE: Final[Mapping[str, Any]] = {
    "task_id": _TASK_ID,
    "block": {"type": "boolean", "default": False},
    "timeout": {
        "type": "number",
        "default": DEFAULT_TIMEOUT_MS,
        "description": f"Milliseconds to wait with block=true, at most {MAX_TIMEOUT_MS}.",
    },
}


def _resume_text(rules: FollowUpRules) -> str:
    """Return the description of `background_resume`, with what its agent allows."""
    ended = " A task that failed or was cancelled can be resumed too." if rules.resume_ended else ""
    queue = " One message to a running task is queued until its run ends."
    return _RESUME + ended + (queue if rules.queue_message else "")


def _launch_schema(sub_agents: Sequence[SubAgent]) -> dict[str, Any]:
    lines = [f"{agent.name}: {agent.description or 'no description'}" for agent in sub_agents]
    return {
        "agent": {
            "type": "string",
            "enum": [agent.name for agent in sub_agents],
            "description": "\n".join(lines),
        },
        "prompt": {"type": "string", "minLength": 1},
        "description": {"type": ["string", "null"], "description": "A few words for lists."},
    }


def _tool(
    name: str, description: str, run: Any, properties: Mapping[str, Any], required: Sequence[str]
) -> Tool[..., Any]:
    schema = {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }
    return Tool(run, name=name, description=description, parameters=schema, idempotent=True)


def _calls(ctx: Context[Any]) -> ChildCalls:
    calls: ChildCalls | None = ctx._children  # noqa: SLF001 - the engine's part of the context
    if calls is None:
        raise ToolError(f"{ctx.tool or 'this tool'} is run by the runtime and cannot be called")
    return calls


def check_launch(args: Mapping[str, Any]) -> None:
    """Raise Refused if a launch names no agent or has no prompt, however it is requested."""
    for name in _REQUIRED:
        if is_blank(args.get(name)):
            raise parameter_missing(name.capitalize())


def is_blank(value: object) -> bool:
    """Return whether a parameter has no value, or text without a visible character."""
    return value is None or (isinstance(value, str) and not is_visible(value))


def parameter_missing(name: str) -> Refused:
    """Return the error for a parameter of a background tool that is missing or blank."""
    return Refused(
        f"{name} parameter is required", code="ARGS_INVALID", hint=f"{name.lower()} must have text"
    )


def _text(ctx: Context[Any], name: str) -> str:
    value = ctx.args.get(name)
    if not isinstance(value, str) or is_blank(value):
        error = parameter_missing(name)
        raise ToolError(error.message, code=error.code)
    return value


def parse_timeout(value: Any) -> int:
    """Return how long a blocking call waits, in ms, at most ten minutes. Raises Refused."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not value > 0:
        raise Refused(
            f"timeout is {value!r} and must be a positive number of milliseconds",
            code="ARGS_INVALID",
            hint=f"leave it out for {DEFAULT_TIMEOUT_MS}; the most is {MAX_TIMEOUT_MS}",
        )
    return int(min(max(value, 1), MAX_TIMEOUT_MS))


def _wait_ms(ctx: Context[Any]) -> int | None:
    """Return how long the call waits; None: it does not block, and the timeout does not count."""
    if not ctx.args.get("block"):
        return None
    try:
        return parse_timeout(ctx.args.get("timeout", DEFAULT_TIMEOUT_MS))
    except Refused as error:
        raise ToolError(error.message, code=error.code) from error


async def _launch(ctx: Context[Any]) -> Any:
    args = ctx.args
    try:
        return await _calls(ctx).launch(args["agent"], args["prompt"], args.get("description"))
    except PerdureError as error:
        raise _failure(error) from error


async def _output(ctx: Context[Any]) -> Any:
    task_id, wait_ms = _text(ctx, "task_id"), _wait_ms(ctx)
    try:
        outcome = await _calls(ctx).output(task_id)
    except PerdureError as error:
        raise _failure(error, task_id) from error
    if isinstance(outcome, ChildAnswer):
        return outcome
    return _wait_or_tell(outcome, wait_ms, STILL_RUNNING)


async def _resume(ctx: Context[Any]) -> Any:
    task_id, message = _text(ctx, "task_id"), _text(ctx, "message")
    wait_ms = _wait_ms(ctx)
    try:
        started = await _calls(ctx).resume(task_id, message)
    except PerdureError as error:
        raise _failure(error, task_id) from error
    return _wait_or_tell(started, wait_ms, SENT)


def _wait_or_tell(wait: ChildWait, wait_ms: int | None, message: str) -> ChildWait | dict[str, Any]:
    if wait_ms is None:
        return {**wait.details, "message": message, **wait.waiting}
    return ChildWait(wait.mail, wait_ms, wait.details)


async def _list(ctx: Context[Any]) -> Any:
    return await _calls(ctx).list(ctx.args.get("status"))


async def _cancel(ctx: Context[Any]) -> Any:
    task_id = _text(ctx, "task_id")
    try:
        return await _calls(ctx).cancel(task_id)
    except PerdureError as error:
        raise _failure(error, task_id) from error


async def _clear(ctx: Context[Any]) -> Any:
    return await _calls(ctx).clear()


def _failure(error: PerdureError, task_id: str | None = None) -> ToolError:
    """Return the error for the model: the documented text, with the task that it is about."""
    details = {key: error.details[key] for key in _TOLD if key in error.details}
    task = {} if task_id is None else {"task_id": task_id}
    text = msgspec.json.encode({"error": error.message, **task, **details}).decode()
    return ToolError(text, code=error.code)
