"""Routes for monitoring: liveness, readiness and metrics."""

import logging
import time
from typing import Any, Final

import anyio
from fastapi import APIRouter, Request, Response

from perdure.app import store_id_of, store_of
from perdure.errors import NotAllowed, PerdureError, StoreError
from perdure.runtime.records.write_probe import WriteProbe
from perdure.runtime.sessions.service import Service
from perdure.serve.http.dependencies import AppState, Reads, get_app_state
from perdure.serve.http.metrics import CONTENT_TYPE, StoreMetrics
from perdure.serve.http.responses import json_response, object_schema, responses

logger = logging.getLogger("perdure")

READ_S: Final = 2.0  # a store that takes longer to answer is not usable
ROUND_S: Final = 30.0  # a worker loops every second; one this late is dead or stuck

router = APIRouter(tags=["about"])

_STATUS: Final = object_schema(("status",), status={"type": "string"})
_READY: Final = object_schema(
    ("status", "storeID"), status={"type": "string"}, storeID={"type": "string"}
)
_METRICS: Final[dict[str, Any]] = {
    "description": "Metrics in the text format of Prometheus.",
    "content": {"text/plain": {"schema": {"type": "string"}}},
}


@router.get("/healthz", responses=responses({200: _STATUS}))
async def healthz() -> Response:
    """Report that the process is alive; checks nothing else."""
    return json_response({"status": "alive"})


@router.get("/readyz", responses=responses({200: _READY}))
async def readyz(request: Request) -> Response:
    """Report whether the store can be read and written and the worker here runs; 503 if not.

    `storeID` tells servers of different stores apart; it reveals nothing else about a store.
    """
    app_state = get_app_state(request)
    checks = await check_readiness(request, app_state)
    identity = {"storeID": store_id_of(app_state.runtime)}
    failures = "; ".join(f"{name}: {status}" for name, status in checks.items() if status != "ok")
    if not failures:
        return json_response({"status": "ready", **checks, **identity})
    error = PerdureError(
        f"not ready: {failures}",
        code="NOT_READY",
        hint="see the server's log",
        details=checks | identity,
    )
    return json_response(error.to_json(), 503, {"Retry-After": "1"})


async def check_readiness(request: Request, app_state: AppState) -> dict[str, str]:
    """Return what was checked and "ok" for each, or what is wrong with it."""
    if app_state.closing.is_set():
        return {"server": "is shutting down"}
    try:
        service = app_state.service
    except PerdureError as error:
        return {"server": error.message}
    state = request.app.state
    if not hasattr(state, "write_probe"):
        state.write_probe = WriteProbe(store_of(app_state.runtime))
    store = await _check_store(service, state.write_probe)
    return {"store": store, "worker": _check_worker(service)}


async def _check_store(service: Service, probe: WriteProbe) -> str:
    """Return "ok" if the store takes a small read and a small commit.

    Its address and its error go to the log only.
    """
    verb = "read"
    try:
        with anyio.fail_after(READ_S):
            await service.feed.end()
            verb = "written"
            await probe.check()
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


@router.get("/metrics", responses={**responses({}), 200: _METRICS})
async def metrics(scope: Reads) -> Response:
    """Return metrics of the whole store; only for principals that see all tenants."""
    if scope.is_scoped:
        raise NotAllowed(
            "metrics cover all tenants, and this principal sees only one",
            hint="use a token without a tenant",
        )
    state = scope.request.app.state
    if not hasattr(state, "metrics"):
        state.metrics = StoreMetrics(store_of(scope.app_state.runtime))
    return Response(await state.metrics.text(), headers={"Content-Type": CONTENT_TYPE})
