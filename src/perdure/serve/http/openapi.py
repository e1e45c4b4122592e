"""The API's own description, and where one begins to look."""

from importlib.metadata import version
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from perdure.serve.http import docs_page
from perdure.serve.http.dependencies import TENANT, Requires
from perdure.serve.http.responses import ERROR, answers, reply, shape

router = APIRouter(tags=["about"])

_SPOILED: Final = "422"  # what the framework would answer; ours are 400
_LINKS: Final = ("sessions", "pending", "agents", "openapi.json", "docs")


@router.get("/", responses=answers({200: shape(("name", "version", "links"))}))
async def about(request: Request) -> Response:
    """What this is, and where to go on."""
    root = request.scope.get("root_path", "")
    links = {name: f"{root}/{name}" for name in _LINKS}
    return reply({"name": "perdure", "version": version("perdure"), "links": links})


@router.get("/openapi.json", responses=answers({200: {"type": "object"}}))
async def openapi(request: Request) -> Response:
    """What every route takes and answers."""
    return reply({**description(request.app), "servers": [{"url": _root(request)}]})


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """The description, as a page."""
    return docs_page.page(description(request.app))


def _root(request: Request) -> str:
    return request.scope.get("root_path", "") or "/"


def description(app: FastAPI) -> dict[str, Any]:
    """What every route takes and every status that it can answer."""
    if app.openapi_schema is None:
        app.openapi_schema = _described(app)
    return app.openapi_schema


def _described(app: FastAPI) -> dict[str, Any]:
    made = get_openapi(title="perdure", version=version("perdure"), routes=app.routes)
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Error"] = dict(ERROR)
    made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for route in app.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method in route.methods or ():
                _finish(made["paths"][route.path][method.lower()], route)
    return made


def _finish(operation: dict[str, Any], route: APIRoute) -> None:
    """Take out what the framework would do and we do not, and say who may."""
    operation["responses"].pop(_SPOILED, None)
    for parameter in operation.get("parameters", ()):
        parameter["schema"] = _sendable(parameter["schema"])
    if needs_of(route) is not None:
        operation["security"] = [{"token": []}]
        operation["parameters"] = [*operation.get("parameters", ()), TENANT]


def _sendable(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a parameter without null: one that is not there is not sent."""
    kinds = [one for one in schema.pop("anyOf", ()) if one != {"type": "null"}]
    more: dict[str, Any] = {"anyOf": kinds} if len(kinds) > 1 else dict(*kinds)
    return {**schema, **more}


def needs_of(route: APIRoute) -> Requires | None:
    """What a route demands of who asks; None if it is open to everybody."""
    calls = [one.call for one in route.dependant.dependencies]
    return next((call for call in calls if isinstance(call, Requires)), None)
