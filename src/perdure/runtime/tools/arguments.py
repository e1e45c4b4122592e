"""Arguments of a tool call: JSON when stored, typed when the function runs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.errors import Refused


def json_text(args: Any) -> str:
    """Return arguments as the text of a JSON object. Raises Refused ARGS_INVALID."""
    if not isinstance(args, Mapping):
        raise invalid_arguments([("", "the arguments must be a JSON object")])
    try:
        return json.dumps(dict(args), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid_arguments([("", f"the arguments are not JSON: {error}")]) from error


def invalid_arguments(problems: Sequence[tuple[str, str]]) -> Refused:
    """Return the error for (name, problem) pairs, in one line that a model can act on."""
    text = "; ".join(f"{name}: {problem}" if name else problem for name, problem in problems)
    return Refused(
        f"Invalid arguments: {' '.join(text.split())}",
        code="ARGS_INVALID",
        hint="correct the arguments and call again",
        details={"arguments": [{"name": name, "problem": problem} for name, problem in problems]},
    )
