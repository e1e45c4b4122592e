"""Routes of pending calls: list, show, decide, cancel."""

import re
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query, Response
from msgspec import Meta, Struct, field

from perdure.core.literals import CallKind, DecisionKind, PendingStatus
from perdure.core.pending.commands import Approve, CancelCall, Command, Deny, Respond
from perdure.core.roles import Permit
from perdure.runtime.records.listings import Audience
from perdure.runtime.sessions.decisions import (
    FIELDS,
    MOST,
    PendingDecisionItem,
    decision_commands,
)
from perdure.runtime.sessions.pending_pages import PendingFilter, PendingSort
from perdure.serve.http.cursors import bad_cursor, decode_cursor, encode_cursor, query_cursor
from perdure.serve.http.dependencies import Decides, Id, Operates, ReadsToolCalls, RequestScope
from perdure.serve.http.responses import (
    body_extra,
    json_response,
    json_schema,
    object_schema,
    page_schema,
    request_body,
    responses,
)
from perdure.serve.http.schemas import BOOLEAN, DECIDED, PENDING, By, IdText, Wait
from perdure.serve.http.settlement import (
    call_json,
    may_read,
    readable_call,
    settle_call,
    wait_for_session,
)

router = APIRouter(tags=["pending calls"])

Status = Literal[PendingStatus, "settled", "all"]
Name = Annotated[str, Query(max_length=200)]

# The number of all calls; the key of the last one; its deadline and instant.
_DIGITS: Final = r"(?:2d)?(?:3[0-9]){1,19}"  # hexadecimal
_CURSOR: Final = rf"^[0-9]{{1,15}}\.(?:[0-9a-f]{{2}}){{0,2500}}\.{_DIGITS}3a{_DIGITS}$"
PendingCursor = Annotated[str | None, query_cursor(_CURSOR)]
_LIST_RESPONSES: Final = responses({200: page_schema("pending", PENDING, "count")}, 404)
_GET_RESPONSES: Final = responses({200: PENDING}, 404)
_DECISION_RESPONSES: Final = responses({200: DECIDED, 202: DECIDED}, 404, 409)
_DECISIONS_RESPONSES: Final = responses(
    {
        200: object_schema(
            ("success", "decisions"), success=BOOLEAN, decisions={"type": "array", "items": DECIDED}
        )
    },
    404,
    409,
)


class ApproveBody(Struct, forbid_unknown_fields=True):
    """Arguments that replace stored ones, a note, and a permission to remember.

    `remember` is true for exactly this call, or a rule such as `shell:cmd=ls*`; a rule that covers
    every tool is refused without `allTools`.
    """

    args: dict[str, Any] | None = None
    note: str | None = None
    remember: bool | str = False
    all_tools: bool = field(default=False, name="allTools")
    by: By | None = None
    wait: Wait = None


class DenyBody(Struct, forbid_unknown_fields=True):
    """The reason of a denial, and a denial to remember, as for an approval."""

    reason: str | None = None
    remember: bool | str = False
    all_tools: bool = field(default=False, name="allTools")
    by: By | None = None
    wait: Wait = None


class RespondBody(Struct, forbid_unknown_fields=True):
    """The answer to a question, or an output instead of running the call: any JSON."""

    output: Any
    by: By | None = None
    wait: Wait = None


class DecisionsBody(Struct, forbid_unknown_fields=True):
    """Decisions about several calls, of which all are recorded or none."""

    decisions: Annotated[list[PendingDecisionItem], Meta(min_length=1, max_length=MOST)]
    by: By | None = None


def _decisions_schema() -> dict[str, Any]:
    """Return the schema of several decisions, in which each kind has only its own fields."""
    schema = json_schema(DecisionsBody)
    fields: dict[str, Any] = schema["properties"]["decisions"]["items"]["properties"]
    needed: dict[DecisionKind, tuple[str, ...]] = {"edit": ("args",), "respond": ("output",)}
    kinds = []
    for kind, names in FIELDS.items():
        own = {"pendingID": json_schema(IdText), **{name: fields[name] for name in sorted(names)}}
        if kind == "edit":
            own["args"] = {"type": "object", "minProperties": 1}
        required = ("pendingID", "decision", *needed.get(kind, ()))
        item = object_schema(required, **own, decision={"const": kind})
        kinds.append({**item, "additionalProperties": False})
    schema["properties"]["decisions"]["items"] = {"oneOf": kinds}
    return schema


@dataclass(frozen=True, slots=True)
class PendingQuery:
    """Filter of a list of calls; without a status it lists the open ones, and its order."""

    status: Status | None = None
    kind: CallKind | None = None
    tool: Name | None = None
    sessionID: Name | None = None  # noqa: N815 - as on the wire
    waitsFor: Audience | None = None  # noqa: N815
    agent: Name | None = None
    q: Annotated[
        str | None, Query(max_length=200, description="Text to find in prompts and arguments.")
    ] = None
    sort: PendingSort = "age"


@router.get("/async-tool/pending", responses=_LIST_RESPONSES, name="list async-tool calls")
@router.get("/pending", responses=_LIST_RESPONSES, name="list pending calls")
async def list_pending(
    scope: ReadsToolCalls,
    query: Annotated[PendingQuery, Depends()],
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: PendingCursor = None,
) -> Response:
    """List pending calls; `count` is the number of all calls that matched at first.

    `sort` is `age` (oldest first), `expires` (those without a deadline last) or `newest`; settled
    calls are ordered by their end. `waitsFor` is `people` (approvals, questions) or `machines`.
    """
    pending_filter = PendingFilter(
        query.status,
        scope.tenant,
        query.kind,
        query.tool,
        query.sessionID,
        None if scope.has_permit(Permit.READ) else partial(may_read, scope),
        query.waitsFor,
        query.agent,
        query.q,
    )
    count, after = decode_position(cursor)
    calls = scope.service.calls
    records, following = await calls.page(pending_filter, after, limit, query.sort)
    if count is None:  # a list of one page is counted without calls that cannot be read
        count = len(records) if following is None else await calls.count(pending_filter)
    next_cursor = None if following is None else encode_position(count, following)
    page = [call_json(scope, record) for record in records]
    return json_response({"pending": page, "count": count, "next": next_cursor})


def encode_position(count: int, after: str) -> str:
    """Return the cursor of the next page, which also has the number of all calls."""
    due, at, key = after.split(":", 2)
    return encode_cursor((count, key, f"{due}:{at}"))


def decode_position(cursor: str | None) -> tuple[int | None, str | None]:
    """Return the number of all calls, None if they are not counted yet, and the store's cursor."""
    if cursor is not None and re.fullmatch(_CURSOR, cursor) is None:
        raise bad_cursor()
    decoded = decode_cursor(cursor)
    if decoded is None:
        return None, None
    count, key, instants = decoded
    return count, f"{instants}:{key}"


@router.get(
    "/async-tool/pending/{pending_id}", responses=_GET_RESPONSES, name="get an async-tool call"
)
@router.get("/pending/{pending_id}", responses=_GET_RESPONSES, name="get a pending call")
async def get_pending(scope: ReadsToolCalls, pending_id: Id) -> Response:
    """Return one call, open or settled."""
    return json_response(call_json(scope, await readable_call(scope, pending_id)))


@router.delete(
    "/async-tool/pending/{pending_id}",
    responses=_DECISION_RESPONSES,
    name="cancel an async-tool call",
)
@router.delete("/pending/{pending_id}", responses=_DECISION_RESPONSES, name="cancel a pending call")
async def cancel_call(scope: Operates, pending_id: Id, by: Name | None = None) -> Response:
    """Cancel a call; the session continues, and its model is informed."""
    return await _decide(scope, pending_id, CancelCall(scope.actor(by), scope.via), None)


@router.post(
    "/pending/{pending_id}/approve",
    responses=_DECISION_RESPONSES,
    openapi_extra=request_body(ApproveBody, optional=True),
)
async def approve_call(scope: Decides, pending_id: Id) -> Response:
    """Approve a call: exactly the stored call runs, with `args` merged over its arguments."""
    body = await scope.read_body(ApproveBody, empty=ApproveBody())
    command = Approve(
        scope.actor(body.by),
        scope.via,
        body.args,
        body.note,
        body.remember,
        body.all_tools,
        scope.approver_role(body.by),
    )
    return await _decide(scope, pending_id, command, body.wait)


@router.post(
    "/pending/{pending_id}/deny",
    responses=_DECISION_RESPONSES,
    openapi_extra=request_body(DenyBody, optional=True),
)
async def deny_call(scope: Decides, pending_id: Id) -> Response:
    """Deny a call, or decline to answer a question; the model gets the reason."""
    body = await scope.read_body(DenyBody, empty=DenyBody())
    remember, role = (body.remember, body.all_tools), scope.approver_role(body.by)
    command = Deny(scope.actor(body.by), scope.via, body.reason, *remember, role)
    return await _decide(scope, pending_id, command, body.wait)


@router.post(
    "/pending/{pending_id}/respond",
    responses=_DECISION_RESPONSES,
    openapi_extra=request_body(RespondBody),
)
async def respond_to_call(scope: Decides, pending_id: Id) -> Response:
    """Answer a question, or give an output instead of running the call."""
    body = await scope.read_body(RespondBody)
    role = scope.approver_role(body.by)
    command = Respond(scope.actor(body.by), scope.via, body.output, role)
    return await _decide(scope, pending_id, command, body.wait)


@router.post(
    "/decisions",
    responses=_DECISIONS_RESPONSES,
    openapi_extra=body_extra(_decisions_schema()),
)
async def decide_calls(scope: Decides) -> Response:
    """Decide about several calls in one commit: all decisions are recorded, or none."""
    body = await scope.read_body(DecisionsBody)
    role = scope.approver_role(body.by)
    commands = decision_commands(body.decisions, scope.actor(body.by), scope.via, role)
    for pending_id in commands:
        scope.app_state.count_submission(scope.rate_key(pending_id))
    outcomes = await scope.service.calls.settle_all(commands, scope.tenant)
    decided = [
        {**call_json(scope, outcome.record), "duplicate": outcome.duplicate} for outcome in outcomes
    ]
    return json_response({"success": True, "decisions": decided})


async def _decide(scope: RequestScope, pending_id: str, command: Command, wait: Wait) -> Response:
    settlement = await settle_call(scope, pending_id, command)
    status, extra = await wait_for_session(scope, settlement.record, wait)
    if settlement.duplicate:
        extra["duplicate"] = True
    return json_response({"success": True, **call_json(scope, settlement.record), **extra}, status)
