"""Routes of paused sessions: execution states and remembered permissions."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Response

from perdure.core.session.naming import MAX_ID
from perdure.hitl.metadata import pause_json
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.views import permission_json
from perdure.serve.http.dependencies import Decides, Id, Reads, RequestScope
from perdure.serve.http.responses import json_response, object_schema, responses
from perdure.serve.http.routes.sessions import find_entry
from perdure.serve.http.schemas import INTEGER, NULLABLE_TEXT, OBJECT, PENDING, TEXT

router = APIRouter(tags=["sessions"])

At = Annotated[int | None, Query(ge=1, le=2**53, description="The seq of an event.")]
Number = Annotated[int, Path(ge=0, le=2**53, description="The number of a permission in the list.")]

_STATE: Final = object_schema(
    ("sessionID", "state", "pending", "pending_executions", "age"),
    sessionID=TEXT,
    state=TEXT,
    pending={"type": "array", "items": PENDING},
    pending_executions=OBJECT,
    age=INTEGER,
)
_PAST: Final = object_schema(
    ("sessionID", "at", "timestamp", "state", "turns", "usage", "todos", "metadata", "calls"),
    sessionID=TEXT,
    at=INTEGER,
    timestamp=INTEGER,
    state=TEXT,
    turns=INTEGER,
    usage=OBJECT,
    todos={"type": "array"},
    metadata=OBJECT,
    calls={"type": "array", "items": OBJECT},
)
_PERMISSION: Final = object_schema(
    ("number", "tool", "rule", "args", "by", "at"),
    number=INTEGER,
    tool=TEXT,
    rule=NULLABLE_TEXT,
    args={"type": ["object", "null"]},
    by=TEXT,
    at=INTEGER,
)
_PERMISSIONS: Final = object_schema(
    ("sessionID", "permissions"),
    sessionID=TEXT,
    permissions={"type": "array", "items": _PERMISSION},
)


@router.get(
    "/sessions/{session_id}/state", responses=responses({200: {"anyOf": [_STATE, _PAST]}}, 404)
)
async def get_state(scope: Reads, session_id: Id, at: At = None) -> Response:
    """Return the execution states of the session's paused runs by task id, without secrets.

    With `at` the session as it was after that event: state, turns, usage, todos, metadata, calls.
    """
    if at is not None:
        entry = await find_entry(scope, session_id)
        return json_response(await scope.service.state_at(entry, at))
    return json_response(await pause_json(scope.service, await find_entry(scope, session_id)))


@router.get("/sessions/{session_id}/permissions", responses=responses({200: _PERMISSIONS}, 404))
async def list_permissions(scope: Reads, session_id: Id) -> Response:
    """List the permissions that approvals with `remember` gave for the rest of the session."""
    return json_response(await _permissions_json(scope, await find_entry(scope, session_id)))


@router.delete(
    "/sessions/{session_id}/permissions/{number}", responses=responses({200: _PERMISSIONS}, 404)
)
async def revoke_permission(
    scope: Decides,
    session_id: Id,
    number: Number,
    by: Annotated[str | None, Query(max_length=MAX_ID)] = None,
) -> Response:
    """Revoke a permission, so that its calls need approval again; returns the remaining ones."""
    entry = await find_entry(scope, session_id)
    await scope.service.revoke(entry, number, scope.actor(by), scope.via)
    return json_response(await _permissions_json(scope, entry))


async def _permissions_json(scope: RequestScope, entry: SessionEntry) -> dict[str, Any]:
    approvals = (await scope.service.snapshot(entry)).log_state.permissions
    permissions = [permission_json(approval) for approval in approvals]
    return {"sessionID": entry.record.id, "permissions": permissions}
