"""The HTTP application: all routers behind one request filter, to run or to mount anywhere."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import anyio
from fastapi import APIRouter, FastAPI

from perdure.app import Runtime, service_of
from perdure.serve.http import errors, openapi
from perdure.serve.http.auth import Authenticate
from perdure.serve.http.dependencies import AppState
from perdure.serve.http.direct_routes import DirectRoutes
from perdure.serve.http.middleware import (
    ROUTE_PATH,
    App,
    Receive,
    RequestFilter,
    Rules,
    Scope,
    Send,
)
from perdure.serve.http.routes import (
    agents,
    background,
    checkpoints,
    deliveries,
    events,
    executions,
    health,
    messages,
    pauses,
    pending,
    results,
    sessions,
    statistics,
    task_logs,
    tasks,
)
from perdure.serve.limits import RateLimiter

ROUTERS: Final[tuple[APIRouter, ...]] = (
    results.router,  # routes are tried in order, and submitters are the most frequent callers
    openapi.router,
    agents.router,
    health.router,
    statistics.router,
    deliveries.router,
    pending.router,
    sessions.router,
    messages.router,
    pauses.router,
    tasks.router,
    background.router,
    task_logs.router,
    checkpoints.router,
    executions.router,
    events.router,
)


@dataclass(frozen=True, slots=True)
class Mount:
    """Another protocol below a path of the server, behind the same request filter."""

    path: str  # such as /mcp
    create: Callable[[AppState, Rules], App]


class Pages(Protocol):
    """HTML pages beside the JSON routes, at the same addresses."""

    def serve(self, app: App, api: FastAPI) -> App:
        """Return an application that serves pages, and leaves all other requests to `app`."""
        ...

    def show_errors(self, app: App) -> App:
        """Return an application that shows the errors of `app` to browsers as pages."""
        ...


def application(
    rt: Runtime,
    authenticate: Authenticate,
    rules: Rules,
    closing: anyio.Event | None = None,
    mounts: Sequence[Mount] = (),
    pages: Pages | None = None,
) -> App:
    """Return the application under these rules; setting `closing` ends streams and waits."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.shared = app_state = AppState(
        rt, authenticate, RateLimiter(rules.per_id), closing or anyio.Event()
    )
    errors.install(app)
    for router in ROUTERS:
        app.router.routes.extend(router.routes)
    service = service_of(rt)
    mounted = {mount.path: mount.create(app_state, rules) for mount in mounts}
    routes: App = Mounts(mounted, DirectRoutes(app))
    if pages is None:
        return RequestFilter(routes, rules, lambda: service.public_url, app_state.closing)
    routes = pages.serve(routes, app)
    filtered = RequestFilter(
        routes, rules, lambda: service.public_url, app_state.closing, has_pages=True
    )
    return pages.show_errors(filtered)


class Mounts:
    """ASGI application that serves mounted protocols, and leaves other paths to the routes."""

    def __init__(self, mounted: dict[str, App], routes: App) -> None:
        self._mounted = mounted
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        app = self._routes
        if scope["type"] == "http":
            first = scope[ROUTE_PATH].split("/", 2)[1] if scope[ROUTE_PATH] else ""
            app = self._mounted.get(f"/{first}", self._routes)
        await app(scope, receive, send)
