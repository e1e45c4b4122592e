"""Routes of paused sessions: execution states and remembered permissions."""

from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from perdure.serve.http.dependencies import DECIDES, READS, RequestScope
from perdure.serve.http.parameters import MAX_POSITION, ByQuery
from perdure.serve.http.table import Route, tagged, value_or_none
from perdure.views.sessions import PastState, PausedState, PermissionList

Number = Annotated[
    int, Meta(ge=0, le=MAX_POSITION, description="The number of a permission in the list.")
]


class StateQuery(Struct, frozen=True, kw_only=True):
    """The event after which a session is shown."""

    at: (
        Annotated[int, Meta(ge=1, le=MAX_POSITION, description="The seq of an event.")] | UnsetType
    ) = UNSET


async def get_state(
    scope: RequestScope, session_id: str, query: StateQuery
) -> PausedState | PastState:
    """Return the execution states of the session's paused runs by task id, without secrets.

    With `at` the session as it was after that event: state, turns, usage, todos, metadata, calls.
    """
    if query.at is not UNSET:
        return await scope.sessions.logs.state_at(session_id, query.at)
    return await scope.sessions.paused(session_id)


async def list_permissions(scope: RequestScope, session_id: str) -> PermissionList:
    """List the permissions that approvals with `remember` gave for the rest of the session."""
    return await scope.sessions.permissions(session_id)


async def revoke_permission(
    scope: RequestScope, session_id: str, number: Number, query: ByQuery
) -> PermissionList:
    """Revoke a permission, so that its calls need approval again; returns the remaining ones."""
    return await scope.sessions.revoke(session_id, number, value_or_none(query.by))


_ONE: Final = "/sessions/{session_id}"
_LIST: Final = f"{_ONE}/permissions"
ROUTES: Final = tagged(
    "sessions",
    Route("GET", f"{_ONE}/state", READS, get_state),
    Route("GET", _LIST, READS, list_permissions),
    Route("DELETE", f"{_LIST}/{{number}}", DECIDES, revoke_permission),
)
