"""What routes answer and take: JSON by one encoder, and how the API's description says it."""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec
from fastapi import Response

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
_UNKNOWN: Final = re.compile(
    r"Object contains unknown field `(.*?)`(?: - at `([^`]*)`)?", re.DOTALL
)
_MOST_NAMED: Final = 20
ANYWHERE: Final = (400, 401, 403, 413, 429, 500, 503)  # what the frame may answer on any route
_ERRORS: Final[Mapping[int, str]] = {
    400: "The request is malformed, or what it asks for is refused.",
    401: "No token, or no signature, that is known here.",
    403: "The principal, the host or the origin may not do this.",
    404: "There is no such thing, or not for this principal.",
    409: "Somebody else was first, or the thing is in another state; details say who won.",
    413: "The body, or a part of it, is too large.",
    429: "Too many requests; Retry-After says when to come back.",
    500: "Something unforeseen; the server's log says what.",
    503: "The store cannot be used now; nothing was changed unless the hint says to look.",
}


def reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    body = msgspec.json.encode(value, enc_hook=str)
    return Response(body, status, headers=headers, media_type="application/json")


def answers(shapes: Mapping[int, Schema], *errors: int) -> dict[int | str, dict[str, Any]]:
    """The `responses=` of a route: its own shapes, these errors, and what any route may answer."""
    told: dict[int | str, dict[str, Any]] = {}
    for status, schema in shapes.items():
        told[status] = _response(HTTPStatus(status).phrase, schema)
    for status in sorted({*errors, *ANYWHERE}):
        told[status] = _response(_ERRORS[status], {"$ref": "#/components/schemas/Error"})
    return told


def _response(description: str, schema: Schema) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def taking(shape: Any, *, optional: bool = False) -> dict[str, Any]:
    """The `openapi_extra=` of a route that reads its body as this shape."""
    content = {"application/json": {"schema": schema_of(shape)}}
    return {"requestBody": {"content": content, "required": not optional}}


def schema_of(shape: Any) -> dict[str, Any]:
    """The JSON schema of a type, with nothing referred to."""
    (schema,), parts = msgspec.json.schema_components([shape], ref_template="{name}")
    inlined = _inlined(schema, parts)
    return dict(inlined)


def _inlined(schema: Any, parts: Mapping[str, Any]) -> Any:
    match schema:
        case {"$ref": str(name)}:
            return _inlined(parts[name], parts)
        case dict():
            return {key: _inlined(value, parts) for key, value in schema.items()}
        case list():
            return [_inlined(one, parts) for one in schema]
        case _:
            return schema


def listing(name: str, item: Schema, *more: str) -> Schema:
    """The shape of a page: items, perhaps how many there are, and the cursor of the next."""
    properties: dict[str, Any] = {
        name: {"type": "array", "items": item},
        **{key: {"type": "integer"} for key in more},
        "next": {"type": ["string", "null"]},
    }
    return {"type": "object", "properties": properties, "required": list(properties)}


def shape(required: Iterable[str] = (), **properties: Schema) -> Schema:
    """The shape of an object."""
    return {"type": "object", "properties": properties, "required": list(required)}


def decoded(raw: bytes, shape: type[T]) -> T:
    """A body as this shape. Raises Refused, saying where it is not."""
    try:
        return msgspec.json.decode(raw, type=shape)
    except msgspec.ValidationError as error:
        why = f"the body is not right: {error}"
        if _UNKNOWN.fullmatch(str(error)):
            why = f"unknown keys: {', '.join(_unknown_keys(raw, shape))}"
        raise Refused(why, code="BODY_INVALID") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"the body is no JSON: {error}", code="BODY_INVALID") from error


def _unknown_keys(raw: bytes, shape: Any) -> list[str]:
    """Every key that the shape does not have: the decoder only names the first."""
    names: list[str] = []
    try:
        value = msgspec.json.decode(raw)
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
    ) as error:  # behind the key that was found
        raise Refused(f"the body is no JSON: {error}", code="BODY_INVALID") from error
    while len(names) < _MOST_NAMED:
        try:
            msgspec.convert(value, shape)
        except msgspec.ValidationError as error:
            found = _UNKNOWN.fullmatch(str(error))
            if found is None:
                break
            name, way = found[1], (found[2] or "").split(".")[1:]
            holder = value
            for key in way:
                holder = holder.get(key, {}) if isinstance(holder, dict) else {}
            if name not in holder:
                break
            del holder[name]
            names.append(".".join([*way, name]))
        else:
            break
    return names
