"""What went out, what is still to go, and asking for it again."""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Response

from perdure.core.webhooks.deliveries import Delivery
from perdure.runtime.webhooks.deliveries import Deliveries
from perdure.serve.http.cursors import Cursor, cursor_of, place_of
from perdure.serve.http.dependencies import Administers, Id, Reads, RequestScope
from perdure.serve.http.responses import Schema, answers, listing, reply, schema_of, shape
from perdure.serve.http.schemas import OBJECT, TEXT

router = APIRouter(tags=["webhooks"])

Status = Literal["waiting", "delivered", "dead", "withdrawn"]


def _shape() -> Schema:
    kept = schema_of(Delivery)
    properties: dict[str, Any] = {
        name: {key: value for key, value in one.items() if key != "default"}
        for name, one in kept["properties"].items()
        if name != "timeout"
    }
    return shape([*kept["required"], "status", "type"], **properties, type=TEXT)


_DELIVERY: Final = _shape()
_WHOLE: Final[Schema] = {
    **_DELIVERY,
    "properties": {
        **_DELIVERY["properties"],
        "body": OBJECT,
        "log": {"type": "array", "items": OBJECT},
    },
}


def _door(door: RequestScope) -> Deliveries:
    return Deliveries(door.service.desk.outbox)


@router.get("/deliveries", responses=answers({200: listing("deliveries", _DELIVERY)}, 404))
async def listed(
    door: Reads,
    status: Status | None = None,
    sessionID: Annotated[str | None, Query(max_length=200)] = None,  # noqa: N803 - the wire's
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Cursor = None,
) -> Response:
    """Webhook deliveries that are kept, oldest first."""
    after = place_of(cursor)
    found = _door(door).all(door.tenant, status=status, session_id=sessionID)
    kept = sorted([one async for one in found], key=_place)
    rest = [one for one in kept if after is None or _place(one) > after]
    page = rest[:limit]
    following = cursor_of(_place(page[-1])) if len(rest) > limit else None
    return reply({"deliveries": [await _door(door).show(one) for one in page], "next": following})


def _place(made: Delivery) -> tuple[int, str, str]:
    return made.created_at, made.id, ""


@router.get("/deliveries/{delivery_id}", responses=answers({200: _WHOLE}, 404))
async def one(door: Reads, delivery_id: Id) -> Response:
    """One delivery, with its body and the log of its attempts."""
    return reply(await _door(door).details(delivery_id, door.tenant))


@router.post("/deliveries/{delivery_id}/redeliver", responses=answers({202: _DELIVERY}, 404))
async def redeliver(door: Administers, delivery_id: Id) -> Response:
    """Send it (again), under the same id, as soon as a worker can."""
    deliveries = _door(door)
    again = await deliveries.redeliver(delivery_id, by=door.by(), tenant=door.tenant)
    return reply(await deliveries.show(again), 202)
