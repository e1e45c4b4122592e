"""What people see of a paused session beside its calls: its state, and what they allowed in it."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Response

from perdure.core.session.naming import MAX_ID
from perdure.hitl.showing import pause_json
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.views import permission_json
from perdure.serve.http.dependencies import Decides, Id, Reads, RequestScope
from perdure.serve.http.responses import Schema, answers, reply, shape
from perdure.serve.http.routes.sessions import known_to
from perdure.serve.http.schemas import OBJECT, PENDING, TEXT, TEXT_OR_NOT

router = APIRouter(tags=["sessions"])

Number = Annotated[int, Path(ge=0, le=2**53, description="As the list has it.")]

_WHOLE: Final[Schema] = {"type": "integer"}
_STATE: Final = shape(
    ("sessionID", "state", "pending", "pending_executions", "age"),
    sessionID=TEXT,
    state=TEXT,
    pending={"type": "array", "items": PENDING},
    pending_executions=OBJECT,
    age=_WHOLE,
)
_PERMISSION: Final = shape(
    ("number", "tool", "rule", "args", "by", "at"),
    number=_WHOLE,
    tool=TEXT,
    rule=TEXT_OR_NOT,
    args={"type": ["object", "null"]},
    by=TEXT,
    at=_WHOLE,
)
_PERMISSIONS: Final = shape(
    ("sessionID", "permissions"),
    sessionID=TEXT,
    permissions={"type": "array", "items": _PERMISSION},
)


@router.get("/sessions/{session_id}/state", responses=answers({200: _STATE}, 404))
async def state(door: Reads, session_id: Id) -> Response:
    """The execution states of the runs that are paused in it, by task id; without secrets."""
    return reply(await pause_json(door.service, await known_to(door, session_id)))


@router.get("/sessions/{session_id}/permissions", responses=answers({200: _PERMISSIONS}, 404))
async def permissions(door: Reads, session_id: Id) -> Response:
    """What was allowed for the rest of it when a call was approved with `remember`."""
    return reply(await _listed(door, await known_to(door, session_id)))


@router.delete(
    "/sessions/{session_id}/permissions/{number}", responses=answers({200: _PERMISSIONS}, 404)
)
async def revoke(
    door: Decides,
    session_id: Id,
    number: Number,
    by: Annotated[str | None, Query(max_length=MAX_ID)] = None,
) -> Response:
    """Ask again about what that number allows; answers what is still allowed."""
    known = await known_to(door, session_id)
    await door.service.revoke(known, number, door.by(by), door.via)
    return reply(await _listed(door, known))


async def _listed(door: RequestScope, known: SessionEntry) -> dict[str, Any]:
    allowed = (await door.service.sight(known)).folded.allowed
    return {"sessionID": known.record.id, "permissions": [permission_json(one) for one in allowed]}
