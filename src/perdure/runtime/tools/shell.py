"""The built-in tool `execute_command`: one command in the session's own task."""

from typing import Final

from perdure.errors import PerdureError, ToolError
from perdure.runtime.tools.tool import Tool
from perdure.runtime.values import Context

NAME: Final = "execute_command"
TIMEOUT_S: Final = 30


async def _execute(ctx: Context) -> str:
    if ctx._shell is None:  # noqa: SLF001 - set for this tool only
        raise ToolError(f"{NAME} runs in a session, and cannot be called directly")
    try:
        timeout_s = float(ctx.args.get("timeout", TIMEOUT_S))
        return await ctx._shell(str(ctx.args["command"]), timeout_s)  # noqa: SLF001
    except PerdureError as error:
        text = error.message if error.hint is None else f"{error.message} ({error.hint})"
        raise ToolError(text, code=error.code) from error


EXECUTE_COMMAND: Final[Tool[[Context], object]] = Tool(
    _execute,
    name=NAME,
    description=(
        "Run a command with sh in the workspace of this session, and return its exit code and "
        "output. The workspace keeps its files between commands. A command that runs longer than "
        "its timeout is stopped, with everything that it has started."
    ),
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "string", "minLength": 1, "description": "A command line for sh."},
            "timeout": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": f"Seconds until it is stopped; {TIMEOUT_S} by default.",
            },
        },
        "required": ["command"],
        "additionalProperties": False,
    },
    requires_approval=True,
    approval_prompt="Run this command in the workspace of the session?\n{input.command}",
)
