"""Routes of sessions: create, list, show, resume, cancel, fork, compact, change, delete."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from msgspec import UNSET, Meta, Struct, UnsetType, field
from starlette.responses import Response

from perdure.runtime.sessions.listing import SessionFilter
from perdure.serve.http.dependencies import ADMINISTERS, OPERATES, READS, RequestScope
from perdure.serve.http.parameters import KEY, Name, wait_seconds
from perdure.serve.http.responses import json_response
from perdure.serve.http.table import Binary, Route, tagged, value_or_none
from perdure.views.bodies import (
    CancelBody,
    CompactBody,
    ForkBody,
    MetadataBody,
    NewSessionBody,
    Wait,
    WaitBody,
)
from perdure.views.cursors import Cursor, decode_cursor, encode_cursor
from perdure.views.literals import RunState
from perdure.views.sessions import DeletedSession, Result, SessionPage, SummaryPage

Digest = Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]


# --- all sessions ---------------------------------------------------------------------------------


async def create_session(scope: RequestScope, body: NewSessionBody) -> Response:
    """Create a session (201), or continue the session that has this id (200).

    With `wait`, 202 says that the time was over before the session was parked.
    """
    verbs, key = scope.sessions, scope.key
    session_id = verbs.new_id(body.session_id, key)
    if body.message is not None:
        scope.count_submission(session_id)
    is_new = await verbs.create(session_id, body, key)
    response = await driven_response(scope, session_id, body.wait)
    if response.status_code == 200 or not body.wait:
        response.status_code = 201 if is_new else 200
    return response


class SessionQuery(Struct, frozen=True, kw_only=True):
    """Filter of a list of sessions, its order and its page."""

    state: RunState | UnsetType = UNSET
    agent: Name | UnsetType = UNSET
    parent: Name | UnsetType = UNSET
    q: (
        Annotated[str, Meta(max_length=200, description="Text to find in ids and messages.")]
        | UnsetType
    ) = UNSET
    sort: Literal["id", "updated"] = "id"
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: Cursor = UNSET
    metadata: dict[str, str] = field(default_factory=dict)


async def list_sessions(scope: RequestScope, query: SessionQuery) -> SessionPage | SummaryPage:
    """List sessions by id, each with its current state; `metadata.KEY=value` filters by metadata.

    Several such parameters must all match. With `sort=updated` the last changed come first, each as
    its index entry has it (turns, usage, `waitingFor`), and no log is read; `count` is the number
    of all sessions, null where a filter would have to read them.
    """
    chosen = SessionFilter(
        None,
        value_or_none(query.state),
        value_or_none(query.agent),
        value_or_none(query.parent),
        query.metadata,
        value_or_none(query.q),
    )
    if query.sort == "updated":
        cursor = value_or_none(query.cursor)
        return await scope.sessions.recent_page(chosen, cursor, query.limit, counts=True)
    position = decode_cursor(query.cursor)
    after = None if position is None else position[1]
    sessions, last = await scope.sessions.page(chosen, after, query.limit)
    next_cursor = None if last is None else encode_cursor((0, last, ""))
    return SessionPage(sessions=sessions, next=next_cursor)


# --- one session ----------------------------------------------------------------------------------


async def get_session(scope: RequestScope, session_id: str) -> Result:
    """Return a session: state, findings, pending calls, todos, usage, driver.

    `findings` say where it stands or why it does not move, and what to do about it.
    """
    return await scope.sessions.get(session_id)


async def resume_session(scope: RequestScope, session_id: str, body: WaitBody) -> Response:
    """Resume a session, also after its run failed."""
    await scope.sessions.resume(session_id)
    return await driven_response(scope, session_id, body.wait)


async def cancel_session(scope: RequestScope, session_id: str, body: CancelBody) -> Result:
    """Cancel the run: after the response, nothing of it starts any more."""
    return await scope.sessions.cancel(session_id, body)


async def fork_session(scope: RequestScope, session_id: str, body: ForkBody) -> Result:
    """Copy a session up to the last event, not after `at`, at which every call was settled."""
    return await scope.sessions.fork(session_id, body)


async def compact_session(scope: RequestScope, session_id: str, body: CompactBody) -> Response:
    """Let the model summarize the conversation so far; `compaction` is null once it has."""
    await scope.sessions.compact(session_id, body)
    return await driven_response(scope, session_id, body.wait)


async def change_metadata(scope: RequestScope, session_id: str, body: MetadataBody) -> Result:
    """Change the metadata of a session."""
    return await scope.sessions.set_metadata(session_id, body.metadata)


async def delete_session(scope: RequestScope, session_id: str) -> DeletedSession:
    """Delete a session with its log and its calls; a run that is not over is cancelled first."""
    return await scope.sessions.delete(session_id)


async def get_file(scope: RequestScope, session_id: str, digest: Digest) -> Response:
    """Return a file of the session."""
    part, data = await scope.sessions.logs.file(session_id, digest)
    name = quote(str(part.get("name") or digest.removeprefix("sha256:")), safe="")
    media_type = str(part["mediaType"])
    is_valid = media_type.isascii() and media_type.isprintable()  # from a tool: it may be any text
    headers = {
        "Content-Type": media_type if is_valid else "application/octet-stream",
        "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
        "Content-Security-Policy": "sandbox",
        "ETag": f'"{digest}"',
    }
    return Response(data, media_type=None, headers=headers)


async def driven_response(
    scope: RequestScope, session_id: str, wait: Wait, extra: Mapping[str, Any] | None = None
) -> Response:
    """Return the session once it is parked (200), or as it is when the time is over (202)."""
    is_closing = scope.app_state.closing.is_set
    session, is_parked = await scope.sessions.parked(session_id, wait_seconds(wait), is_closing)
    return json_response({**session.to_json(), **(extra or {})}, 200 if is_parked else 202)


_ONE: Final = "/sessions/{session_id}"
_DRIVEN: Final = {200: Result, 202: Result}
_CREATED: Final = {200: Result, 201: Result, 202: Result}
ROUTES: Final = tagged(
    "sessions",
    Route("POST", "/sessions", OPERATES, create_session, headers=(KEY,), returns=_CREATED),
    Route("GET", "/sessions", READS, list_sessions),
    Route("GET", _ONE, READS, get_session),
    Route("PATCH", _ONE, OPERATES, change_metadata),
    Route("DELETE", _ONE, ADMINISTERS, delete_session),
    Route("POST", f"{_ONE}/resume", OPERATES, resume_session, optional_body=True, returns=_DRIVEN),
    Route("POST", f"{_ONE}/cancel", OPERATES, cancel_session, optional_body=True),
    Route("POST", f"{_ONE}/fork", OPERATES, fork_session, optional_body=True, status=201),
    Route(
        "POST", f"{_ONE}/compact", OPERATES, compact_session, optional_body=True, returns=_DRIVEN
    ),
    Route("GET", f"{_ONE}/files/{{digest}}", READS, get_file, returns={200: Binary}),
)
