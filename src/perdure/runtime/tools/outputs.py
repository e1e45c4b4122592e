"""Return values of tools: rendered for the model, or parsed as the start of deferred work."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from types import EllipsisType
from typing import Any, Final

from perdure.core.text import NO_OUTPUT
from perdure.errors import Refused, ToolError
from perdure.user_code import CONTAINED
from perdure.views.durations import MAX_MS
from perdure.views.values import File, parse_duration

Rendered = str | tuple[str | File, ...]

_KEYS: Final = ("async", "pendingID", "externalRef", "output", "estimatedDuration", "timeout")


@dataclass(frozen=True, slots=True)
class Deferred:
    """Return value of a deferred tool that has started its work.

    `timeout_ms`: None is no deadline, `...` is unspecified.
    """

    external_ref: str | None = None
    output: str | None = None
    estimated_duration_ms: int | None = None
    timeout_ms: int | EllipsisType | None = ...


def render_result(value: Any, unknown: set[str] | None = None) -> Rendered:
    """Return a tool's result as the model sees it; never raises.

    Text is unchanged, None is `(no output)`, a File or a list with one becomes parts, anything
    else is JSON. Values that cannot be rendered become a note in square brackets. The names of
    types that JSON does not have, and that are shown as text, are added to `unknown`.
    """
    names = set() if unknown is None else unknown
    if isinstance(value, File):
        return (value,)
    if isinstance(value, (list, tuple)) and any(isinstance(part, File) for part in value):
        return tuple(part if isinstance(part, File) else _text(part, names) for part in value)
    return _text(value, names)


def parse_deferred(value: Any, pending_id: str) -> Deferred:
    """Return what a deferred tool returned: None, its external reference, or a dict with more.

    In a dict numbers are milliseconds and text is a duration. Raises ToolError if it is invalid
    or names another call than this one.
    """
    if value is None or isinstance(value, str):
        return Deferred(external_ref=_plain(value) if value else None)
    if isinstance(value, Deferred):
        return value
    if not isinstance(value, Mapping):
        raise _invalid(f"returned {type(value).__name__}, not text, a dict or None")
    _check_keys(value, pending_id)
    estimate = _milliseconds(value, "estimatedDuration")
    return Deferred(
        external_ref=_optional_text(value, "externalRef"),
        output=_optional_text(value, "output"),
        estimated_duration_ms=None if isinstance(estimate, EllipsisType) else estimate,
        timeout_ms=_milliseconds(value, "timeout"),
    )


def _text(value: Any, unknown: set[str]) -> str:
    plain = value.value if isinstance(value, Enum) else value
    if plain is None:
        return NO_OUTPUT
    if isinstance(plain, str):
        return _plain(plain)
    if isinstance(plain, (bytes, bytearray, memoryview)):
        return f"[{len(bytes(plain))} bytes; a tool shows bytes by returning a File]"
    return _json_text(plain, unknown)


def _plain(text: str) -> str:
    # A lone surrogate cannot be stored or sent.
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _json_text(value: Any, unknown: set[str]) -> str:
    from pydantic_core import to_json  # late: loads slowly

    def as_text(item: Any) -> str:
        unknown.add(type(item).__name__)
        try:
            with CONTAINED:
                return str(item)
        except Exception:  # noqa: BLE001 - the user's __str__
            return f"<Unserializable {type(item).__name__} object>"

    try:
        with CONTAINED:
            data = to_json(
                _without_files(value),
                bytes_mode="base64",
                inf_nan_mode="strings",
                fallback=as_text,
            )
        return data.decode()
    except Exception as error:  # noqa: BLE001 - the user's types may raise anything
        unknown.add(type(value).__name__)
        return f"[{type(value).__name__} that cannot be shown: {type(error).__name__}]"


def _without_files(value: Any) -> Any:
    """Return the value with a note in place of each File, whose bytes are not text."""
    match value:
        case File():
            return f"[file {value.name or ''} {value.media_type}]".replace("  ", " ")
        case dict():
            return {key: _without_files(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_without_files(inner) for inner in value]
        case _:
            return value


def _check_keys(value: Mapping[Any, Any], pending_id: str) -> None:
    if unknown := sorted(str(key) for key in value if key not in _KEYS):
        raise _invalid(f"returned unknown keys: {', '.join(unknown)}")
    if value.get("async", True) is not True:
        raise _invalid("returned async that is not true")
    given_id = value.get("pendingID", pending_id)
    if given_id != pending_id:
        raise _invalid(f"returned pendingID {given_id!r}, but its call is {pending_id!r}")


def _optional_text(value: Mapping[str, Any], key: str) -> str | None:
    text = value.get(key)
    if text is not None and not isinstance(text, str):
        raise _invalid(f"returned {key} that is not text")
    return None if text is None else _plain(text)


def _milliseconds(value: Mapping[str, Any], key: str) -> int | EllipsisType | None:
    """Return a duration in ms; `...` if the key is missing; None and 0 both mean no limit."""
    duration = value.get(key, ...)
    if duration is None or duration is ...:
        return duration
    is_number = isinstance(duration, (int, float)) and not isinstance(duration, bool)
    if is_number and 0 <= duration <= MAX_MS:
        return round(duration) or None
    if isinstance(duration, (str, timedelta)):
        try:
            return parse_duration(duration) or None
        except Refused as error:
            raise _invalid(f"returned {key}: {error.message}") from error
    raise _invalid(f"returned {key} {duration!r}, which is not a duration")


def _invalid(problem: str) -> ToolError:
    return ToolError(
        f"the deferred tool {problem}",
        code="DEFERRED_INVALID",
        hint=f"return the external reference, or a dict with any of {', '.join(_KEYS)}",
    )
