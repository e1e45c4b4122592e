"""The HTTP application: all routers behind one request filter, to run or to mount anywhere."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import anyio

from perdure.app import Runtime, service_of
from perdure.serve.http import openapi
from perdure.serve.http.auth import Authenticate
from perdure.serve.http.dependencies import APP_STATE, AppState
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
from perdure.serve.http.table import Route, Routes
from perdure.serve.limits import RateLimiter

ROUTES: Final[tuple[Route, ...]] = (
    *openapi.ROUTES,
    *results.ROUTES,
    *agents.ROUTES,
    *health.ROUTES,
    *statistics.ROUTES,
    *deliveries.ROUTES,
    *pending.ROUTES,
    *sessions.ROUTES,
    *messages.ROUTES,
    *pauses.ROUTES,
    *tasks.ROUTES,
    *background.ROUTES,
    *task_logs.ROUTES,
    *checkpoints.ROUTES,
    *executions.ROUTES,
    *events.ROUTES,
)


@dataclass(frozen=True, slots=True)
class Mount:
    """Another protocol below a path of the server, behind the same request filter."""

    path: str  # such as /mcp
    create: Callable[[AppState, Rules], App]


class Pages(Protocol):
    """HTML pages beside the JSON routes, at the same addresses."""

    def add_pages(self, table: tuple[Route, ...]) -> tuple[Route, ...]:
        """Return the table with the pages that browsers get."""
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
    limiter = RateLimiter(rules.per_id)
    app_state = AppState(
        rt, authenticate, limiter, closing or anyio.Event(), has_tokens=rules.has_tokens
    )
    service = service_of(rt)
    mounted = {mount.path: mount.create(app_state, rules) for mount in mounts}
    table = ROUTES if pages is None else pages.add_pages(ROUTES)
    filtered = RequestFilter(
        Server(mounted, Routes(table), app_state),
        rules,
        lambda: service.public_url,
        app_state.closing,
        has_pages=pages is not None,
    )
    return filtered if pages is None else pages.show_errors(filtered)


class Server:
    """ASGI application that serves mounted protocols, and leaves other paths to the routes."""

    def __init__(self, mounted: dict[str, App], routes: Routes, app_state: AppState) -> None:
        self._mounted = mounted
        self._routes = routes
        self._app_state = app_state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        scope[APP_STATE] = self._app_state
        first = scope[ROUTE_PATH].split("/", 2)[1] if scope[ROUTE_PATH] else ""
        app: App = self._mounted.get(f"/{first}", self._routes)
        await app(scope, receive, send)
