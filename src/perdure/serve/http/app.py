"""The HTTP application: all routers behind one request filter, to run or to mount anywhere."""

from collections.abc import Mapping
from typing import Final

import anyio
from fastapi import APIRouter, FastAPI

from perdure.app import Runtime, service_of
from perdure.core.roles import Principal
from perdure.serve.http import errors, openapi
from perdure.serve.http.auth import Authenticate, token_authenticator
from perdure.serve.http.dependencies import AppState
from perdure.serve.http.direct_routes import DirectRoutes
from perdure.serve.http.middleware import App, RequestFilter, Rules
from perdure.serve.http.routes import (
    agents,
    deliveries,
    events,
    health,
    messages,
    pauses,
    pending,
    results,
    sessions,
    tasks,
)
from perdure.serve.limits import RateLimiter

ROUTERS: Final[tuple[APIRouter, ...]] = (
    results.router,  # routes are tried in order, and submitters are the most frequent callers
    openapi.router,
    agents.router,
    health.router,
    deliveries.router,
    pending.router,
    sessions.router,
    messages.router,
    pauses.router,
    tasks.router,
    events.router,
)


def asgi(rt: Runtime, *, auth: Authenticate | Mapping[str, Principal], ui: bool = True) -> App:
    """Return an ASGI application that serves a runtime, to mount anywhere.

    `auth` identifies the caller: an async function from the request to a Principal or None, or a
    mapping from tokens to principals. It does not open the runtime: do that in your own lifespan.
    """
    del ui  # pages are not built yet
    authenticate = token_authenticator(auth) if isinstance(auth, Mapping) else auth
    return application(rt, authenticate, Rules())


def application(
    rt: Runtime, authenticate: Authenticate, rules: Rules, closing: anyio.Event | None = None
) -> App:
    """Return the application under these rules; setting `closing` ends streams and waits."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.shared = AppState(
        rt, authenticate, RateLimiter(rules.per_id), closing or anyio.Event()
    )
    errors.install(app)
    for router in ROUTERS:
        app.router.routes.extend(router.routes)
    service = service_of(rt)
    return RequestFilter(DirectRoutes(app), rules, lambda: service.public_url)
