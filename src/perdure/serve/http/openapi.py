"""The OpenAPI description of the API, from the table of routes, as JSON and as a page."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.metadata import version
from inspect import cleandoc
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from perdure.serve.http.dependencies import get_app_state
from perdure.serve.http.responses import json_response
from perdure.serve.http.table import Binary, EventStream, PlainText, Route, path_type, tagged
from perdure.views.base import Error, View
from perdure.views.bodies import ID_PATTERN
from perdure.views.literals import MAX_ID

ANYWHERE: Final = (400, 401, 403, 405, 413, 429, 500, 503)  # errors that any route may return
_ERRORS: Final[Mapping[int, str]] = {
    400: "The request is malformed or refused.",
    401: "The token or signature is missing or not valid.",
    403: "The principal, the host or the origin is not allowed to do this.",
    404: "The resource does not exist, or this principal may not see it.",
    405: "The path does not accept the method; Allow names those that it accepts.",
    409: "The resource is in another state, or another caller was first; details name the winner.",
    413: "The body, or a part of it, is too large.",
    429: "Too many requests; Retry-After says when to try again.",
    500: "An unexpected error; see the server's log.",
    503: "The store is not available; nothing was changed unless the hint says to check.",
}
_CONTENTS: Final[Mapping[type, tuple[str, dict[str, Any]]]] = {
    Binary: ("application/octet-stream", {"type": "string", "format": "binary"}),
    EventStream: ("text/event-stream", {"type": "string"}),
    PlainText: ("text/plain", {"type": "string"}),
}
_JSON: Final = "application/json"
_REF: Final = "#/components/schemas/"
_NAMES: Final[Mapping[str, str]] = {"Result": "Session"}  # of types that are called otherwise here
_ID: Final[dict[str, Any]] = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_ID,
    "pattern": ID_PATTERN,
}
_TENANT: Final[dict[str, Any]] = {
    "name": "tenant",
    "in": "query",
    "required": False,
    "description": "The tenant to work in; only for principals without a tenant of their own.",
    "schema": {"type": "string", "maxLength": MAX_ID, "pattern": ID_PATTERN},
}
_ALLOW: Final[dict[str, Any]] = {
    "description": "The methods that the path accepts; HEAD wherever it accepts GET.",
    "schema": {"type": "string"},
}
_KEPT: Final = "openapi"
_LINKS: Final = ("sessions", "pending", "agents", "openapi.json", "docs")
_HEAD: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>perdure: HTTP</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
section { border-top: 1px solid #8886; padding: .5rem 0 }
h3 { font: 600 1rem ui-monospace, monospace; margin: .5rem 0 }
pre { background: #8882; padding: .5rem; overflow: auto }
dt { font-family: ui-monospace, monospace } dd { margin: 0 0 .3rem 1.5rem }
:root { color-scheme: light dark }
</style></head><body>
<h1>perdure</h1>
<p>JSON over HTTP. Tokens go as <code>Authorization: Bearer TOKEN</code>. Every error is
<code>{"error", "code", "hint", "details"}</code>.
For programs: <a href="openapi.json">OpenAPI</a>.</p>
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"


class About(View, frozen=True, kw_only=True):
    """The version of a server, and links to its main resources."""

    name: str = "perdure"
    version: str
    links: dict[str, str]


async def about(request: Request) -> Response:
    """Return the version and links to the main resources."""
    root = request.scope.get("root_path", "")
    links = {name: f"{root}/{name}" for name in _LINKS}
    return json_response(About(version=version("perdure"), links=links))


async def openapi(request: Request) -> Response:
    """Return the OpenAPI description of every route."""
    root = request.scope.get("root_path", "") or "/"
    return json_response({**_description(request), "servers": [{"url": root}]})


async def docs(request: Request) -> Response:
    """Return the description as a page."""
    return _page(_description(request))


def _description(request: Request) -> dict[str, Any]:
    app_state = get_app_state(request)
    if _KEPT not in app_state.kept:
        table = request.scope["app"].table
        app_state.kept[_KEPT] = description(table, has_tokens=app_state.has_tokens)
    kept: dict[str, Any] = app_state.kept[_KEPT]
    return kept


# --- the description ------------------------------------------------------------------------------


def description(table: tuple[Route, ...], *, has_tokens: bool = True) -> dict[str, Any]:
    """Return the OpenAPI description of a table of routes, in which every type has a name."""
    described = [route for route in table if route.is_described and route.run is not None]
    schemas = _Schemas(described)
    paths: dict[str, Any] = {}
    for route in described:
        operation = _operation(route, schemas, has_tokens=has_tokens)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    components: dict[str, Any] = {"schemas": schemas.components}
    if has_tokens:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    info = {"title": "perdure", "version": version("perdure")}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


class _Schemas:
    """Schemas of the types in a table, under their names."""

    def __init__(self, table: Sequence[Route]) -> None:
        types = dict.fromkeys(kind for route in table for kind in _json_types(route))
        schemas, components = msgspec.json.schema_components(
            [*types, Error], ref_template=_REF + "{name}"
        )
        views = {view.__name__ for view in _subclasses(View)}
        self._by_type = dict(zip([*types, Error], _renamed(schemas), strict=True))
        self.queries = {
            route.query: components.pop(route.query.__name__)
            for route in table
            if route.query is not None and route.query.__name__ in components
        }
        shown = {
            _NAMES.get(name, name): _readable(_complete(schema) if name in views else schema)
            for name, schema in _renamed(components).items()
        }
        for name, condition in _CONDITIONS.items():
            if name in shown:
                shown[name] |= condition
        self.components = dict(sorted(shown.items()))

    def of(self, kinds: Sequence[Any]) -> dict[str, Any]:
        """Return the schema of one of these types."""
        schemas = [self._by_type[kind] for kind in kinds]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _json_types(route: Route) -> Iterator[Any]:
    bodies = route.body_types or (() if route.body is None else (route.body,))
    kinds = [*bodies, *(() if route.query is None else (route.query,))]
    for value in route.returns.values():
        kinds += value if isinstance(value, tuple) else (value,)
    yield from (kind for kind in kinds if kind not in _CONTENTS)


def _subclasses(kind: type[View]) -> Iterator[type[View]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _complete(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a view, in which every field is present."""
    properties = {
        name: {key: value for key, value in item.items() if key != "default"}
        for name, item in schema["properties"].items()
    }
    return {**schema, "properties": properties, "required": list(properties)}


def _readable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type; its docstring without the indentation of the source."""
    text = schema.get("description")
    return schema if text is None else {**schema, "description": cleandoc(text)}


def _exactly_one(keys: Sequence[str]) -> dict[str, Any]:
    """Return what a schema adds for keys of which an object has exactly one.

    `oneOf` would say it in one word, but generators make a union without fields of it.
    """
    first, *rest = keys
    others = [{"required": [key]} for key in rest]
    none = {"not": {"anyOf": others}}
    return {"if": {"required": [first]}, "then": none, "else": {"oneOf": others}}


def _needs(key: str, needed: str) -> dict[str, Any]:
    """Return what a schema adds for a key whose text needs that of another."""
    has_key, has_needed = (
        {"properties": {name: {"type": "string"}}, "required": [name]} for name in (key, needed)
    )
    return {"if": has_key, "then": has_needed}


_CONDITIONS: Final = {  # of types, by their names: keys that depend on each other
    "FileIn": _exactly_one(("data", "url", "blob")),
    "NewSessionBody": _needs("notify_secret", "notify_url"),
}


def _renamed(value: Any) -> Any:
    """Return schemas with the names that types have here, and lists with what is in them."""
    if isinstance(value, dict):
        items: dict[str, Any] = {"items": {}} if value.get("type") == "array" else {}
        if isinstance(value.get("enum"), list):  # its words say that it is a string
            value = {key: item for key, item in value.items() if key != "type"}
        return {**items, **{key: _renamed(item) for key, item in value.items()}}
    if isinstance(value, list | tuple):
        return [_renamed(item) for item in value]
    if isinstance(value, str) and value.startswith(_REF):
        name = value.removeprefix(_REF)
        return _REF + _NAMES.get(name, name)
    return value


def _operation(route: Route, schemas: _Schemas, *, has_tokens: bool) -> dict[str, Any]:
    assert route.run is not None  # noqa: S101 - pages are not described
    text = " ".join((route.run.__doc__ or "").split())
    operation: dict[str, Any] = {
        "operationId": route.name or route.run.__name__,
        "tags": [route.tag],
        "description": text,
        "parameters": list(_parameters(route, schemas)),
        "responses": _responses(route, schemas),
    }
    if route.body is not None:
        kinds = route.body_types or (route.body,)
        content = _content(kinds, schemas)
        operation["requestBody"] = {"content": content, "required": not route.optional_body}
    if route.permit is not None and has_tokens:
        operation["security"] = [{"token": []}]
    return operation


def _parameters(route: Route, schemas: _Schemas) -> Iterator[dict[str, Any]]:
    assert route.run is not None  # noqa: S101 - pages are not described
    for name in re.findall(r"\{(\w+)\}", route.path):
        kind = path_type(route.run, name)
        schema = _ID if kind is str else msgspec.json.schema(kind)
        yield {"name": name, "in": "path", "required": True, **_described(schema)}
    if route.query is not None and route.query in schemas.queries:
        query = schemas.queries[route.query]
        for name, schema in query["properties"].items():
            if schema.get("type") != "object":  # which has parameters of its own
                required = name in query.get("required", ())
                yield {"name": name, "in": "query", "required": required, **_described(schema)}
    for header in route.headers:
        schema = {"type": "string", **({"pattern": header.pattern} if header.pattern else {})}
        text = {"description": header.description, "schema": schema}
        yield {"name": header.name, "in": "header", "required": False, **text}
    if route.permit is not None:
        yield _TENANT


def _described(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter, with its description beside it."""
    rest = {key: value for key, value in schema.items() if key != "description"}
    text = {"description": schema["description"]} if "description" in schema else {}
    return {**text, "schema": rest}


def _responses(route: Route, schemas: _Schemas) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for status, value in route.returns.items():
        kinds = value if isinstance(value, tuple) else (value,)
        text = next((kind.__doc__ for kind in kinds if kind.__doc__), "")
        content = _content(kinds, schemas)
        shown[str(status)] = {"description": " ".join((text or "OK").split()), "content": content}
    for status in sorted({*route.errors, *route_errors(route), *ANYWHERE}):
        response = {"description": _ERRORS[status], "content": _content((Error,), schemas)}
        if status == 405:
            response["headers"] = {"Allow": _ALLOW}
        shown[str(status)] = response
    return shown


def route_errors(route: Route) -> tuple[int, ...]:
    """Return the errors of every route of its kind: the tenant or the id may be unknown."""
    if route.permit is None:
        return ()
    return (404,) if route.method == "GET" else (404, 409)


def _content(kinds: Sequence[Any], schemas: _Schemas) -> dict[str, Any]:
    values = [kind for kind in kinds if kind not in _CONTENTS]
    content: dict[str, Any] = {_JSON: {"schema": schemas.of(values)}} if values else {}
    for kind in kinds:
        if kind in _CONTENTS:
            media_type, schema = _CONTENTS[kind]
            content[media_type] = {"schema": schema}
    return content


# --- the page -------------------------------------------------------------------------------------


def _page(description: Mapping[str, Any]) -> Response:
    """Return the page of a description."""
    types = description["components"]["schemas"].items()
    named = [
        f"<h3 id='{escape(name)}'>{escape(name)}</h3>{_schema(schema)}" for name, schema in types
    ]
    sections = [*_sections(description), "<h2>Types</h2>", *named]
    body = _HEAD + "\n".join(sections) + "</body></html>"
    headers = {"Content-Security-Policy": _POLICY}
    return Response(body, headers=headers, media_type="text/html; charset=utf-8")


def _sections(description: Mapping[str, Any]) -> Iterator[str]:
    tag = None
    operations = [
        (operation.get("tags", [""])[0], path, method, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    ]
    for group, path, method, operation in sorted(operations, key=lambda item: item[:3]):
        if group != tag:
            yield f"<h2>{escape(group)}</h2>"
            tag = group
        yield _operation_html(f"{method.upper()} {path}", operation)


def _operation_html(name: str, operation: Mapping[str, Any]) -> str:
    no_token = "" if "security" in operation else "<p><em>Needs no token.</em></p>"
    text = escape(operation.get("description", ""))
    return (
        f"<section><h3>{escape(name)}</h3><p>{text}</p>{no_token}"
        f"{_parameters_html(operation.get('parameters', []))}{_body(operation)}"
        f"{_responses_html(operation['responses'])}</section>"
    )


def _parameters_html(parameters: list[Mapping[str, Any]]) -> str:
    if not parameters:
        return ""
    lines = [
        f"<dt>{escape(item['name'])} <small>({escape(item['in'])})</small></dt>"
        f"<dd>{escape(item.get('description', ''))}</dd>"
        for item in parameters
    ]
    return f"<dl>{''.join(lines)}</dl>"


def _body(operation: Mapping[str, Any]) -> str:
    if "requestBody" not in operation:
        return ""
    content = next(iter(operation["requestBody"]["content"].values()))
    schema = content["schema"]
    return f"<details><summary>Body</summary>{_schema(schema)}</details>"


def _responses_html(responses: Mapping[str, Any]) -> str:
    lines = []
    for status, response in sorted(responses.items()):
        content = [*response.get("content", {}).values(), {}]
        schema = content[0].get("schema", {})
        body = "" if not schema else _schema(schema)
        lines.append(f"<dt>{escape(status)}</dt><dd>{escape(response['description'])}{body}</dd>")
    return f"<details><summary>Responses</summary><dl>{''.join(lines)}</dl></details>"


def _schema(schema: Any) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(_REF))
        return f" <a href='#{name}'>{name}</a>"
    return f"<pre>{escape(json.dumps(schema, indent=2, ensure_ascii=False))}</pre>"


ROUTES: Final = tagged(
    "about",
    Route("GET", "/", None, about, returns={200: About}),
    Route("GET", "/openapi.json", None, openapi, returns={200: dict[str, Any]}),
    Route("GET", "/docs", None, docs, is_described=False),
)
