"""Values of options that are more than text."""

import json
from typing import Any

import click


def json_object(value: Any) -> dict[str, Any]:
    """The JSON object that an option holds."""
    try:
        found = value if isinstance(value, dict) else json.loads(value)
    except ValueError as error:
        raise click.BadParameter(f"it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise click.BadParameter(f'{value} is not a JSON object, such as {{"cents": 4000}}')
    return found


def change(value: Any) -> tuple[str, Any]:
    """`key=value`; the value is JSON, else text."""
    if isinstance(value, tuple):
        return value
    key, equals, text = str(value).partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{value!r} is not key=value")
    try:
        return key, json.loads(text)
    except ValueError:
        return key, text
