"""Reference of the HTTP API, from the OpenAPI description that the server itself serves."""

from collections.abc import Iterator
from typing import Any

from scripts.docs.python import NOTE

from perdure.serve.http.app import ROUTES
from perdure.serve.http.openapi import description

METHODS = ("get", "post", "put", "patch", "delete")


def page() -> str:
    """Every operation: what it does, its parameters, its body and its responses."""
    document = description(ROUTES)
    parts = [
        NOTE,
        "# HTTP API",
        "The server describes itself at `/openapi.json` and `/docs`.",
        *_operations(document),
        "# Types",
        *_types(document),
    ]
    return "\n\n".join(parts) + "\n"


def _operations(document: dict[str, Any]) -> Iterator[str]:
    for path, methods in sorted(document["paths"].items()):
        for method in METHODS:
            if method in methods:
                yield f"## `{method.upper()} {path}`"
                yield from _operation(methods[method], document)


def _operation(operation: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    yield "\n\n".join(
        t for t in (operation.get("summary", ""), operation.get("description", "")) if t
    )
    rows = [_parameter(parameter) for parameter in operation.get("parameters", ())]
    rows += [row for media in _bodies(operation) for row in _body(media, document)]
    if rows:
        yield "\n".join(("| where | name | type | |", "|---|---|---|---|", *rows))
    codes = [_response(code, item) for code, item in sorted(operation["responses"].items())]
    yield f"Responses: {', '.join(codes)}"


def _response(code: str, response: dict[str, Any]) -> str:
    """A status, with the name of its type unless it is an error."""
    media: list[Any] = [item["schema"] for item in response.get("content", {}).values()]
    return f"`{code}` {_type(media[0])}" if media and code < "400" else f"`{code}`"


def _types(document: dict[str, Any]) -> Iterator[str]:
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield f"## {name}"
        yield " ".join(schema.get("description", "").split())
        required = schema.get("required", ())
        rows = [
            f"| `{key}` | {_type(item)} | {'' if key in required else 'optional'} |"
            for key, item in schema.get("properties", {}).items()
        ]
        yield "\n".join(("| name | type | |", "|---|---|---|", *rows))


def _bodies(operation: dict[str, Any]) -> list[Any]:
    return [
        m.get("schema", {}) for m in operation.get("requestBody", {}).get("content", {}).values()
    ][:1]


def _parameter(parameter: dict[str, Any]) -> str:
    text = parameter.get("description", "")
    kind = _type(parameter.get("schema", {}))
    return f"| {parameter['in']} | `{parameter['name']}` | {kind} | {_cell(text)} |"


def _body(schema: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    schema = _resolved(schema, document)
    needed = schema.get("required", ())
    for name, value in schema.get("properties", {}).items():
        text = _resolved(value, document).get("description", "") or value.get("description", "")
        mark = "required. " if name in needed else ""
        yield f"| body | `{name}` | {_type(value)} | {_cell(mark + text)} |"


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    value: Any = document
    for key in reference.removeprefix("#/").split("/"):
        value = value[key]
    return dict(value)


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if "enum" in schema:
        return " \\| ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "anyOf" in schema:
        return " \\| ".join(_type(choice) for choice in schema["anyOf"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {_type(schema.get('items', {}))}"
    return " \\| ".join(kind) if isinstance(kind, list) else str(kind)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
