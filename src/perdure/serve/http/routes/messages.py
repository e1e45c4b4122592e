"""What is said in a session: messages, the answers among them, and the conversation in parts."""

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Response
from msgspec import Meta, Struct, field

from perdure.core.access import Permit
from perdure.core.conversation.display import shown_messages
from perdure.core.session.naming import check_id
from perdure.errors import NotFound, Refused
from perdure.runtime.inbox.sessions import NewMessage
from perdure.runtime.records.entries import SessionEntry, SessionRef, erased_as_not_found
from perdure.runtime.records.log import Log
from perdure.runtime.sessions.replies import Reply, ReplyDecision, check_context, settle_by_reply
from perdure.serve.http.content import ContentIn, stored, text_of
from perdure.serve.http.dependencies import Decides, Id, Reads, RequestScope
from perdure.serve.http.responses import answers, reply, taking
from perdure.serve.http.routes.sessions import MOVED, Key, known_to, moved
from perdure.serve.http.schemas import MESSAGES, By, IdText
from perdure.serve.http.wait import Wait, seconds_of

router = APIRouter(tags=["sessions"])

Word = Literal["approve", "deny"]


class DecisionIn(Struct, forbid_unknown_fields=True):
    """A decision that needs no words; which call is meant must be said if several wait."""

    kind: Literal["approve", "edit", "deny", "respond"]
    pending_id: IdText | None = field(default=None, name="pendingID")
    call_id: Annotated[str, Meta(min_length=1)] | None = field(default=None, name="callID")
    args: dict[str, Any] | None = None
    reason: str | None = None
    note: str | None = None
    output: str | None = None
    remember: bool | str = False


class MessageBody(Struct, forbid_unknown_fields=True):
    """A message; with the task id of a run that waits for a person it is the answer."""

    content: ContentIn | None = None
    task_id: IdText | None = field(default=None, name="taskID")
    context_id: IdText | None = field(default=None, name="contextID")
    decision: Word | DecisionIn | None = None
    by: By | None = None
    wait: Wait = None


@router.post("/sessions/{session_id}/messages", responses=MOVED, openapi_extra=taking(MessageBody))
async def send(door: Decides, session_id: Id, key: Key = None) -> Response:
    """Say something. It never is a decision unless `taskID` names the run that waits for one."""
    body = await door.body(MessageBody)
    _check(body)
    if body.task_id is None:
        door.require(Permit.OPERATE)
    door.shared.count(door.named(session_id))
    seconds = seconds_of(body.wait)
    known = await _known(door, session_id, body)
    check_context(known, body.context_id)
    if body.task_id is not None and await _answered(door, known, body, body.task_id):
        return await moved(door, known, seconds)
    door.require(Permit.OPERATE)
    content = await stored(door.service, known, "" if body.content is None else body.content)
    said = NewMessage(content, None if key is None else check_id(key, "key"), door.by(body.by))
    address = await door.service.at_home(SessionRef(door.home, session_id))
    sent = await door.service.desk.outside.send(address, said)
    return await moved(door, sent.known, seconds)


def _check(body: MessageBody) -> None:
    if body.decision is not None and body.task_id is None:
        raise Refused(
            "a decision needs the task id of the run that waits for it",
            code="TASK_NEEDED",
            hint="name it as taskID, or POST /pending/{id}/approve",
        )
    if body.content is None and body.decision is None:
        raise Refused("there is neither content nor a decision", code="CONTENT_INVALID")


async def _known(door: RequestScope, session_id: str, body: MessageBody) -> SessionEntry:
    try:
        return await known_to(door, session_id)
    except NotFound as error:
        if body.task_id is None:
            raise
        raise NotFound(
            "failed to load execution state: execution state not found for task "
            f"{body.task_id}: {error.message}",
            code=error.code,
            hint=error.hint,
        ) from error


async def _answered(
    door: RequestScope, known: SessionEntry, body: MessageBody, task_id: str
) -> bool:
    """Whether it was the answer that a run waits for."""
    text, decision = text_of(body.content), body.decision
    if isinstance(decision, str):
        decided: ReplyDecision | None = ReplyDecision(decision)
    elif decision is None:
        decided = None
    else:
        decided = ReplyDecision(
            decision.kind,
            decision.pending_id,
            decision.call_id,
            decision.args,
            decision.reason,
            decision.note,
            decision.output,
            decision.remember,
        )
    said = Reply(task_id, text, decided, door.by(body.by), door.via)
    return await settle_by_reply(door.service, known, said) is not None


@router.get("/sessions/{session_id}/messages", responses=answers({200: MESSAGES}, 404))
async def messages(door: Reads, session_id: Id) -> Response:
    """The conversation in parts, each call with where it stands."""
    known = await known_to(door, session_id)
    log = Log(door.service.desk.store, known.stream)
    with erased_as_not_found(known.record.id):
        await log.catch_up()
    shown = msgspec.to_builtins(shown_messages(log.events))
    return reply({"sessionID": known.record.id, "messages": shown})
