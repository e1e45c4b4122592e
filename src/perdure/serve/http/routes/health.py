"""Routes for monitoring: liveness, readiness and metrics."""

import logging
import time
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import Response

from perdure.app import store_id_of, store_of
from perdure.app.metrics import CONTENT_TYPE, StoreMetrics
from perdure.errors import NotAllowed, PerdureError, StoreError
from perdure.runtime.sessions.service import Service
from perdure.serve.http.dependencies import READS, AppState, RequestScope, get_app_state
from perdure.serve.http.responses import json_response
from perdure.serve.http.table import PlainText, Route, tagged
from perdure.views.health import Liveness, Readiness

logger = logging.getLogger("perdure")

READ_S: Final = 2.0  # a store that takes longer to answer is not usable
_METRICS: Final = "metrics"
ROUND_S: Final = 30.0  # a worker loops every second; one this late is dead or stuck


async def healthz(_: Request) -> Liveness:
    """Report that the process is alive; checks nothing else."""
    return Liveness()


async def readyz(request: Request) -> Readiness | Response:
    """Report whether the store can be read and written and the worker here runs; 503 if not.

    `storeID` tells servers of different stores apart; it reveals nothing else about a store.
    """
    app_state = get_app_state(request)
    checks = await check_readiness(app_state)
    store_id = store_id_of(app_state.runtime)
    failures = "; ".join(f"{name}: {status}" for name, status in checks.items() if status != "ok")
    if not failures:
        return Readiness(**checks, store_id=store_id)
    error = PerdureError(
        f"not ready: {failures}",
        code="NOT_READY",
        hint="see the server's log",
        details={**checks, "storeID": store_id},
    )
    return json_response(error.to_json(), 503, {"Retry-After": "1"})


async def check_readiness(app_state: AppState) -> dict[str, str]:
    """Return what was checked and "ok" for each, or what is wrong with it."""
    if app_state.closing.is_set():
        return {"server": "is shutting down"}
    try:
        service = app_state.service
    except PerdureError as error:
        return {"server": error.message}
    return {"store": await _check_store(service), "worker": _check_worker(service)}


async def _check_store(service: Service) -> str:
    """Return "ok" if the store takes a small read and a small commit.

    Its address and its error go to the log only.
    """
    verb = "read"
    try:
        with anyio.fail_after(READ_S):
            await service.feed.end()
            verb = "written"
            await service.check_writable()
    except TimeoutError:
        return f"does not answer within {READ_S:g} s"
    except StoreError as error:
        logger.warning("the store cannot be %s: %s", verb, error.message)
        return f"cannot be {verb} ({error.code})"
    return "ok"


def _check_worker(service: Service) -> str:
    if service.worked_at is None:
        return "ok"  # no worker was started here: other processes drive
    age = time.monotonic() - service.worked_at
    return "ok" if age < ROUND_S else f"has not looped for {age:.0f} s"


async def metrics(scope: RequestScope) -> Response:
    """Return metrics of the whole store; only for principals that see all tenants."""
    if scope.is_scoped:
        raise NotAllowed(
            "metrics cover all tenants, and this principal sees only one",
            hint="use a token without a tenant",
        )
    kept = scope.app_state.kept
    if _METRICS not in kept:
        kept[_METRICS] = StoreMetrics(store_of(scope.app_state.runtime))
    return Response(await kept[_METRICS].text(), headers={"Content-Type": CONTENT_TYPE})


ROUTES: Final = tagged(
    "about",
    Route("GET", "/healthz", None, healthz),
    Route("GET", "/readyz", None, readyz),
    Route("GET", "/metrics", READS, metrics, returns={200: PlainText}),
)
