"""Routes of webhook deliveries: list, show, redeliver."""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Response

from perdure.core.webhooks.deliveries import Delivery
from perdure.serve.http.cursors import Cursor, PagePosition, decode_cursor, encode_cursor
from perdure.serve.http.dependencies import Administers, Id, Reads
from perdure.serve.http.responses import (
    Schema,
    json_response,
    json_schema,
    object_schema,
    page_schema,
    responses,
)
from perdure.serve.http.schemas import OBJECT, TEXT

router = APIRouter(tags=["webhooks"])

Status = Literal["waiting", "delivered", "dead", "withdrawn"]


def _delivery() -> Schema:
    delivery = json_schema(Delivery)
    properties: dict[str, Any] = {
        name: {key: value for key, value in schema.items() if key != "default"}
        for name, schema in delivery["properties"].items()
        if name != "timeout"
    }
    return object_schema([*delivery["required"], "status", "type"], **properties, type=TEXT)


_DELIVERY: Final = _delivery()
_DETAILS: Final[Schema] = {
    **_DELIVERY,
    "properties": {
        **_DELIVERY["properties"],
        "body": OBJECT,
        "log": {"type": "array", "items": OBJECT},
    },
}


@router.get("/deliveries", responses=responses({200: page_schema("deliveries", _DELIVERY)}, 404))
async def list_deliveries(
    scope: Reads,
    status: Status | None = None,
    sessionID: Annotated[str | None, Query(max_length=200)] = None,  # noqa: N803 - the wire's
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Cursor = None,
) -> Response:
    """List the webhook deliveries in the store, oldest first."""
    deliveries = scope.service.deliveries
    after = decode_cursor(cursor)
    matches = deliveries.all(scope.tenant, status=status, session_id=sessionID)
    ordered = sorted([delivery async for delivery in matches], key=_position)
    remaining = [delivery for delivery in ordered if after is None or _position(delivery) > after]
    page = remaining[:limit]
    next_cursor = encode_cursor(_position(page[-1])) if len(remaining) > limit else None
    items = [await deliveries.to_json(delivery) for delivery in page]
    return json_response({"deliveries": items, "next": next_cursor})


def _position(delivery: Delivery) -> PagePosition:
    return delivery.created_at, delivery.id, ""


@router.get("/deliveries/{delivery_id}", responses=responses({200: _DETAILS}, 404))
async def get_delivery(scope: Reads, delivery_id: Id) -> Response:
    """Return one delivery with its body and the log of its attempts."""
    return json_response(await scope.service.deliveries.details(delivery_id, scope.tenant))


@router.post("/deliveries/{delivery_id}/redeliver", responses=responses({202: _DELIVERY}, 404))
async def redeliver(scope: Administers, delivery_id: Id) -> Response:
    """Deliver again, under the same id, as soon as a worker can."""
    deliveries = scope.service.deliveries
    delivery = await deliveries.redeliver(delivery_id, by=scope.actor(), tenant=scope.tenant)
    return json_response(await deliveries.to_json(delivery), 202)
