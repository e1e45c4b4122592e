"""Redaction: masking arguments that a tool declares secret wherever they are shown.

The call keeps them, because the tool needs them, and so does the conversation, because the model
wrote them. Their names are stored beside the arguments, so that a process without the tool's code
can mask them too.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

MASK: Final = "***"

# By event type, the field with the arguments whose names `redact` lists.
_ARGUMENTS: Final = {
    "tool_call": "params",
    "pending": "input",
    "decision": "args",
    "vote": "args",
}
# By event type, the field with a text that may contain such arguments anywhere.
_TEXTS: Final = {"user": "content", "compacted": "summary"}


def mask_arguments(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the arguments with the named ones masked."""
    return {name: MASK if name in names else value for name, value in values.items()}


def redact_event_data(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return the data of an event as it is shown; the same object if nothing is secret."""
    redact = data.get("redact")
    if not redact:
        return data
    if kind == "assistant":  # the native response contains the arguments too
        return {name: value for name, value in data.items() if name != "native"}
    if kind in _TEXTS:
        return {**data, _TEXTS[kind]: MASK}
    field = _ARGUMENTS.get(kind)
    if field is None or not isinstance(data.get(field), dict):
        return data
    return {**data, field: mask_arguments(data[field], redact)}


def secret_arguments(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the arguments in a schema that are or contain a secret type."""
    properties = schema.get("properties", {})
    definitions = schema.get("$defs", {})
    return frozenset(
        name for name, argument in properties.items() if _is_secret(argument, definitions, set())
    )


def _is_secret(schema: Any, definitions: Mapping[str, Any], visited: set[str]) -> bool:
    match schema:
        case {"format": "password", "writeOnly": True}:
            return True
        case {"$ref": str(ref)}:
            name = ref.rpartition("/")[2]
            if name in visited:
                return False
            return _is_secret(definitions.get(name), definitions, visited | {name})
        case dict():
            return any(_is_secret(item, definitions, visited) for item in schema.values())
        case list():
            return any(_is_secret(item, definitions, visited) for item in schema)
        case _:
            return False
