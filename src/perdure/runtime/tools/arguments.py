"""Arguments of a tool call: JSON when stored, typed when the function runs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from perdure.errors import Refused


class Arguments(Protocol):
    """The arguments of one function. Apart from what makes it, so that pydantic is loaded late."""

    def schema(self) -> dict[str, Any]:
        """The JSON schema for the model provider."""

    def typed(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The values that the function takes, by parameter name; Refused ARGS_INVALID."""

    def plain(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as JSON, as the function will understand them; Refused ARGS_INVALID."""


def json_text(args: Any) -> str:
    """Arguments as the JSON object they must be; Refused ARGS_INVALID where they are none."""
    if not isinstance(args, Mapping):
        raise invalid([("", "the arguments must be a JSON object")])
    try:
        return json.dumps(dict(args), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid([("", f"the arguments are not JSON: {error}")]) from error


def invalid(problems: Sequence[tuple[str, str]]) -> Refused:
    """What is wrong with arguments, as (name, why), in one line that a model can act on."""
    told = "; ".join(f"{name}: {why}" if name else why for name, why in problems)
    return Refused(
        f"Invalid arguments: {' '.join(told.split())}",
        code="ARGS_INVALID",
        hint="correct the arguments and call again",
        details={"arguments": [{"name": name, "problem": why} for name, why in problems]},
    )
