"""Whether the server is alive, whether it can work, and how much there is: for machines."""

import logging
import time
from typing import Any, Final

import anyio
from fastapi import APIRouter, Request, Response

from perdure.errors import NotAllowed, PerdureError, StoreError
from perdure.runtime.sessions.service import Service
from perdure.serve.http.dependencies import AppState, Reads, shared_of
from perdure.serve.http.metrics import CONTENT_TYPE, Numbers
from perdure.serve.http.responses import answers, reply, shape
from perdure.store.shared.paging import END

logger = logging.getLogger("perdure")

READ_S: Final = 2.0  # a store that answers later cannot be worked with
ROUND_S: Final = 30.0  # a worker makes a round every second; one this late is dead or stuck

router = APIRouter(tags=["about"])

_STATUS: Final = shape(("status",), status={"type": "string"})
_TEXT: Final[dict[str, Any]] = {
    "description": "Numbers in the text format of Prometheus.",
    "content": {"text/plain": {"schema": {"type": "string"}}},
}


@router.get("/healthz", responses=answers({200: _STATUS}))
async def healthz() -> Response:
    """The process is alive; it asks nobody else."""
    return reply({"status": "alive"})


@router.get("/readyz", responses=answers({200: _STATUS}))
async def readyz(request: Request) -> Response:
    """The store can be read and the worker, if there is one here, works; else 503."""
    checks = await _checks(shared_of(request))
    wrong = {name: told for name, told in checks.items() if told != "ok"}
    if not wrong:
        return reply({"status": "ready", **checks})
    said = "; ".join(f"{name}: {told}" for name, told in wrong.items())
    error = PerdureError(
        f"not ready: {said}", code="NOT_READY", hint="the server's log says more", details=checks
    )
    return reply(error.to_json(), 503, {"Retry-After": "1"})


async def _checks(shared: AppState) -> dict[str, str]:
    if shared.closing.is_set():
        return {"server": "is told to stop"}
    try:
        service = shared.service
    except PerdureError as error:
        return {"server": error.message}
    return {"store": await _store(service), "worker": _worker(service)}


async def _store(service: Service) -> str:
    """What the store says to a small question; where it is, and why, is for the log."""
    try:
        with anyio.fail_after(READ_S):
            await service.desk.store.tail(END)
    except TimeoutError:
        return f"does not answer within {READ_S:g} s"
    except StoreError as error:
        logger.warning("the store cannot be read: %s", error.message)
        return f"cannot be read ({error.code})"
    return "ok"


def _worker(service: Service) -> str:
    if service.worked_at is None:
        return "ok"  # none was started here: others drive
    late = time.monotonic() - service.worked_at
    return "ok" if late < ROUND_S else f"made no round for {late:.0f} s"


@router.get("/metrics", responses={**answers({}), 200: _TEXT})
async def metrics(door: Reads) -> Response:
    """Numbers of the whole store, for principals that see all of it."""
    if door.is_scoped:
        raise NotAllowed(
            "metrics are about all tenants",
            hint="use a token without a tenant",
        )
    state = door.request.app.state
    if not hasattr(state, "numbers"):
        state.numbers = Numbers(door.service.desk.store)
    return Response(await state.numbers.text(), headers={"Content-Type": CONTENT_TYPE})
