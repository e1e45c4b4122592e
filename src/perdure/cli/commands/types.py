"""Option types: JSON, and changed arguments."""

import json
from dataclasses import dataclass
from typing import Any

import click


def json_object(value: Any) -> dict[str, Any]:
    """Parse the value of an option as a JSON object."""
    try:
        parsed = value if isinstance(value, dict) else json.loads(value)
    except RecursionError as error:
        raise click.BadParameter("it is nested too deeply") from error
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise click.BadParameter(f'{value!r} is not a JSON object such as {{"cents": 4000}}')
    return parsed


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A JSON value that was typed, null included."""

    value: Any


def json_value(value: Any) -> JsonValue:
    """Parse the value of an option as JSON."""
    try:
        return value if isinstance(value, JsonValue) else JsonValue(json.loads(value))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not valid JSON: {error}") from error


def change(value: Any) -> tuple[str, Any]:
    """Parse `key=value`; the value is JSON, or else text."""
    if isinstance(value, tuple):
        return value
    key, equals, text = str(value).partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{value!r} is not of the form key=value")
    try:
        return key, json.loads(text)
    except RecursionError as error:
        raise click.BadParameter(f"{key} is nested too deeply") from error
    except ValueError:
        return key, text
