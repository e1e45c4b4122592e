"""The HTTP application: the routers of this room behind one gate, to run or to mount anywhere."""

from collections.abc import Mapping
from typing import Final

import anyio
from fastapi import APIRouter, FastAPI

from perdure.app import Runtime, service_of
from perdure.core.access import Principal
from perdure.serve.http import errors, openapi
from perdure.serve.http.auth import Authenticate, by_tokens
from perdure.serve.http.dependencies import AppState
from perdure.serve.http.middleware import App, Limit, RequestFilter, Rules
from perdure.serve.http.routes import (
    agents,
    deliveries,
    events,
    health,
    messages,
    pauses,
    pending,
    sessions,
)
from perdure.serve.http.routes import (
    results as submitting,
)

ROUTERS: Final[tuple[APIRouter, ...]] = (
    submitting.router,  # routes are tried in order, and this one is in a hurry
    openapi.router,
    agents.router,
    health.router,
    deliveries.router,
    pending.router,
    sessions.router,
    messages.router,
    pauses.router,
    events.router,
)


def asgi(rt: Runtime, *, auth: Authenticate | Mapping[str, Principal], ui: bool = True) -> App:
    """An ASGI application that serves a runtime, to mount anywhere.

    `auth` says who asks: an async function from the request to a Principal or None, or a mapping
    from tokens to principals. The runtime is not opened by it: do that in your own lifespan.
    """
    del ui  # pages are not built yet
    authenticate = by_tokens(auth) if isinstance(auth, Mapping) else auth
    return application(rt, authenticate, Rules())


def application(
    rt: Runtime, authenticate: Authenticate, rules: Rules, closing: anyio.Event | None = None
) -> App:
    """The application under these rules; `closing` ends what streams and waits."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.shared = AppState(rt, authenticate, Limit(rules.per_id), closing or anyio.Event())
    errors.install(app)
    for router in ROUTERS:
        app.router.routes.extend(router.routes)
    desk = service_of(rt).desk
    return RequestFilter(app, rules, lambda: desk.public_url, desk.store.now)
