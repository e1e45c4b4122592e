"""Routes that are served without the framework: they take a scope, ids, and a message key.

FastAPI takes as long for a request as all that perdure does with it: layers of middleware, the
solution of dependencies, stacks of contexts. A route with these parameters only needs none of
that. FastAPI serves all others, and describes every route on the OpenAPI page.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from re import Pattern
from typing import Any, Final, get_type_hints
from urllib.parse import unquote

from fastapi import FastAPI, Request, Response
from fastapi.params import Depends
from fastapi.routing import APIRoute

from perdure.serve.http.dependencies import KEY_HEADER, MAX_QUOTED_ID, Id, Key, Requires
from perdure.serve.http.middleware import ROUTE_PATH, Receive, Scope, Send

Endpoint = Callable[..., Awaitable[Response]]

_SCOPE: Final = "scope"  # the name of the parameter that every such route has


@dataclass(frozen=True, slots=True)
class DirectRoute:
    """Route whose function takes the scope of a caller, ids of the path, and a message key."""

    requires: Requires
    function: Endpoint
    key_name: str | None  # of the parameter for the message key

    async def respond(self, request: Request, quoted: dict[str, str]) -> Response:
        """Return the response. Raises PerdureError, as the function does."""
        scope = await self.requires(request)
        values: dict[str, str | None] = {name: unquote(text) for name, text in quoted.items()}
        if self.key_name is not None:
            values[self.key_name] = request.headers.get(KEY_HEADER)
        return await self.function(scope, **values)


@dataclass(frozen=True, slots=True)
class _AnyRoute:
    """Route of the application; `direct` is None for one that only the framework serves."""

    methods: frozenset[str]
    pattern: Pattern[str]
    direct: DirectRoute | None


class DirectRoutes:
    """ASGI application that serves direct routes itself, and leaves all others to FastAPI."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        # In the order of the application: of two routes that match, the first is meant.
        self._routes = _all_routes([route for route in app.routes if isinstance(route, APIRoute)])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        choice = self._find(scope) if scope["type"] == "http" else None
        if choice is None:
            await self._app(scope, receive, send)
            return
        direct, quoted = choice
        scope["app"], scope["path_params"] = self._app, quoted
        response = await direct.respond(Request(scope, receive, send), quoted)
        await response(scope, receive, send)

    def _find(self, scope: Scope) -> tuple[DirectRoute, dict[str, str]] | None:
        method, path = scope["method"], scope[ROUTE_PATH]
        for route in self._routes:
            if method in route.methods and (match := route.pattern.match(path)):
                quoted = match.groupdict()
                # The framework answers an id that is too long, as it does other parameters.
                is_short = all(len(text) <= MAX_QUOTED_ID for text in quoted.values())
                return None if route.direct is None or not is_short else (route.direct, quoted)
        return None


def _all_routes(routes: Sequence[APIRoute]) -> tuple[_AnyRoute, ...]:
    return tuple(
        _AnyRoute(frozenset(route.methods or ()), route.path_regex, direct_route(route.endpoint))
        for route in routes
    )


def direct_route(function: Endpoint) -> DirectRoute | None:
    """Return the direct route of a function; None if it takes parameters of another kind."""
    hints: dict[str, Any] = get_type_hints(function, include_extras=True)
    hints.pop("return", None)
    requires = _requirement(hints.pop(_SCOPE, None))
    if requires is None or any(hint not in (Id, Key) for hint in hints.values()):
        return None
    return DirectRoute(requires, function, next((n for n, h in hints.items() if h == Key), None))


def _requirement(hint: Any) -> Requires | None:
    for item in getattr(hint, "__metadata__", ()):
        if isinstance(item, Depends) and isinstance(item.dependency, Requires):
            return item.dependency
    return None
