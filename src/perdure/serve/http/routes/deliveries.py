"""Routes of webhook deliveries: list, show, redeliver."""

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from perdure.core.webhooks.deliveries import DeliveryRecord
from perdure.serve.http.dependencies import ADMINISTERS, READS, RequestScope
from perdure.serve.http.parameters import ByQuery, Name
from perdure.serve.http.responses import json_response
from perdure.serve.http.table import Route, tagged, value_or_none
from perdure.views.base import wire_name
from perdure.views.cursors import Cursor, PagePosition, decode_cursor, encode_cursor
from perdure.views.health import Delivery, DeliveryDetails, DeliveryPage

Status = Literal["waiting", "delivered", "dead", "withdrawn"]


class DeliveryQuery(Struct, frozen=True, kw_only=True, rename=wire_name):
    """Filter of a list of deliveries, and its page."""

    status: Status | UnsetType = UNSET
    session_id: Name | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Cursor = UNSET


async def list_deliveries(scope: RequestScope, query: DeliveryQuery) -> Response:
    """List the webhook deliveries in the store, oldest first."""
    deliveries = scope.service.deliveries
    after = decode_cursor(query.cursor)
    status, session_id = value_or_none(query.status), value_or_none(query.session_id)
    ordered = await deliveries.ordered(scope.tenant, status, session_id)
    remaining = [delivery for delivery in ordered if after is None or _position(delivery) > after]
    page = remaining[: query.limit]
    next_cursor = encode_cursor(_position(page[-1])) if len(remaining) > query.limit else None
    items = tuple([await deliveries.view(delivery) for delivery in page])
    return json_response(DeliveryPage(deliveries=items, next=next_cursor))


def _position(delivery: DeliveryRecord) -> PagePosition:
    return delivery.created_at, delivery.id, ""


async def get_delivery(scope: RequestScope, delivery_id: str) -> Response:
    """Return one delivery with its body and the log of its attempts."""
    return json_response(await scope.service.deliveries.details(delivery_id, scope.tenant))


async def redeliver(scope: RequestScope, delivery_id: str, query: ByQuery) -> Response:
    """Deliver again, under the same id, as soon as a worker can."""
    deliveries = scope.service.deliveries
    actor = scope.caller.actor(value_or_none(query.by))
    delivery = await deliveries.redeliver(delivery_id, by=actor, tenant=scope.tenant)
    return json_response(await deliveries.view(delivery), 202)


_LIST: Final = "/deliveries"
_ONE: Final = f"{_LIST}/{{delivery_id}}"
ROUTES: Final = tagged(
    "webhooks",
    Route("GET", _LIST, READS, list_deliveries, returns={200: DeliveryPage}),
    Route("GET", _ONE, READS, get_delivery, returns={200: DeliveryDetails}),
    Route("POST", f"{_ONE}/redeliver", ADMINISTERS, redeliver, returns={202: Delivery}),
)
