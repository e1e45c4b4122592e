"""Routes of pending calls: list, show, decide, cancel."""

import re
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict
from starlette.responses import Response

from perdure.core.roles import Permit
from perdure.runtime.sessions.pending_pages import PendingFilter
from perdure.runtime.sessions.verbs.sessions import SessionVerbs
from perdure.serve.http.dependencies import DECIDES, OPERATES, READS_TOOL_CALLS, RequestScope
from perdure.serve.http.parameters import ByQuery, Name, wait_seconds
from perdure.serve.http.responses import json_response
from perdure.serve.http.table import Route, tagged, value_or_none
from perdure.views.base import view_as, wire_name
from perdure.views.bodies import ApproveBody, DecisionsBody, DenyBody, RespondBody, Wait
from perdure.views.calls import DecidedCall, PendingCall, PendingPage
from perdure.views.cursors import bad_cursor, cursor_meta, decode_cursor, encode_cursor
from perdure.views.literals import Audience, CallKind, PendingSort, PendingStatus
from perdure.views.sessions import DecidedCalls, DecisionReceipt, Result

Status = Literal[PendingStatus, "settled", "all"]

# The number of all calls; the key of the last one; its deadline and instant.
_DIGITS: Final = r"(?:2d)?(?:3[0-9]){1,19}"  # hexadecimal
_CURSOR: Final = rf"^[0-9]{{1,15}}\.(?:[0-9a-f]{{2}}){{0,2500}}\.{_DIGITS}3a{_DIGITS}$"
PendingCursor = Annotated[str, cursor_meta(_CURSOR)] | UnsetType


class PendingQuery(Struct, frozen=True, kw_only=True, rename=wire_name):
    """Filter of a list of calls, its order and its page; without a status: the open ones."""

    status: Status | UnsetType = UNSET
    kind: CallKind | UnsetType = UNSET
    tool: Name | UnsetType = UNSET
    session_id: Name | UnsetType = UNSET
    waits_for: Audience | UnsetType = UNSET
    agent: Name | UnsetType = UNSET
    q: (
        Annotated[str, Meta(max_length=200, description="Text to find in prompts and arguments.")]
        | UnsetType
    ) = UNSET
    sort: PendingSort = "age"
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: PendingCursor = UNSET


async def list_pending(scope: RequestScope, query: PendingQuery) -> PendingPage:
    """List pending calls; `count` is the number of all calls that matched at first.

    `sort` is `age` (oldest first), `expires` (those without a deadline last) or `newest`; settled
    calls are ordered by their end. `waitsFor` is `people` (approvals, questions) or `machines`.
    """
    chosen = PendingFilter(
        value_or_none(query.status),
        kind=value_or_none(query.kind),
        tool=value_or_none(query.tool),
        session_id=value_or_none(query.session_id),
        audience=value_or_none(query.waits_for),
        agent=value_or_none(query.agent),
        search=value_or_none(query.q),
    )
    (count, after), verbs = decode_position(query.cursor), scope.calls
    page, following = await verbs.page(chosen, after, query.limit, query.sort)
    if count is None:  # a list of one page is counted without calls that cannot be read
        count = len(page) if following is None else await verbs.count(chosen)
    next_cursor = None if following is None else encode_position(count, following)
    return PendingPage(pending=page, count=count, next=next_cursor)


def encode_position(count: int, after: str) -> str:
    """Return the cursor of the next page, which also has the number of all calls."""
    due, at, key = after.split(":", 2)
    return encode_cursor((count, key, f"{due}:{at}"))


def decode_position(cursor: str | UnsetType) -> tuple[int | None, str | None]:
    """Return the number of all calls, None if they are not counted yet, and the store's cursor."""
    if isinstance(cursor, str) and re.fullmatch(_CURSOR, cursor) is None:
        raise bad_cursor()
    decoded = decode_cursor(cursor)
    if decoded is None:
        return None, None
    count, key, instants = decoded
    return count, f"{instants}:{key}"


async def get_pending(scope: RequestScope, pending_id: str) -> PendingCall:
    """Return one call, open or settled."""
    return await scope.calls.get(pending_id)


async def cancel_call(scope: RequestScope, pending_id: str, query: ByQuery) -> Response:
    """Cancel a call; the session continues, and its model is informed."""
    scope.count_submission(pending_id)
    return await _decided(
        scope, await scope.calls.cancel_call(pending_id, by=value_or_none(query.by))
    )


async def approve_call(scope: RequestScope, pending_id: str, body: ApproveBody) -> Response:
    """Approve a call: exactly the stored call runs, with `args` merged over its arguments."""
    scope.count_submission(pending_id)
    decided = await scope.calls.approve(pending_id, **_fields(body))
    return await _decided(scope, decided, body.wait)


async def deny_call(scope: RequestScope, pending_id: str, body: DenyBody) -> Response:
    """Deny a call, or decline to answer a question; the model gets the reason."""
    scope.count_submission(pending_id)
    decided = await scope.calls.deny(pending_id, **_fields(body))
    return await _decided(scope, decided, body.wait)


async def respond_to_call(scope: RequestScope, pending_id: str, body: RespondBody) -> Response:
    """Answer a question, or give an output instead of running the call."""
    scope.count_submission(pending_id)
    decided = await scope.calls.respond(pending_id, body.output, by=body.by)
    return await _decided(scope, decided, body.wait)


async def decide_calls(scope: RequestScope, body: DecisionsBody) -> DecidedCalls:
    """Decide about several calls in one commit: all decisions are recorded, or none."""
    for item in body.decisions:
        scope.count_submission(item.pending_id)
    decided = await scope.calls.decide(body.decisions, body.by)
    return DecidedCalls(decisions=decided)


def _fields(body: ApproveBody | DenyBody) -> dict[str, Any]:
    """Return the fields of a decision."""
    fields = asdict(body)
    del fields["wait"]
    return fields


async def _decided(scope: RequestScope, decided: DecidedCall, wait: Wait = None) -> Response:
    status, session = await settled_session(scope, decided, wait)
    return json_response(view_as(DecisionReceipt, decided, session=session), status)


async def settled_session(
    scope: RequestScope, settled: DecidedCall, wait: Wait
) -> tuple[int, Result | None]:
    """Wait until the session is parked; return the HTTP status and the session, if it is shown.

    200 if it is parked or the caller does not wait, 202 if the time is over before.
    """
    seconds = wait_seconds(wait)
    if not seconds:
        return 200, None
    verbs = SessionVerbs(scope.service, scope.caller.within(settled.tenant))
    is_closing = scope.app_state.closing.is_set
    session, is_parked = await verbs.parked(settled.session_id, seconds, is_closing)
    shown = session if scope.caller.may(Permit.READ) else None
    return 200 if is_parked else 202, shown


_DECIDED: Final[dict[int, Any]] = {200: DecisionReceipt, 202: DecisionReceipt}


def _routes(path: str, suffix: str) -> tuple[Route, ...]:
    """Return the routes of calls, at a path; the specification's has names of its own."""
    call = f"{path}/{{pending_id}}"
    return (
        Route("GET", path, READS_TOOL_CALLS, list_pending, name=f"list_{suffix}"),
        Route("GET", call, READS_TOOL_CALLS, get_pending, name=f"get_{suffix}"),
        Route("DELETE", call, OPERATES, cancel_call, returns=_DECIDED, name=f"cancel_{suffix}"),
    )


_ONE: Final = "/pending/{pending_id}"
ROUTES: Final = tagged(
    "pending calls",
    *_routes("/pending", "pending"),
    *_routes("/async-tool/pending", "async_tool_pending"),
    Route("POST", f"{_ONE}/approve", DECIDES, approve_call, optional_body=True, returns=_DECIDED),
    Route("POST", f"{_ONE}/deny", DECIDES, deny_call, optional_body=True, returns=_DECIDED),
    Route("POST", f"{_ONE}/respond", DECIDES, respond_to_call, returns=_DECIDED),
    Route("POST", "/decisions", DECIDES, decide_calls),
)
