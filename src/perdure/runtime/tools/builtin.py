"""Built-in tools by name: `ask_user`, `wait`, `todo_write` and `execute_command`."""

from collections.abc import Mapping
from typing import Any, Final, get_args

from perdure.core.session.todos import TodoPriority, TodoStatus, check_todos, describe_todos
from perdure.errors import ConfigError, Refused, ToolError
from perdure.runtime.tools.shell import EXECUTE_COMMAND
from perdure.runtime.tools.tool import Tool, as_tool
from perdure.runtime.values import Context

MAX_WAIT_S: Final = 366 * 86_400

_TODO: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "content": {"type": "string", "description": "What is to be done, as an order."},
        "status": {"type": "string", "enum": list(get_args(TodoStatus))},
        "activeForm": {"type": "string", "description": "The same while it is being done."},
        "id": {"type": "string"},
        "priority": {"type": "string", "enum": list(get_args(TodoPriority))},
    },
    "required": ["content", "status", "activeForm"],
    "additionalProperties": False,
}


def _schema(**properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _refuse_direct_call(ctx: Context) -> str:
    raise ToolError(f"{ctx.tool or 'this tool'} is run by the runtime and cannot be called")


def _write_todos(ctx: Context) -> str:
    try:
        return describe_todos(check_todos(ctx.args.get("todos")))
    except Refused as error:
        raise ToolError(error.message, code=error.code) from error


ASK_USER: Final[Tool[[Context], str]] = Tool(
    _refuse_direct_call,
    name="ask_user",
    description="Ask the user a question and wait for the answer.",
    parameters={
        **_schema(
            question={"type": "string", "minLength": 1},
            choices={
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "description": "The only possible answers, if there are few.",
            },
            schema={
                "type": "object",
                "description": "A JSON schema for the answer, if it must be structured.",
            },
        ),
        "required": ["question"],
    },
    kind="question",
)
WAIT: Final[Tool[[Context], str]] = Tool(
    _refuse_direct_call,
    name="wait",
    description="Wait for a number of seconds, from moments to a year, before you continue.",
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
BUILTINS: Final[Mapping[str, Tool[[Context], Any]]] = {
    builtin.name: builtin for builtin in (ASK_USER, WAIT, TODO_WRITE, EXECUTE_COMMAND)
}


def resolve_tool(item: Any) -> Tool[..., Any]:
    """Return a tool, a plain function or the name of a built-in as a Tool. Raises ConfigError."""
    if not isinstance(item, str):
        return as_tool(item)
    if item not in BUILTINS:
        raise ConfigError(
            f"there is no built-in tool {item!r}",
            hint=f"the built-in tools are {', '.join(BUILTINS)}",
        )
    return BUILTINS[item]


def wait_duration_ms(args: Mapping[str, Any]) -> int:
    """Return the duration of a validated `wait` call."""
    return max(round(float(args["seconds"]) * 1_000), 1)
