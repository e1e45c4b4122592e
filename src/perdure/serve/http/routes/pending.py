"""The calls that wait: shown, decided and given up."""

import heapq
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query, Response
from msgspec import Struct

from perdure.core.pending.commands import Approve, CancelCall, Command, Deny, Respond
from perdure.core.pending.record import PendingRecord
from perdure.serve.http.cursors import Cursor, cursor_of, place_of
from perdure.serve.http.dependencies import Decides, Id, Operates, ReadsToolCalls, RequestScope
from perdure.serve.http.responses import answers, listing, reply, taking
from perdure.serve.http.schemas import DECIDED, PENDING, By
from perdure.serve.http.settlement import is_seen, seen, settled, shown, waited
from perdure.serve.http.wait import Wait

router = APIRouter(tags=["pending calls"])

Status = Literal["waiting", "processing", "completed", "failed", "expired", "cancelled", "all"]
Kind = Literal["tool", "approval", "question", "child", "timer"]
Name = Annotated[str, Query(max_length=200)]

_LISTED: Final = answers({200: listing("pending", PENDING, "count")}, 404)
_ONE: Final = answers({200: PENDING}, 404)
_DECIDED: Final = answers({200: DECIDED, 202: DECIDED}, 404, 409)


class ApproveBody(Struct, forbid_unknown_fields=True):
    """Changes of the arguments, laid over the stored ones, a note, and what to allow from now on.

    `remember` is true for exactly this call, or a rule such as `shell:cmd=ls*`.
    """

    args: dict[str, Any] | None = None
    note: str | None = None
    remember: bool | str = False
    by: By | None = None
    wait: Wait = None


class DenyBody(Struct, forbid_unknown_fields=True):
    """Why not."""

    reason: str | None = None
    by: By | None = None
    wait: Wait = None


class RespondBody(Struct, forbid_unknown_fields=True):
    """The answer, or what to take instead of running the call."""

    output: str
    by: By | None = None
    wait: Wait = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which calls a list is about; without a status the open ones."""

    status: Status | None = None
    kind: Kind | None = None
    tool: Name | None = None
    sessionID: Name | None = None  # noqa: N815 - as on the wire

    def takes(self, record: PendingRecord) -> bool:
        """Whether a record of the right status is meant."""
        return (
            self.kind in (None, record.kind)
            and self.tool in (None, record.tool)
            and self.sessionID in (None, record.session_id)
        )


@router.get("/async-tool/pending", responses=_LISTED, name="list async-tool calls")
@router.get("/pending", responses=_LISTED, name="list pending calls")
async def listed(
    door: ReadsToolCalls,
    wanted: Annotated[Wanted, Depends()],
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Cursor = None,
) -> Response:
    """Calls that wait, oldest first; `count` is the number of all that match."""
    after, count = place_of(cursor), 0
    kept: list[PendingRecord] = []
    async for record in door.service.pending(door.tenant, status=wanted.status):
        if is_seen(door, record) and wanted.takes(record):
            count += 1
            if after is None or _place(record) > after:
                kept.append(record)
    page = heapq.nsmallest(limit + 1, kept, key=_place)
    following = cursor_of(_place(page[limit - 1])) if len(page) > limit else None
    found = [shown(door, one) for one in page[:limit]]
    return reply({"pending": found, "count": count, "next": following})


def _place(record: PendingRecord) -> tuple[int, str, str]:
    return record.time.created, record.part_id, record.id


@router.get("/async-tool/pending/{pending_id}", responses=_ONE, name="one async-tool call")
@router.get("/pending/{pending_id}", responses=_ONE, name="one pending call")
async def one(door: ReadsToolCalls, pending_id: Id) -> Response:
    """One call, also after it was settled."""
    return reply(shown(door, await seen(door, pending_id)))


@router.delete("/async-tool/pending/{pending_id}", responses=_DECIDED, name="cancel a tool's call")
@router.delete("/pending/{pending_id}", responses=_DECIDED, name="cancel a call")
async def cancel(door: Operates, pending_id: Id, by: Name | None = None) -> Response:
    """Give a call up; the session goes on, and its model is told."""
    return await _decided(door, pending_id, CancelCall(door.by(by), door.via), None)


@router.post(
    "/pending/{pending_id}/approve",
    responses=_DECIDED,
    openapi_extra=taking(ApproveBody, optional=True),
)
async def approve(door: Decides, pending_id: Id) -> Response:
    """Let exactly the stored call run, with `args` laid over its arguments."""
    body = await door.body(ApproveBody, empty=ApproveBody())
    command = Approve(door.by(body.by), door.via, body.args, body.note, body.remember)
    return await _decided(door, pending_id, command, body.wait)


@router.post(
    "/pending/{pending_id}/deny", responses=_DECIDED, openapi_extra=taking(DenyBody, optional=True)
)
async def deny(door: Decides, pending_id: Id) -> Response:
    """Do not run the call, or decline to answer; the model is told the reason."""
    body = await door.body(DenyBody, empty=DenyBody())
    command = Deny(door.by(body.by), door.via, body.reason)
    return await _decided(door, pending_id, command, body.wait)


@router.post("/pending/{pending_id}/respond", responses=_DECIDED, openapi_extra=taking(RespondBody))
async def respond(door: Decides, pending_id: Id) -> Response:
    """Answer a question, or give an output instead of running the call."""
    body = await door.body(RespondBody)
    command = Respond(door.by(body.by), door.via, body.output)
    return await _decided(door, pending_id, command, body.wait)


async def _decided(door: RequestScope, pending_id: str, command: Command, wait: Wait) -> Response:
    outcome = await settled(door, pending_id, command)
    status, more = await waited(door, outcome.record, wait)
    if outcome.duplicate:
        more["duplicate"] = True
    return reply({"success": True, **shown(door, outcome.record), **more}, status)
