"""Routes of sessions: create, list, show, resume, cancel, fork, compact, change, delete."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Path, Query, Response
from msgspec import Meta, Struct, field

from perdure.core.literals import RunState
from perdure.core.log.events import CompactionRequested, Content
from perdure.core.session.naming import check_id
from perdure.core.session.queues import check_queue
from perdure.core.webhooks.deliveries import Hook
from perdure.errors import Refused
from perdure.runtime.diagnosis.commands import PlainCommands
from perdure.runtime.diagnosis.sessions import Diagnosis, SessionSnapshot, diagnose
from perdure.runtime.ids import new_id
from perdure.runtime.inbox.sessions import NewMessage
from perdure.runtime.records.entries import SessionEntry, SessionRef, session_not_found
from perdure.runtime.sessions.listing import (
    SessionFilter,
    count_sessions,
    recent_sessions,
    session_page,
)
from perdure.runtime.sessions.summary import request_summary
from perdure.runtime.views import Result
from perdure.serve.http.content import (
    PromptIn,
    content_type,
    file_not_found,
    find_file,
    store_content,
)
from perdure.serve.http.cursors import (
    Cursor,
    PagePosition,
    decode_cursor,
    encode_cursor,
)
from perdure.serve.http.dependencies import Administers, Id, Key, Operates, Reads, RequestScope
from perdure.serve.http.responses import json_response, request_body, responses
from perdure.serve.http.schemas import DELETED, SESSION, SESSIONS, By, IdText, Wait, wait_seconds

router = APIRouter(tags=["sessions"])

Name = Annotated[str, Query(max_length=200)]
Digest = Annotated[str, Path(pattern="^sha256:[0-9a-f]{64}$")]

_METADATA: Final = "metadata."
_COUNT: Final = re.compile(r"[0-9]{1,15}")  # of all sessions, in the cursor of a list
_GET_RESPONSES: Final = responses({200: SESSION}, 404)
_CHANGE_RESPONSES: Final = responses({200: SESSION}, 404, 409)
DRIVEN_RESPONSES: Final = responses({200: SESSION, 202: SESSION}, 404, 409)
_FILE: Final[dict[int | str, dict[str, Any]]] = {
    **responses({}, 404),
    200: {"description": "The file.", "content": {"*/*": {}}},
}


class NewSessionBody(Struct, forbid_unknown_fields=True):
    """A session with its agent and perhaps a first message; without an id it gets a new one."""

    agent: IdText
    session_id: IdText | None = field(default=None, name="sessionID")
    message: PromptIn | None = None
    metadata: dict[str, Any] | None = None
    queue: str | None = None
    notify_url: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None
    notify_secret: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    by: By | None = None
    wait: Wait = None


class WaitBody(Struct, forbid_unknown_fields=True):
    """Request to wait until the session is parked."""

    wait: Wait = None


class CancelBody(Struct, forbid_unknown_fields=True):
    """The reason of a cancellation."""

    reason: str | None = None
    by: By | None = None


class ForkBody(Struct, forbid_unknown_fields=True):
    """The last event that the fork copies, and the id of the fork."""

    at: Annotated[int, Meta(ge=1)] | None = None
    session_id: IdText | None = field(default=None, name="sessionID")


class CompactBody(Struct, forbid_unknown_fields=True):
    """The number of last turns to keep, and additional instructions for the model."""

    keep: Annotated[int, Meta(ge=0)] | None = None
    instructions: Annotated[str, Meta(min_length=1)] | None = None
    by: By | None = None
    wait: Wait = None


class MetadataBody(Struct, forbid_unknown_fields=True):
    """Changes of metadata; null removes a key."""

    metadata: dict[str, Any]


# --- all sessions ---------------------------------------------------------------------------------


@router.post(
    "/sessions",
    status_code=201,
    responses=responses({200: SESSION, 201: SESSION, 202: SESSION}, 404, 409),
    openapi_extra=request_body(NewSessionBody),
)
async def create_session(scope: Operates, key: Key = None) -> Response:
    """Create a session (201), or continue the session that has this id (200).

    With `wait`, 202 says that the time was over before the session was parked.
    """
    body = await scope.read_body(NewSessionBody)
    agents, service = scope.service.agents, scope.service
    if agents.names():  # a mistyped name must not create a session that no worker ever drives
        agents.get(body.agent)
    session_id = _session_id(scope, body, key)
    ready = agents.find(body.agent)
    names = [body.agent] if ready is None else [ready.name, *ready.agent.aliases]
    mode = "queue" if ready is None else ready.agent.while_waiting
    queue = agents.queue_for(body.agent) if body.queue is None else check_queue(body.queue)
    ref = SessionRef(
        scope.home_tenant, session_id, tuple(names), mode, body.metadata, _hook(body), queue
    )
    if body.message is None:
        receipt = await service.create(ref)
    else:
        scope.app_state.count_submission(scope.rate_key(session_id))
        content = await store_content(service, await service.find(ref), body.message)
        receipt = await service.send(ref, new_message(scope, content, key, body.by))
    status = 201 if receipt.is_new else 200
    seconds = wait_seconds(body.wait)
    if seconds:
        response = await driven_response(scope, receipt.entry, seconds)
        response.status_code = 202 if response.status_code == 202 else status
        return response
    return json_response(await _session_json(scope, receipt.entry), status)


def _session_id(scope: RequestScope, body: NewSessionBody, key: str | None) -> str:
    """Return the id of the body, else one derived from the message key, else a new one."""
    if body.session_id is not None:
        return check_id(body.session_id)
    if key is None:
        return new_id("s")
    source = f"{scope.home_tenant}\n{scope.principal.name}\n{check_id(key, 'key')}"
    return f"s_{hashlib.sha256(source.encode()).hexdigest()[:32]}"


def _hook(body: NewSessionBody) -> Hook | None:
    """Return the receiver of the session's webhooks. Raises Refused for a secret without URL."""
    if body.notify_url is not None:
        return Hook(body.notify_url, body.notify_secret)
    if body.notify_secret is not None:
        raise Refused(
            "notify_secret needs notify_url",
            code="BODY_INVALID",
            hint="add notify_url, or leave out notify_secret",
        )
    return None


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """Filter of a list of sessions."""

    state: RunState | None = None
    agent: Name | None = None
    parent: Name | None = None
    q: Annotated[
        str | None, Query(max_length=200, description="Text to find in ids and messages.")
    ] = None
    sort: Literal["id", "updated"] = "id"


@router.get("/sessions", responses=responses({200: SESSIONS}))
async def list_sessions(
    scope: Reads,
    query: Annotated[SessionQuery, Depends()],
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: Cursor = None,
) -> Response:
    """List sessions by id, each with its current state; `metadata.KEY=value` filters by metadata.

    Several such parameters must all match. With `sort=updated` the last changed come first, each as
    its index entry has it (turns, usage, `waitingFor`), and no log is read; `count` is the number
    of all sessions, null where a filter would have to read them.
    """
    metadata = {
        name.removeprefix(_METADATA): value
        for name, value in scope.request.query_params.items()
        if name.startswith(_METADATA)
    }
    session_filter = SessionFilter(
        scope.tenant, query.state, query.agent, query.parent, metadata, query.q
    )
    position = decode_cursor(cursor)
    if query.sort == "updated":
        return await _recent_response(scope, session_filter, position, limit)
    after = None if position is None else position[1]
    results, last = await session_page(scope.service, session_filter, after, limit)
    next_cursor = None if last is None else encode_cursor((0, last, ""))
    return json_response(
        {"sessions": [result.to_json() for result in results], "next": next_cursor}
    )


async def _recent_response(
    scope: RequestScope, session_filter: SessionFilter, position: PagePosition | None, limit: int
) -> Response:
    after: str | None = None
    if position is None:
        count = await count_sessions(scope.service, session_filter)
    else:
        at, key, counted = position
        after, count = f"0:{at}:{key}", int(counted) if _COUNT.fullmatch(counted) else None
    summaries, last = await recent_sessions(scope.service, session_filter, after, limit)
    next_cursor = None
    if last is not None:
        _, at_text, key = last.split(":", 2)
        counted = "" if count is None else str(count)
        next_cursor = encode_cursor((max(int(at_text), 0), key, counted))
    sessions = [summary.to_json() for summary in summaries]
    return json_response({"sessions": sessions, "count": count, "next": next_cursor})


# --- one session ----------------------------------------------------------------------------------


@router.get("/sessions/{session_id}", responses=_GET_RESPONSES)
async def get_session(scope: Reads, session_id: Id) -> Response:
    """Return a session: state, problem, pending calls, todos, usage, driver.

    `why` says in a sentence where it stands or why it does not move, and what to do about it.
    """
    result = await scope.service.listed_result(await find_entry(scope, session_id))
    return json_response({**result.to_json(), "why": explain(scope, result).to_json()})


@router.post(
    "/sessions/{session_id}/resume",
    responses=DRIVEN_RESPONSES,
    openapi_extra=request_body(WaitBody, optional=True),
)
async def resume_session(scope: Operates, session_id: Id) -> Response:
    """Resume a session, also after its run failed."""
    body = await scope.read_body(WaitBody, empty=WaitBody())
    entry = await find_entry(scope, session_id)
    seconds = wait_seconds(body.wait)
    await scope.service.runs.prepare(entry)
    return await driven_response(scope, await scope.service.runs.resume(entry), seconds)


@router.post(
    "/sessions/{session_id}/cancel",
    responses=_CHANGE_RESPONSES,
    openapi_extra=request_body(CancelBody, optional=True),
)
async def cancel_session(scope: Operates, session_id: Id) -> Response:
    """Cancel the run: after the response, nothing of it starts any more."""
    body = await scope.read_body(CancelBody, empty=CancelBody())
    ref = session_ref(scope, session_id)
    await scope.service.cancel(ref, scope.actor(body.by), body.reason, scope.via)
    return json_response(await _session_json(scope, await find_entry(scope, session_id)))


@router.post(
    "/sessions/{session_id}/fork",
    status_code=201,
    responses=responses({201: SESSION}, 404, 409),
    openapi_extra=request_body(ForkBody, optional=True),
)
async def fork_session(scope: Operates, session_id: Id) -> Response:
    """Copy a session up to the last event, not after `at`, at which every call was settled."""
    body = await scope.read_body(ForkBody, empty=ForkBody())
    entry = await find_entry(scope, session_id)
    copy = await scope.service.fork(entry, at=body.at, session_id=body.session_id)
    return json_response(await _session_json(scope, copy), 201)


@router.post(
    "/sessions/{session_id}/compact",
    responses=DRIVEN_RESPONSES,
    openapi_extra=request_body(CompactBody, optional=True),
)
async def compact_session(scope: Operates, session_id: Id) -> Response:
    """Let the model summarize the conversation so far; `compaction` is null once it has."""
    body = await scope.read_body(CompactBody, empty=CompactBody())
    entry = await find_entry(scope, session_id)
    seconds = wait_seconds(body.wait)
    request = CompactionRequested(
        keep=body.keep, instructions=body.instructions, by=scope.actor(body.by)
    )
    await request_summary(scope.service, entry, request)
    return await driven_response(scope, entry, seconds)


@router.patch(
    "/sessions/{session_id}", responses=_CHANGE_RESPONSES, openapi_extra=request_body(MetadataBody)
)
async def change_metadata(scope: Operates, session_id: Id) -> Response:
    """Change the metadata of a session."""
    body = await scope.read_body(MetadataBody)
    await scope.service.set_metadata(session_ref(scope, session_id), body.metadata)
    return json_response(await _session_json(scope, await find_entry(scope, session_id)))


@router.delete("/sessions/{session_id}", responses=responses({200: DELETED}, 404))
async def delete_session(scope: Administers, session_id: Id) -> Response:
    """Delete a session with its log and its calls; a run that is not over is cancelled first."""
    ref = session_ref(scope, session_id)
    state = await scope.service.erase(ref, scope.actor(), scope.via)
    return json_response({"sessionID": session_id, "deleted": True, "state": state})


@router.get("/sessions/{session_id}/files/{digest}", responses=_FILE)
async def get_file(scope: Reads, session_id: Id, digest: Digest) -> Response:
    """Return a file of the session."""
    entry = await find_entry(scope, session_id)
    part = await find_file(scope.service, entry, digest)
    data = None if part is None else await scope.service.read_file(digest)
    if part is None or data is None:
        raise file_not_found(digest)
    name = quote(str(part.get("name") or digest.removeprefix("sha256:")), safe="")
    return Response(
        data,
        media_type=None,
        headers={
            "Content-Type": content_type(str(part["mediaType"])),
            "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
            "Content-Security-Policy": "sandbox",
            "ETag": f'"{digest}"',
        },
    )


# --- shared by the routes of a session ------------------------------------------------------------


def session_ref(scope: RequestScope, session_id: str) -> SessionRef:
    """Return the key of a session. Raises NotFound, also for a text that cannot be an id."""
    try:
        return SessionRef(scope.home_tenant, check_id(session_id))
    except Refused as error:
        raise session_not_found(session_id) from error


async def find_entry(scope: RequestScope, session_id: str) -> SessionEntry:
    """Return the entry of a session if the caller may see it. Raises NotFound."""
    return await scope.service.get(session_ref(scope, session_id))


def new_message(
    scope: RequestScope, content: Content, key: str | None, by: str | None
) -> NewMessage:
    """Return a message of the caller. Raises Refused, NotAllowed."""
    key = None if key is None else check_id(key, "key")
    return NewMessage(content, key, scope.actor(by), via=scope.via)


async def _session_json(scope: RequestScope, entry: SessionEntry) -> dict[str, Any]:
    return (await scope.service.listed_result(entry)).to_json()


def explain(scope: RequestScope, result: Result[Any]) -> Diagnosis:
    """Return where a session stands, why it does not move, and what to do about it."""
    snapshot = SessionSnapshot(
        result.to_json(), scope.service.now(), has_queued_message=result.has_queued_message
    )
    return diagnose(snapshot, PlainCommands())


async def driven_response(
    scope: RequestScope,
    entry: SessionEntry,
    seconds: float,
    extra: Mapping[str, Any] | None = None,
) -> Response:
    """Return the session once it is parked (200), or as it is when the time is over (202)."""
    is_parked = bool(seconds) and await scope.service.runs.wait_until_parked(
        entry, seconds, scope.app_state.closing.is_set
    )
    newest = await scope.service.find(SessionRef(entry.record.tenant, entry.record.id))
    if newest is None:
        raise session_not_found(entry.record.id)  # deleted meanwhile
    body = {**await _session_json(scope, newest), **(extra or {})}
    return json_response(body, 200 if is_parked else 202)
