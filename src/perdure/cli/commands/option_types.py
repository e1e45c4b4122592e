"""Option types: JSON, changed arguments, and text that may come from stdin or a file."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

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


STDIN: Final = "-"


def text_or_stdin(value: Any) -> str:
    """Return the text; for `-`, the text on stdin."""
    return read_stdin() if value == STDIN else str(value)


def read_stdin() -> str:
    """Return all of stdin as text."""
    return _text(sys.stdin.buffer.read(), "stdin")


def file_text(value: Any) -> str:
    """Return the text of the file with this path; for `-`, the text on stdin."""
    if value == STDIN:
        return read_stdin()
    try:
        return _text(Path(value).read_bytes(), f"the file {value}")
    except OSError as error:
        raise click.BadParameter(f"the file {value} cannot be read: {error.strerror}") from error


def _text(data: bytes, source: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{source} is not UTF-8 (byte {error.start})") from error


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A JSON value that was typed, null included."""

    value: Any


def json_value(value: Any) -> JsonValue:
    """Parse the value of an option, or for `-` of stdin, as JSON."""
    if isinstance(value, JsonValue):
        return value
    value = text_or_stdin(value)
    try:
        return JsonValue(json.loads(value))
    except RecursionError as error:
        raise click.BadParameter("it is nested too deeply") from error
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
