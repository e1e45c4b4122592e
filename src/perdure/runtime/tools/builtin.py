"""The tools that come with perdure, by name: `ask_user`, `wait` and `todo_write`."""

from collections.abc import Mapping
from typing import Any, Final, get_args

from perdure.core.session.todos import Priority, Status, check_todos, describe
from perdure.errors import ConfigError, Refused, ToolError
from perdure.runtime.tools.tool import Tool, as_tool
from perdure.runtime.values import Context

MAX_WAIT_S: Final = 366 * 86_400

_TODO: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "content": {"type": "string", "description": "What is to be done, as an order."},
        "status": {"type": "string", "enum": list(get_args(Status))},
        "activeForm": {"type": "string", "description": "The same while it is being done."},
        "id": {"type": "string"},
        "priority": {"type": "string", "enum": list(get_args(Priority))},
    },
    "required": ["content", "status"],
    "additionalProperties": False,
}


def _schema(**properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _by_the_runtime(ctx: Context) -> str:
    raise ToolError(f"{ctx.tool or 'this tool'} is done by the runtime, and cannot be called")


def _write_todos(ctx: Context) -> str:
    try:
        return describe(check_todos(ctx.args.get("todos")))
    except Refused as error:
        raise ToolError(error.message, code=error.code) from error


ASK_USER: Final[Tool[[Context], str]] = Tool(
    _by_the_runtime,
    name="ask_user",
    description="Ask the user a question and wait for the answer.",
    parameters=_schema(question={"type": "string", "minLength": 1}),
    kind="question",
)
WAIT: Final[Tool[[Context], str]] = Tool(
    _by_the_runtime,
    name="wait",
    description="Wait for a number of seconds, from moments to a year, before going on.",
    parameters=_schema(
        seconds={"type": "number", "exclusiveMinimum": 0, "maximum": MAX_WAIT_S},
    ),
    kind="timer",
)
TODO_WRITE: Final[Tool[[Context], str]] = Tool(
    _write_todos,
    name="todo_write",
    description=(
        "Replace the list of what is to be done. Give the whole list each time, with at most one "
        "todo in_progress."
    ),
    parameters=_schema(todos={"type": "array", "items": _TODO}),
    idempotent=True,
)
BUILTINS: Final[Mapping[str, Tool[[Context], str]]] = {
    made.name: made for made in (ASK_USER, WAIT, TODO_WRITE)
}


def resolve_tool(item: Any) -> Tool[..., Any]:
    """A tool, a plain function, or the name of a built-in, as a Tool; ConfigError otherwise."""
    if not isinstance(item, str):
        return as_tool(item)
    if item not in BUILTINS:
        raise ConfigError(
            f"there is no built-in tool {item!r}", hint=f"there are {', '.join(BUILTINS)}"
        )
    return BUILTINS[item]


def wait_ms(args: Mapping[str, Any]) -> int:
    """How long a validated `wait` waits."""
    return max(round(float(args["seconds"]) * 1_000), 1)
