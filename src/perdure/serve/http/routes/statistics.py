"""Routes for operators: statistics of calls, and the findings of `perdure doctor`."""

import time
from typing import Annotated, Any, Final

from anyio import to_thread
from fastapi import APIRouter, Query, Response

from perdure.app.health import health_of, statistics_of
from perdure.core.roles import Permit
from perdure.errors import NotAllowed
from perdure.serve.http.dependencies import AppState, Operates, Reads, RequestScope
from perdure.serve.http.responses import json_response, object_schema, responses
from perdure.serve.http.schemas import BOOLEAN, INTEGER, OBJECT, TEXT

router = APIRouter(tags=["about"])

MOST_HOURS: Final = 24 * 31
FRESH_S: Final = 10.0  # for so long findings are not looked for again

_INSTANT: Final[dict[str, Any]] = {"type": ["integer", "null"]}
_NUMBERS: Final[dict[str, Any]] = {
    **dict.fromkeys(("made", "settled", "expired", "decided"), INTEGER),
    "p50": _INSTANT,
    "p90": _INSTANT,
}
_HOUR: Final = object_schema(("at", *_NUMBERS), at=INTEGER, **_NUMBERS)
_STATS: Final = object_schema(
    ("since", "until", "complete", "total", "hours"),
    since=INTEGER,
    until=INTEGER,
    complete=BOOLEAN,
    total=object_schema(_NUMBERS, **_NUMBERS),
    hours={"type": "array", "items": _HOUR},
)
_CHECK: Final = object_schema(
    ("level", "code", "text", "remedy"),
    level={"enum": ["ok", "finding", "corrupt"]},
    code=TEXT,
    text=TEXT,
    remedy=TEXT,
    details=OBJECT,
)
_WORKER: Final = object_schema(
    ("name", "queues", "until", "sessions"),
    name=TEXT,
    queues={"type": "array", "items": TEXT},
    until=INTEGER,
    sessions=INTEGER,
)
_QUEUE: Final = object_schema(("name", "due", "workers"), name=TEXT, due=INTEGER, workers=INTEGER)
_DOCTOR: Final = object_schema(
    ("ok", "findings", "checks", "workers", "queues", "at"),
    ok=BOOLEAN,
    findings=INTEGER,
    checks={"type": "array", "items": _CHECK},
    workers={"type": "array", "items": _WORKER},
    queues={"type": "array", "items": _QUEUE},
    at=INTEGER,
)


@router.get("/stats", responses=responses({200: _STATS}))
async def get_statistics(
    scope: Reads,
    hours: Annotated[int, Query(ge=1, le=MOST_HOURS, description="The last hours to count.")] = 24,
) -> Response:
    """Return how many calls were made, settled and expired per hour, and how fast people decided.

    Times are ms; settled calls are counted as long as retention keeps them.
    """
    return json_response(await statistics_of(scope.app_state.runtime, hours, scope.tenant))


@router.get("/doctor", responses=responses({200: _DOCTOR}))
async def get_findings(scope: Operates) -> Response:
    """Return the checks of `perdure doctor` that read no logs, with workers and queues.

    Only for principals that see all tenants. They are repeated after some seconds at the earliest.
    """
    if scope.is_scoped:
        raise NotAllowed(
            "the checks cover all tenants, and this principal sees only one",
            hint="use a token without a tenant",
        )
    return json_response(await findings_json(scope.app_state))


def may_see_findings(scope: RequestScope) -> bool:
    """Return whether the caller may see the findings of the whole store."""
    return scope.has_permit(Permit.OPERATE) and not scope.is_scoped


async def findings_json(app_state: AppState) -> dict[str, Any]:
    """Return the checks, at most some seconds old; of callers at once only one looks."""
    cache = app_state.findings
    async with cache.turn:
        if cache.report is None or time.monotonic() - cache.checked_at > FRESH_S:
            cache.report = await to_thread.run_sync(health_of, app_state.runtime)
            cache.checked_at = time.monotonic()
        return cache.report
