"""Responses and request bodies of routes: JSON by one encoder, and errors that name each key."""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar, get_args, get_origin

import msgspec
from starlette.responses import Response

from perdure.core.json_depth import check_body_depth
from perdure.errors import Refused

T = TypeVar("T")

_UNKNOWN_FIELD: Final = re.compile(
    r"Object contains unknown field `(.*?)`(?: - at `([^`]*)`)?", re.DOTALL
)
_FLOAT: Final = re.compile(
    r"Expected `int(?: \| null)?`, got `float` - at `\$(?P<parent>.*)\.(?P<name>\w+)`"
)
_STEP: Final = re.compile(r"(\w+)|\[(\d+)\]")  # of a path: a key, or an index of a list
_NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError)
MAX_NAMES: Final = 20  # of wrong keys in one error


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with a JSON body."""
    body = msgspec.json.encode(value, enc_hook=str)
    if headers:
        return Response(body, status, headers=headers, media_type="application/json")
    return _JsonResponse(body, status)


class _JsonResponse(Response):
    """Response of JSON with two headers, which the base class would assemble step by step."""

    media_type = "application/json"

    def __init__(self, body: bytes, status: int) -> None:  # the base class has nothing else to set
        self.body, self.status_code, self.background = body, status, None
        length = (b"content-length", b"%d" % len(body))
        self.raw_headers = [length, (b"content-type", b"application/json")]


def decode_body(raw: bytes, body_type: type[T]) -> T:
    """Decode a body as this type. Raises Refused, which names the place of the error."""
    check_body_depth(raw, "the body")
    try:
        return msgspec.json.decode(raw, type=body_type)
    except msgspec.ValidationError as error:
        first = error
    except _NOT_JSON as error:
        raise _not_json(error) from error
    try:
        return _with_whole_numbers(raw, body_type, first)
    except msgspec.ValidationError as error:
        message = f"the body is not valid: {error}"
        if _UNKNOWN_FIELD.fullmatch(str(error)) and (unknown := _unknown_keys(raw, body_type)):
            message = f"unknown keys: {', '.join(unknown)}"
        hint = f"send {body_shape(body_type)}; a key with ? may be left out"
        raise Refused(message, code="BODY_INVALID", hint=hint) from error


def _with_whole_numbers(raw: bytes, body_type: type[T], error: msgspec.ValidationError) -> T:
    """Return a body in which whole numbers are written as `5.0`, as JSON allows.

    No other number is changed: an argument of a tool stays `5.0`. Raises `error`, or the next one.
    """
    body: Any = None
    while match := _FLOAT.fullmatch(str(error)):
        body = _decode_json(raw) if body is None else body
        parent, name = _value_at(body, match["parent"]), match["name"]
        if not isinstance(parent.get(name), float) or not parent[name].is_integer():
            break
        parent[name] = int(parent[name])
        try:
            return msgspec.convert(body, body_type)
        except msgspec.ValidationError as following:
            error = following
    raise error


def _decode_json(raw: bytes) -> Any:
    """Return a body of which the decoder has read only a part. Raises Refused."""
    try:
        return msgspec.json.decode(raw)
    except _NOT_JSON as error:
        raise _not_json(error) from error


def _not_json(error: Exception) -> Refused:
    return Refused(
        f"the body is not JSON: {error}", code="BODY_INVALID", hint="send one object of JSON"
    )


def body_shape(body_type: Any) -> str:
    """Return the keys of a body, required ones first: `{pendingID, result: {output}, by?}`."""
    keys = []
    config = body_type.__struct_config__
    if config.tag is not None:
        keys.append(f"{config.tag_field}: {config.tag}")
    for item in sorted(msgspec.structs.fields(body_type), key=lambda item: not item.required):
        name = item.encode_name if item.required else f"{item.encode_name}?"
        inner = _value_shape(item.type)
        keys.append(name if inner is None else f"{name}: {inner}")
    return f"{{{', '.join(keys)}}}"


def _value_shape(value_type: Any) -> str | None:
    """Return the shape of an object, or of a list of them; None for every other type."""
    if isinstance(value_type, type) and issubclass(value_type, msgspec.Struct):
        return body_shape(value_type)
    shapes = list(filter(None, map(_value_shape, get_args(value_type))))
    shape = " or ".join(shapes)
    return f"[{shape}]" if shape and get_origin(value_type) is list else shape or None


def _unknown_keys(raw: bytes, body_type: Any) -> list[str]:
    """Return every key that the type does not have: the decoder names only the first."""
    names: list[str] = []
    value = _decode_json(raw)
    while len(names) < MAX_NAMES:
        try:
            msgspec.convert(value, body_type)
        except msgspec.ValidationError as error:
            match = _UNKNOWN_FIELD.fullmatch(str(error))
            if match is None:
                break
            name, path = match[1], (match[2] or "").removeprefix("$").removeprefix(".")
            parent = _value_at(value, path)
            if name not in parent:
                break
            del parent[name]
            names.append(f"{path}.{name}" if path else name)
        else:
            break
    return names


def _value_at(value: Any, path: str) -> Any:
    """Return the object at a path of the decoder, such as `decisions[0].args`; empty if none is."""
    for key, index in _STEP.findall(path):
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and index:
            value = value[int(index)]
    return value if isinstance(value, dict) else {}
