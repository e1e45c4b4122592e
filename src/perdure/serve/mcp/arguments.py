"""Check of a tool's arguments against its input schema: one error that names the argument."""

from collections.abc import Mapping
from typing import Any, Final

from perdure.core.json_values import schema_problems
from perdure.errors import Refused

_SHOWN: Final = 3  # problems in one error


def check_arguments(tool: str, schema: Mapping[str, Any], arguments: Any) -> dict[str, Any]:
    """Return the arguments without those that are null. Raises Refused INVALID_REQUEST."""
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise invalid_argument(tool, "the arguments must be an object")
    values = {name: value for name, value in arguments.items() if value is not None}
    problems = schema_problems(values, schema)
    if problems:
        lines = [f"{path} {problem}".strip() for path, problem in problems[:_SHOWN]]
        raise invalid_argument(tool, "; ".join(lines))
    return values


def invalid_argument(tool: str, text: str) -> Refused:
    """Return the error for arguments that do not fit."""
    return Refused(
        f"{tool}: {text}",
        code="INVALID_REQUEST",
        hint=f"tools/list has the input schema of {tool}",
    )
