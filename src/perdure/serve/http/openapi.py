"""The OpenAPI description of the API, as JSON and as a page without scripts."""

import json
from collections.abc import Iterator, Mapping
from html import escape
from importlib.metadata import version
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from perdure.serve.http.dependencies import TENANT, Requires
from perdure.serve.http.responses import ERROR, json_response, object_schema, responses

router = APIRouter(tags=["about"])

_VALIDATION_ERROR: Final = "422"  # FastAPI's status for a bad request; ours is 400
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


@router.get("/", responses=responses({200: object_schema(("name", "version", "links"))}))
async def about(request: Request) -> Response:
    """Return the version and links to the main resources."""
    root = request.scope.get("root_path", "")
    links = {name: f"{root}/{name}" for name in _LINKS}
    return json_response({"name": "perdure", "version": version("perdure"), "links": links})


@router.get("/openapi.json", responses=responses({200: {"type": "object"}}))
async def openapi(request: Request) -> Response:
    """Return the OpenAPI description of every route."""
    return json_response({**description(request.app), "servers": [{"url": _root(request)}]})


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """Return the description as a page."""
    return _page(description(request.app))


def _root(request: Request) -> str:
    return request.scope.get("root_path", "") or "/"


def description(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description of an application."""
    if app.openapi_schema is None:
        app.openapi_schema = _describe(app)
    return app.openapi_schema


def _describe(app: FastAPI) -> dict[str, Any]:
    schema = get_openapi(title="perdure", version=version("perdure"), routes=app.routes)
    components = schema.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        components.pop(name, None)
    components["Error"] = dict(ERROR)
    schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for route in app.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method in route.methods or ():
                _finish(schema["paths"][route.path][method.lower()], route)
    return schema


def _finish(operation: dict[str, Any], route: APIRoute) -> None:
    """Correct what the framework assumes, and add the token that the route requires."""
    operation["responses"].pop(_VALIDATION_ERROR, None)
    for parameter in operation.get("parameters", ()):
        parameter["schema"] = _without_null(parameter["schema"])
    if route_requirement(route) is not None:
        operation["security"] = [{"token": []}]
        operation["parameters"] = [*operation.get("parameters", ()), TENANT]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter without null, which a client cannot send."""
    choices = [choice for choice in schema.pop("anyOf", ()) if choice != {"type": "null"}]
    types: dict[str, Any] = {"anyOf": choices} if len(choices) > 1 else dict(*choices)
    return {**schema, **types}


def route_requirement(route: APIRoute) -> Requires | None:
    """Return the permit that a route requires; None if it is open to all callers."""
    calls = [dependency.call for dependency in route.dependant.dependencies]
    return next((call for call in calls if isinstance(call, Requires)), None)


# --- the page -------------------------------------------------------------------------------------


def _page(description: Mapping[str, Any]) -> Response:
    """Return the page of a description."""
    body = _HEAD + "\n".join(_sections(description)) + "</body></html>"
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
        yield _operation(f"{method.upper()} {path}", operation)


def _operation(name: str, operation: Mapping[str, Any]) -> str:
    no_token = "" if "security" in operation else "<p><em>Needs no token.</em></p>"
    text = escape(operation.get("description", ""))
    return (
        f"<section><h3>{escape(name)}</h3><p>{text}</p>{no_token}"
        f"{_parameters(operation.get('parameters', []))}{_body(operation)}"
        f"{_responses(operation['responses'])}</section>"
    )


def _parameters(parameters: list[Mapping[str, Any]]) -> str:
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
    (content,) = operation["requestBody"]["content"].values()
    schema = content["schema"]
    return f"<details><summary>Body</summary>{_schema(schema)}</details>"


def _responses(responses: Mapping[str, Any]) -> str:
    lines = []
    for status, response in sorted(responses.items()):
        content = [*response.get("content", {}).values(), {}]
        schema = content[0].get("schema", {})
        body = "" if "$ref" in schema or not schema else _schema(schema)
        lines.append(f"<dt>{escape(status)}</dt><dd>{escape(response['description'])}{body}</dd>")
    return f"<details><summary>Responses</summary><dl>{''.join(lines)}</dl></details>"


def _schema(schema: Any) -> str:
    return f"<pre>{escape(json.dumps(schema, indent=2, ensure_ascii=False))}</pre>"
