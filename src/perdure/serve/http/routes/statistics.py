"""Routes for operators: statistics of calls, and the findings of `perdure doctor`."""

import time
from typing import Annotated, Final

from msgspec import Meta, Struct

from perdure.core.roles import Permit
from perdure.serve.http.dependencies import OPERATES, READS, AppState, RequestScope
from perdure.serve.http.table import Route, tagged
from perdure.views.health import Health, Statistics

MOST_HOURS: Final = 24 * 31
FRESH_S: Final = 10.0  # for so long findings are not looked for again


class HoursQuery(Struct, frozen=True, kw_only=True):
    """The hours to count."""

    hours: Annotated[int, Meta(ge=1, le=MOST_HOURS, description="The last hours to count.")] = 24


async def get_statistics(scope: RequestScope, query: HoursQuery) -> Statistics:
    """Return how many calls were created, settled and expired per hour, and how fast.

    Times are ms; settled calls are counted as long as retention keeps them.
    """
    return await scope.calls.statistics(query.hours)


async def get_findings(scope: RequestScope) -> Health:
    """Return the findings of `perdure doctor` that read no logs, with workers and queues.

    Only for principals that see all tenants. They are repeated after some seconds at the earliest.
    """
    if scope.is_scoped:  # whichever tenant is chosen, the findings are those of the store
        scope.caller.require_all_tenants()
    return await find_health(scope.app_state)


def may_see_findings(scope: RequestScope) -> bool:
    """Return whether the caller may see the findings of the whole store."""
    return scope.caller.may(Permit.OPERATE) and not scope.is_scoped


async def find_health(app_state: AppState) -> Health:
    """Return the findings, at most some seconds old; of callers at once only one looks."""
    cache = app_state.findings
    async with cache.turn:
        if cache.report is None or time.monotonic() - cache.checked_at > FRESH_S:
            cache.report = await app_state.runtime.doctor()
            cache.checked_at = time.monotonic()
        return cache.report


ROUTES: Final = tagged(
    "about",
    Route("GET", "/stats", READS, get_statistics),
    Route("GET", "/doctor", OPERATES, get_findings),
)
