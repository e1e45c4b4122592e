"""What people and programs are not shown: arguments that a tool says are secret.

The call keeps them, for exactly it must run, and so does the conversation, for the model wrote
them. The names stand beside the arguments, so that any process hides them, without the tool's code.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

MASK: Final = "***"

# In which field of an event the arguments are whose names `redact` lists.
_ARGUMENTS: Final = {"tool_call": "params", "pending": "input", "decision": "args"}
# In which field a text is that may hold such arguments anywhere.
_TEXTS: Final = {"user": "content", "compacted": "summary"}


def masked(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The arguments with those of these names hidden."""
    return {name: MASK if name in names else value for name, value in values.items()}


def shown_event(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """The data of an event as it is shown; the very same where nothing is to be hidden."""
    redact = data.get("redact")
    if not redact:
        return data
    if kind == "assistant":  # what the provider sent holds the arguments once more
        return {name: value for name, value in data.items() if name != "native"}
    if kind in _TEXTS:
        return {**data, _TEXTS[kind]: MASK}
    where = _ARGUMENTS.get(kind)
    if where is None or not isinstance(data.get(where), dict):
        return data
    return {**data, where: masked(data[where], redact)}


def secret_arguments(schema: Mapping[str, Any]) -> frozenset[str]:
    """The arguments in a schema that are, or hold, what is typed as a secret."""
    properties = schema.get("properties", {})
    parts = schema.get("$defs", {})
    return frozenset(name for name, one in properties.items() if _is_secret(one, parts, set()))


def _is_secret(schema: Any, parts: Mapping[str, Any], seen: set[str]) -> bool:
    match schema:
        case {"format": "password", "writeOnly": True}:
            return True
        case {"$ref": str(ref)}:
            name = ref.rpartition("/")[2]
            if name in seen:
                return False
            return _is_secret(parts.get(name), parts, seen | {name})
        case dict():
            return any(_is_secret(one, parts, seen) for one in schema.values())
        case list():
            return any(_is_secret(one, parts, seen) for one in schema)
        case _:
            return False
