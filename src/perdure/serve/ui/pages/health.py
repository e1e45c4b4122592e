"""Pages for operators: health with statistics, and webhook deliveries."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappush, heappushpop
from typing import Any, Final

from starlette.responses import Response

from perdure.core.roles import Permit
from perdure.core.webhooks.deliveries import DeliveryRecord, DeliveryStatus
from perdure.errors import StoreError
from perdure.serve.http.routes.health import check_readiness
from perdure.serve.http.routes.statistics import find_health, may_see_findings
from perdure.serve.ui.view import PageView
from perdure.views.health import Health

HOURS: Final = (24, 24 * 7)
RECENT: Final = 100  # deliveries on a page
WIDTH: Final = 720  # of a plot
HEIGHT: Final = 110
_GAP: Final = 0.2  # of a bar's share of the width


@dataclass(frozen=True, slots=True)
class Bar:
    """One number at an instant, and its place."""

    at: int
    value: int
    x: float
    y: float
    width: float
    height: float


def bars(values: Sequence[tuple[int, int]]) -> list[Bar]:
    """Return the bars of numbers, the highest of which has the full height."""
    if not values:
        return []
    most = max((value for _, value in values), default=0) or 1
    share = WIDTH / len(values)
    drawn = []
    for number, (at, value) in enumerate(values):
        height = round(HEIGHT * value / most, 1)
        x = round(number * share + share * _GAP / 2, 1)
        width = round(share * (1 - _GAP), 1)
        drawn.append(Bar(at, value, x, round(HEIGHT - height, 1), width, height))
    return drawn


async def show_health(view: PageView) -> Response:
    """Show readiness, workers, queues that nobody serves, findings, and calls per hour."""
    app_state = view.scope.app_state
    hours = HOURS[1] if view.query("hours") == str(HOURS[1]) else HOURS[0]
    stats = (await view.verbs.calls.statistics(hours)).to_json()
    report: Health | None = None
    error = ""
    if may_see_findings(view.scope):
        try:
            report = await find_health(app_state)
        except StoreError as reason:
            error = reason.message
    return view.page(
        "health.html",
        checks=await check_readiness(app_state),
        report=report,
        error=error,
        stats=stats,
        plots=_plots(stats),
        hours=hours,
        choices=HOURS,
        now=view.scope.service.now(),
        section="health",
    )


def _plots(stats: dict[str, Any]) -> list[tuple[str, str, list[Bar]]]:
    """Return the plots: name, unit, and bars."""
    hours = stats["hours"]
    return [
        ("Calls created", "calls", bars([(hour["at"], hour["created"]) for hour in hours])),
        (
            "Calls settled or expired",
            "calls",
            bars([(hour["at"], hour["settled"] + hour["expired"]) for hour in hours]),
        ),
        (
            "Time to a decision, median",
            "s",
            bars([(hour["at"], (hour["p50"] or 0) // 1000) for hour in hours]),
        ),
    ]


async def show_deliveries(view: PageView) -> Response:
    """Show the last webhook deliveries."""
    status = view.query("status")
    deliveries = view.scope.service.deliveries
    # A heap: of all that are read, only these stay.
    newest: list[tuple[int, str, DeliveryRecord]] = []
    total = 0
    async for item in deliveries.all(view.scope.tenant, status=status or None):
        total += 1
        keep = heappush if len(newest) < RECENT else heappushpop
        keep(newest, (item.created_at, item.id, item))
    return view.page(
        "deliveries.html",
        deliveries=[await deliveries.view(item) for *_, item in sorted(newest, reverse=True)],
        total=total,
        status=status,
        statuses=tuple(DeliveryStatus),
        may_redeliver=view.may(Permit.ADMIN),
        now=view.scope.service.now(),
        section="health",
    )


async def show_delivery(view: PageView, delivery_id: str) -> Response:
    """Show one delivery with its body and the log of its attempts."""
    delivery = await view.scope.service.deliveries.details(delivery_id, view.scope.tenant)
    return view.page(
        "delivery.html",
        delivery=delivery,
        session_url=view.session_url(delivery.session_id, delivery.tenant),
        may_redeliver=view.may(Permit.ADMIN),
        now=view.scope.service.now(),
        section="health",
    )


async def redeliver(view: PageView, delivery_id: str) -> Response:
    """Deliver again, under the same id."""
    deliveries = view.scope.service.deliveries
    await deliveries.redeliver(delivery_id, by=view.person, tenant=view.scope.tenant)
    return view.redirect(view.url("deliveries", delivery_id))
