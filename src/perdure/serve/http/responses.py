"""Responses and request bodies of routes: JSON by one encoder, and their OpenAPI schemas."""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final, TypeVar, get_args, get_origin

import msgspec
from fastapi import Response

from perdure.core.json_depth import check_body_depth
from perdure.errors import Refused

T = TypeVar("T")
Schema = Mapping[str, Any]

ERROR: Final[Schema] = {
    "type": "object",
    "properties": {
        "error": {"type": "string"},
        "code": {"type": "string"},
        "hint": {"type": "string"},
        "details": {"type": "object"},
    },
    "required": ["error", "code", "hint", "details"],
}
_UNKNOWN_FIELD: Final = re.compile(
    r"Object contains unknown field `(.*?)`(?: - at `([^`]*)`)?", re.DOTALL
)
_STEP: Final = re.compile(r"(\w+)|\[(\d+)\]")  # of a path: a key, or an index of a list
_NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError)
_MAX_NAMES: Final = 20
ANYWHERE: Final = (400, 401, 403, 413, 429, 500, 503)  # errors that any route may return
_ERRORS: Final[Mapping[int, str]] = {
    400: "The request is malformed or refused.",
    401: "The token or signature is missing or not valid.",
    403: "The principal, the host or the origin is not allowed to do this.",
    404: "The resource does not exist, or this principal may not see it.",
    409: "The resource is in another state, or another caller was first; details name the winner.",
    413: "The body, or a part of it, is too large.",
    429: "Too many requests; Retry-After says when to try again.",
    500: "An unexpected error; see the server's log.",
    503: "The store is not available; nothing was changed unless the hint says to check.",
}


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


def responses(schemas: Mapping[int, Schema], *errors: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses=` of a route: its own schemas, these errors, and those of any route."""
    by_status: dict[int | str, dict[str, Any]] = {}
    for status, schema in schemas.items():
        by_status[status] = _response(HTTPStatus(status).phrase, schema)
    for status in sorted({*errors, *ANYWHERE}):
        by_status[status] = _response(_ERRORS[status], {"$ref": "#/components/schemas/Error"})
    return by_status


def _response(description: str, schema: Schema) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def request_body(body_type: Any, *, optional: bool = False) -> dict[str, Any]:
    """Return the `openapi_extra=` of a route that decodes its body as this type."""
    return body_extra(json_schema(body_type), optional=optional)


def body_extra(schema: Mapping[str, Any], *, optional: bool = False) -> dict[str, Any]:
    """Return the `openapi_extra=` of a route whose body has this schema."""
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"content": content, "required": not optional}}


def json_schema(value_type: Any) -> dict[str, Any]:
    """Return the JSON schema of a type, without references."""
    (schema,), components = msgspec.json.schema_components([value_type], ref_template="{name}")
    return dict(_inline_references(schema, components))


def _inline_references(schema: Any, components: Mapping[str, Any]) -> Any:
    match schema:
        case {"$ref": str(name)}:
            return _inline_references(components[name], components)
        case dict():
            return {key: _inline_references(value, components) for key, value in schema.items()}
        case list():
            return [_inline_references(item, components) for item in schema]
        case _:
            return schema


def page_schema(name: str, item: Schema, *counts: str) -> Schema:
    """Return the schema of a page: items, perhaps counts, and the cursor of the next page."""
    properties: dict[str, Any] = {
        name: {"type": "array", "items": item},
        **{key: {"type": "integer"} for key in counts},
        "next": {"type": ["string", "null"]},
    }
    return {"type": "object", "properties": properties, "required": list(properties)}


def object_schema(required: Iterable[str] = (), **properties: Schema) -> Schema:
    """Return the schema of an object."""
    return {"type": "object", "properties": properties, "required": list(required)}


def decode_body(raw: bytes, body_type: type[T]) -> T:
    """Decode a body as this type. Raises Refused, which names the place of the error."""
    check_body_depth(raw, "the body")
    try:
        return msgspec.json.decode(raw, type=body_type)
    except msgspec.ValidationError as error:
        message = f"the body is not valid: {error}"
        if _UNKNOWN_FIELD.fullmatch(str(error)) and (unknown := _unknown_keys(raw, body_type)):
            message = f"unknown keys: {', '.join(unknown)}"
        hint = f"send {body_shape(body_type)}; a key with ? may be left out"
        raise Refused(message, code="BODY_INVALID", hint=hint) from error
    except _NOT_JSON as error:
        raise _not_json(error) from error


def _not_json(error: Exception) -> Refused:
    return Refused(
        f"the body is not JSON: {error}", code="BODY_INVALID", hint="send one object of JSON"
    )


def body_shape(body_type: Any) -> str:
    """Return the keys of a body, as in `{pendingID, result: {output, title?}, by?}`."""
    keys = []
    for item in msgspec.structs.fields(body_type):
        name = item.encode_name if item.required else f"{item.encode_name}?"
        inner = _value_shape(item.type)
        keys.append(name if inner is None else f"{name}: {inner}")
    return f"{{{', '.join(keys)}}}"


def _value_shape(value_type: Any) -> str | None:
    """Return the shape of an object, or of a list of them; None for every other type."""
    if isinstance(value_type, type) and issubclass(value_type, msgspec.Struct):
        return body_shape(value_type)
    shape = next(filter(None, map(_value_shape, get_args(value_type))), None)
    return f"[{shape}]" if shape and get_origin(value_type) is list else shape


def _unknown_keys(raw: bytes, body_type: Any) -> list[str]:
    """Return every key that the type does not have: the decoder names only the first."""
    names: list[str] = []
    try:
        value = msgspec.json.decode(raw)
    except _NOT_JSON as error:  # after the unknown key, where the decoder stopped
        raise _not_json(error) from error
    while len(names) < _MAX_NAMES:
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
