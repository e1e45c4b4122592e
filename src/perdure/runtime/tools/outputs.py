"""What a tool returned: as the model sees it, or as the start of work elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from types import EllipsisType
from typing import Any, Final

from perdure.core.durations import MAX_MS
from perdure.errors import Refused, ToolError
from perdure.runtime.values import File, parse_duration

NO_OUTPUT: Final = "(no output)"

Rendered = str | tuple[str | File, ...]

_KEYS: Final = ("async", "pendingID", "externalRef", "output", "estimatedDuration", "timeout")


@dataclass(frozen=True, slots=True)
class Deferred:
    """What a deferred tool said when it had started its work.

    `timeout_ms`: None is for ever, `...` is not said.
    """

    external_ref: str | None = None
    output: str | None = None
    estimated_duration_ms: int | None = None
    timeout_ms: int | EllipsisType | None = ...


def render_result(value: Any) -> Rendered:
    """What the model sees of a tool's result; never raises.

    Text is as it is, None is `(no output)`, a File or a list with one is parts, anything else is
    JSON. What cannot be shown leaves a mark in square brackets.
    """
    if isinstance(value, File):
        return (value,)
    if isinstance(value, (list, tuple)) and any(isinstance(part, File) for part in value):
        return tuple(part if isinstance(part, File) else _text(part) for part in value)
    return _text(value)


def parse_deferred(value: Any, pending_id: str) -> Deferred:
    """What a deferred tool returned: nothing, its external reference, or a dict that says more.

    In a dict numbers are milliseconds and text is a duration; ToolError if it makes no sense, or
    names another call than this one.
    """
    if value is None or isinstance(value, str):
        return Deferred(external_ref=_text(value) if value else None)
    if isinstance(value, Deferred):
        return value
    if not isinstance(value, Mapping):
        raise _senseless(f"returned {type(value).__name__}, not text, a dict or None")
    _check_keys(value, pending_id)
    estimate = _milliseconds(value, "estimatedDuration")
    return Deferred(
        external_ref=_optional_text(value, "externalRef"),
        output=_optional_text(value, "output"),
        estimated_duration_ms=None if isinstance(estimate, EllipsisType) else estimate,
        timeout_ms=_milliseconds(value, "timeout"),
    )


def _text(value: Any) -> str:
    plain = value.value if isinstance(value, Enum) else value
    if plain is None:
        return NO_OUTPUT
    if isinstance(plain, str):
        # Half a character (a lone surrogate) cannot be stored or sent.
        return plain.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    if isinstance(plain, (bytes, bytearray, memoryview)):
        return f"[{len(bytes(plain))} bytes; a tool shows bytes by returning a File]"
    return _json_text(plain)


def _json_text(value: Any) -> str:
    from pydantic_core import to_json  # late: loads slowly

    try:
        shown = to_json(
            _without_files(value),
            bytes_mode="base64",
            inf_nan_mode="strings",
            serialize_unknown=True,
        )
        return shown.decode()
    except Exception as error:  # noqa: BLE001 - whatever the user's types do
        return f"[{type(value).__name__} that cannot be shown: {type(error).__name__}]"


def _without_files(value: Any) -> Any:
    """The same with a mark for each File: its bytes are not for reading."""
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
        raise _senseless(f"returned unknown keys: {', '.join(unknown)}")
    if value.get("async", True) is not True:
        raise _senseless("returned async that is not true")
    named = value.get("pendingID", pending_id)
    if named != pending_id:
        raise _senseless(f"returned pendingID {named!r}, but its call is {pending_id!r}")


def _optional_text(value: Mapping[str, Any], key: str) -> str | None:
    text = value.get(key)
    if text is not None and not isinstance(text, str):
        raise _senseless(f"returned {key} that is not text")
    return None if text is None else _text(text)


def _milliseconds(value: Mapping[str, Any], key: str) -> int | EllipsisType | None:
    """`...` if it is not said; None and 0 are both: no limit."""
    said = value.get(key, ...)
    if said is None or said is ...:
        return said
    if isinstance(said, (int, float)) and not isinstance(said, bool) and 0 <= said <= MAX_MS:
        return round(said) or None
    if isinstance(said, (str, timedelta)):
        try:
            return parse_duration(said) or None
        except Refused as error:
            raise _senseless(f"returned {key}: {error.message}") from error
    raise _senseless(f"returned {key} {said!r}, which is not a duration")


def _senseless(what: str) -> ToolError:
    return ToolError(
        f"the deferred tool {what}",
        code="DEFERRED_INVALID",
        hint=f"return the external reference, or a dict with any of {', '.join(_KEYS)}",
    )
