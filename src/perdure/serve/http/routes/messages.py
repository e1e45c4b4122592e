"""Routes of messages: send one, which may be a reply to a waiting run, and list them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Response
from msgspec import UNSET, Meta, Struct, field

from perdure.core.conversation.display import display_pages
from perdure.core.literals import DecisionKind
from perdure.core.log.events import StampedEvent
from perdure.core.pending.commands import ReplyWord
from perdure.core.pending.settlement import Settlement
from perdure.core.roles import Permit
from perdure.errors import NotFound, Refused
from perdure.runtime.records.entries import SessionEntry, SessionRef
from perdure.runtime.records.log import PAGE
from perdure.runtime.sessions.replies import Reply, ReplyDecision, check_context, settle_by_reply
from perdure.serve.http.content import PromptIn, plain_text, store_content
from perdure.serve.http.dependencies import Decides, Id, Key, Reads, RequestScope
from perdure.serve.http.responses import request_body, responses
from perdure.serve.http.routes.sessions import (
    driven_response,
    find_entry,
    new_message,
)
from perdure.serve.http.schemas import MESSAGES, SENT, By, IdText, Wait, wait_seconds

router = APIRouter(tags=["sessions"])


class DecisionIn(Struct, forbid_unknown_fields=True):
    """A decision as an object; it must name its call if several calls of the run are open."""

    kind: DecisionKind
    pending_id: IdText | None = field(default=None, name="pendingID")
    call_id: Annotated[str, Meta(min_length=1)] | None = field(default=None, name="callID")
    args: dict[str, Any] | None = None
    reason: str | None = None
    note: str | None = None
    output: Any = UNSET
    remember: bool | str = False
    all_tools: bool = field(default=False, name="allTools")


class MessageBody(Struct, forbid_unknown_fields=True):
    """A message; with the task id of a run that waits for an approver it is a reply."""

    content: PromptIn | None = None
    task_id: IdText | None = field(default=None, name="taskID")
    context_id: IdText | None = field(default=None, name="contextID")
    decision: ReplyWord | DecisionIn | None = None
    by: By | None = None
    wait: Wait = None


@router.post(
    "/sessions/{session_id}/messages",
    responses=responses({200: SENT, 202: SENT}, 404, 409),
    openapi_extra=request_body(MessageBody),
)
async def send_message(scope: Decides, session_id: Id, key: Key = None) -> Response:
    """Send a message. It is a decision only if `taskID` names the run that waits for one.

    `decided` says whether it was, and `pendingID` names the call.
    """
    body = await scope.read_body(MessageBody)
    _check(body)
    if body.task_id is None:
        scope.require(Permit.OPERATE)
    scope.app_state.count_submission(scope.rate_key(session_id))
    seconds = wait_seconds(body.wait)
    entry = await _find_entry(scope, session_id, body.task_id)
    check_context(entry, body.context_id)
    if body.task_id is not None:
        settlement = await _settle(scope, entry, body, body.task_id)
        if settlement is not None:
            return await driven_response(scope, entry, seconds, _reply_json(settlement))
    scope.require(Permit.OPERATE)
    content = await store_content(
        scope.service, entry, "" if body.content is None else body.content
    )
    message = new_message(scope, content, key, body.by)
    receipt = await scope.service.send(SessionRef(scope.home_tenant, session_id), message)
    return await driven_response(scope, receipt.entry, seconds, {"decided": False})


def _reply_json(settlement: Settlement) -> dict[str, Any]:
    """Return the fields that say which call the message decided."""
    return {
        "decided": True,
        "pendingID": settlement.record.id,
        **({"duplicate": True} if settlement.duplicate else {}),
    }


def _check(body: MessageBody) -> None:
    if body.decision is not None and body.task_id is None:
        raise Refused(
            "a decision needs the task id of the run that waits for it",
            code="TASK_NEEDED",
            hint="pass it as taskID, or POST /pending/{id}/approve",
        )
    if body.content is None and body.decision is None:
        raise Refused(
            "the body has neither content nor a decision",
            code="CONTENT_INVALID",
            hint='send a message as {"content": …}',
        )


async def _find_entry(scope: RequestScope, session_id: str, task_id: str | None) -> SessionEntry:
    try:
        return await find_entry(scope, session_id)
    except NotFound as error:
        if task_id is None:
            raise
        raise NotFound(
            "failed to load execution state: execution state not found for task "
            f"{task_id}: {error.message}",
            code=error.code,
            hint=error.hint,
        ) from error


async def _settle(
    scope: RequestScope, entry: SessionEntry, body: MessageBody, task_id: str
) -> Settlement | None:
    """Settle the call that a run waits for; returns None if the message is not a reply to it."""
    decision = None if body.decision is None else _reply_decision(body.decision)
    text, role = plain_text(body.content), scope.approver_role(body.by)
    reply = Reply(task_id, text, decision, scope.actor(body.by), scope.via, role)
    return await settle_by_reply(scope.service, entry, reply)


def _reply_decision(decision: ReplyWord | DecisionIn) -> ReplyDecision:
    if isinstance(decision, str):
        return ReplyDecision(decision)
    return ReplyDecision(
        decision.kind,
        decision.pending_id,
        decision.call_id,
        decision.args,
        decision.reason,
        decision.note,
        decision.output,
        decision.remember,
        decision.all_tools,
    )


@router.get("/sessions/{session_id}/messages", responses=responses({200: MESSAGES}, 404))
async def get_messages(scope: Reads, session_id: Id) -> Response:
    """Return the conversation in parts, each call with its status."""
    entry = await find_entry(scope, session_id)
    async with scope.service.reading(entry) as log:
        pages = [page async for page in _encoded_pages(log.events)]
    head = msgspec.json.encode(entry.record.id)
    body = b'{"sessionID":%b,"messages":[%b]}' % (head, b",".join(pages))
    return Response(body, media_type="application/json")


async def _encoded_pages(log: Sequence[StampedEvent]) -> AsyncIterator[bytes]:
    """Yield the messages of a log as items of a JSON list; others may run between two pages."""
    for page in display_pages(log, PAGE):
        if page:
            yield msgspec.json.encode(page, enc_hook=str)[1:-1]
        await asyncio.sleep(0)
