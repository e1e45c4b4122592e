"""Sessions: made, listed, shown, resumed, cancelled, forked, deleted."""

import hashlib
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, Path, Query, Response
from msgspec import Meta, Struct, field

from perdure.core.log.events import CompactionRequested
from perdure.core.session.naming import check_id
from perdure.core.session.queues import check_queue
from perdure.core.webhooks.deliveries import Hook
from perdure.errors import Refused
from perdure.runtime.ids import new_id
from perdure.runtime.inbox.sessions import NewMessage
from perdure.runtime.records.content import read_bytes
from perdure.runtime.records.entries import SessionEntry, SessionRef, session_not_found
from perdure.runtime.sessions.listing import SessionFilter, page_of
from perdure.runtime.sessions.summary import ask_for_summary
from perdure.runtime.transfer.create import fork
from perdure.serve.http.content import ContentIn, file_of, header_of, no_file, stored
from perdure.serve.http.cursors import Cursor, cursor_of, place_of
from perdure.serve.http.dependencies import Administers, Id, Operates, Reads, RequestScope
from perdure.serve.http.responses import answers, reply, taking
from perdure.serve.http.schemas import DELETED, SESSION, SESSIONS, By, IdText
from perdure.serve.http.wait import Wait, rested, seconds_of
from perdure.store.base import NoStream

router = APIRouter(tags=["sessions"])

State = Literal["pending", "running", "waiting", "completed", "failed", "cancelled"]
Name = Annotated[str, Query(max_length=200)]
Key = Annotated[
    str | None,
    Header(alias="Idempotency-Key", description="The same message again is sent once."),
]
Digest = Annotated[str, Path(pattern="^sha256:[0-9a-f]{64}$")]

_METADATA: Final = "metadata."
_ONE: Final = answers({200: SESSION}, 404)
_CHANGED: Final = answers({200: SESSION}, 404, 409)
MOVED: Final = answers({200: SESSION, 202: SESSION}, 404, 409)
_FILE: Final[dict[int | str, dict[str, Any]]] = {
    **answers({}, 404),
    200: {"description": "The file.", "content": {"*/*": {}}},
}


class NewSession(Struct, forbid_unknown_fields=True):
    """An agent, and what it is told; the id is made here unless it is given."""

    agent: IdText
    session_id: IdText | None = field(default=None, name="sessionID")
    message: ContentIn | None = None
    metadata: dict[str, Any] | None = None
    queue: str | None = None
    notify_url: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None
    notify_secret: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    by: By | None = None


class WaitBody(Struct, forbid_unknown_fields=True):
    """Whether to wait until the session rests."""

    wait: Wait = None


class CancelBody(Struct, forbid_unknown_fields=True):
    """Why."""

    reason: str | None = None
    by: By | None = None


class ForkBody(Struct, forbid_unknown_fields=True):
    """Up to which event, and what the fork is called."""

    at: Annotated[int, Meta(ge=1)] | None = None
    session_id: IdText | None = field(default=None, name="sessionID")


class CompactBody(Struct, forbid_unknown_fields=True):
    """How many of the last turns stay, and what the model is told besides."""

    keep: Annotated[int, Meta(ge=0)] | None = None
    instructions: Annotated[str, Meta(min_length=1)] | None = None
    by: By | None = None
    wait: Wait = None


class MetadataBody(Struct, forbid_unknown_fields=True):
    """Changes; null removes a key."""

    metadata: dict[str, Any]


# --- making and listing ---------------------------------------------------------------------------


@router.post(
    "/sessions",
    status_code=201,
    responses=answers({200: SESSION, 201: SESSION}, 404, 409),
    openapi_extra=taking(NewSession),
)
async def create(door: Operates, key: Key = None) -> Response:
    """Make a session (201), or go on with the one that has this id (200)."""
    body = await door.body(NewSession)
    agents, service = door.service.agents, door.service
    if agents.names():  # a mistyped name must not become a session that nobody ever drives
        agents.get(body.agent)
    name = _name(door, body, key)
    ready = agents.find(body.agent)
    names = [body.agent] if ready is None else [ready.name, *ready.agent.aliases]
    mode = "queue" if ready is None else ready.agent.while_waiting
    queue = agents.queue_of(body.agent) if body.queue is None else check_queue(body.queue)
    address = SessionRef(door.home, name, tuple(names), mode, body.metadata, _hook(body), queue)
    if body.message is None:
        made = await service.desk.outside.create(address)
    else:
        door.shared.count(door.named(name))
        known = await service.desk.outside.find(address)
        content = await stored(service, known, body.message)
        said = NewMessage(content, None if key is None else check_id(key, "key"), door.by(body.by))
        made = await service.desk.outside.send(address, said)
    return reply(await _session(door, made.known), 201 if made.is_new else 200)


def _name(door: RequestScope, body: NewSession, key: str | None) -> str:
    """The id: as given, or the same again for the same key, else a new one."""
    if body.session_id is not None:
        return check_id(body.session_id)
    if key is None:
        return new_id("s")
    whose = f"{door.home}\n{door.principal.name}\n{check_id(key, 'key')}"
    return f"s_{hashlib.sha256(whose.encode()).hexdigest()[:32]}"


def _hook(body: NewSession) -> Hook | None:
    """Who is told of it. Raises Refused for a secret that would sign nothing."""
    if body.notify_url is not None:
        return Hook(body.notify_url, body.notify_secret)
    if body.notify_secret is not None:
        raise Refused("notify_secret needs notify_url", code="BODY_INVALID")
    return None


@dataclass(frozen=True, slots=True)
class Filters:
    """Which sessions a list is about."""

    state: State | None = None
    agent: Name | None = None
    parent: Name | None = None
    q: Annotated[str | None, Query(max_length=200, description="In ids and messages.")] = None


@router.get("/sessions", responses=answers({200: SESSIONS}))
async def listed(
    door: Reads,
    filters: Annotated[Filters, Depends()],
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: Cursor = None,
) -> Response:
    """Sessions by id, each as it stands; `metadata.KEY=value` narrows to those that have that."""
    given = door.request.query_params.items()
    metadata = {
        name.removeprefix(_METADATA): value for name, value in given if name.startswith(_METADATA)
    }
    wanted = SessionFilter(
        door.tenant, filters.state, filters.agent, filters.parent, metadata, filters.q
    )
    place = place_of(cursor)
    found, last = await page_of(door.service, wanted, None if place is None else place[1], limit)
    following = None if last is None else cursor_of((0, last, ""))
    return reply({"sessions": [one.to_json() for one in found], "next": following})


# --- one ------------------------------------------------------------------------------------------


@router.get("/sessions/{session_id}", responses=_ONE)
async def one(door: Reads, session_id: Id) -> Response:
    """A session as it stands: state, problem, what waits, todos, usage, who drives it."""
    return reply(await _session(door, await known_to(door, session_id)))


@router.post(
    "/sessions/{session_id}/resume", responses=MOVED, openapi_extra=taking(WaitBody, optional=True)
)
async def resume(door: Operates, session_id: Id) -> Response:
    """Let it go on, also after it failed."""
    body = await door.body(WaitBody, empty=WaitBody())
    known = await known_to(door, session_id)
    seconds = seconds_of(body.wait)
    await door.service.prepare(known)
    return await moved(door, await door.service.resume(known), seconds)


@router.post(
    "/sessions/{session_id}/cancel",
    responses=_CHANGED,
    openapi_extra=taking(CancelBody, optional=True),
)
async def cancel(door: Operates, session_id: Id) -> Response:
    """End the run: once this answers, nothing of it is begun any more."""
    body = await door.body(CancelBody, empty=CancelBody())
    address = address_of(door, session_id)
    await door.service.desk.outside.cancel(address, door.by(body.by), body.reason)
    return reply(await _session(door, await known_to(door, session_id)))


@router.post(
    "/sessions/{session_id}/fork",
    status_code=201,
    responses=answers({201: SESSION}, 404, 409),
    openapi_extra=taking(ForkBody, optional=True),
)
async def forked(door: Operates, session_id: Id) -> Response:
    """A copy up to the last point, not after `at`, where every call was settled."""
    body = await door.body(ForkBody, empty=ForkBody())
    known = await known_to(door, session_id)
    store = door.service.desk.store
    made = await fork(store, known, at=body.at, session_id=body.session_id)
    return reply(await _session(door, made), 201)


@router.post(
    "/sessions/{session_id}/compact",
    responses=MOVED,
    openapi_extra=taking(CompactBody, optional=True),
)
async def compact(door: Operates, session_id: Id) -> Response:
    """Let the model summarise what was said so far; `compaction` is null once it has."""
    body = await door.body(CompactBody, empty=CompactBody())
    known = await known_to(door, session_id)
    seconds = seconds_of(body.wait)
    wanted = CompactionRequested(
        keep=body.keep, instructions=body.instructions, by=door.by(body.by)
    )
    await ask_for_summary(door.service, known, wanted)
    return await moved(door, known, seconds)


@router.patch("/sessions/{session_id}", responses=_CHANGED, openapi_extra=taking(MetadataBody))
async def change(door: Operates, session_id: Id) -> Response:
    """Change metadata."""
    body = await door.body(MetadataBody)
    address = address_of(door, session_id)
    await door.service.desk.outside.set_metadata(address, body.metadata)
    return reply(await _session(door, await known_to(door, session_id)))


@router.delete("/sessions/{session_id}", responses=answers({200: DELETED}, 404))
async def delete(door: Administers, session_id: Id) -> Response:
    """Delete it with its log and its calls."""
    await door.service.desk.outside.erase(address_of(door, session_id))
    return reply({"sessionID": session_id, "deleted": True})


@router.get("/sessions/{session_id}/files/{digest}", responses=_FILE)
async def file(door: Reads, session_id: Id, digest: Digest) -> Response:
    """A file that the session names."""
    known = await known_to(door, session_id)
    part = await file_of(door.service, known, digest)
    if part is None:
        raise no_file(digest)
    try:
        data = await read_bytes(door.service.desk.store, digest)
    except NoStream as error:
        raise no_file(digest) from error
    name = quote(str(part.get("name") or digest.removeprefix("sha256:")), safe="")
    return Response(
        data,
        media_type=None,
        headers={
            "Content-Type": header_of(str(part["mediaType"])),
            "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
            "Content-Security-Policy": "sandbox",
            "ETag": f'"{digest}"',
        },
    )


# --- what the routes of a session share -----------------------------------------------------------


def address_of(door: RequestScope, session_id: str) -> SessionRef:
    """Which session is meant; what cannot be an id is the id of none. Raises NotFound."""
    try:
        return SessionRef(door.home, check_id(session_id))
    except Refused as error:
        raise session_not_found(session_id) from error


async def known_to(door: RequestScope, session_id: str) -> SessionEntry:
    """The session, if it is there for who asks. Raises NotFound."""
    return await door.service.desk.outside.known(address_of(door, session_id))


async def _session(door: RequestScope, known: SessionEntry) -> dict[str, Any]:
    return (await door.service.listed(known)).to_json()


async def moved(door: RequestScope, known: SessionEntry, seconds: float) -> Response:
    """The session, once it rests (200), or as it is when the time is over (202)."""
    rests = bool(seconds) and await rested(door.service, known, seconds, door.shared.closing)
    found = await door.service.desk.outside.find(SessionRef(known.record.tenant, known.record.id))
    if found is None:
        raise session_not_found(known.record.id)  # deleted meanwhile
    return reply(await _session(door, found), 200 if rests else 202)
