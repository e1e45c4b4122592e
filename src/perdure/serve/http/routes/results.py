"""Other systems bring what became of a deferred call: a result, an error, or how far they are."""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Response
from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.pending import settlement as decide
from perdure.core.pending.commands import Command, SubmitError, SubmitResult
from perdure.core.pending.record import PendingRecord, Verb
from perdure.errors import Refused
from perdure.serve.http.dependencies import CallsBack, Id, RequestScope, Sends
from perdure.serve.http.responses import answers, reply, schema_of, taking
from perdure.serve.http.schemas import ACCEPTED, By, IdText
from perdure.serve.http.settlement import settled, unseen_is_not_there, waited
from perdure.serve.http.wait import Wait

router = APIRouter(tags=["async tools"])

_ANSWERS: Final = answers({200: ACCEPTED, 202: ACCEPTED}, 404, 409)


class Outcome(Struct, forbid_unknown_fields=True):
    """What a deferred tool came to; without a title it is called after its tool."""

    output: str
    title: str | None = None
    metadata: dict[str, Any] | None = None


class ResultBody(Struct, forbid_unknown_fields=True):
    """The result of one call."""

    pending_id: IdText = field(name="pendingID")
    result: Outcome
    by: By | None = None
    wait: Wait = None


class ErrorBody(Struct, forbid_unknown_fields=True):
    """The failure of one call."""

    pending_id: IdText = field(name="pendingID")
    error: str
    by: By | None = None
    wait: Wait = None


class Callback(Struct, forbid_unknown_fields=True):
    """Exactly one of a result, an error, and news of the progress."""

    pending_id: IdText | None = field(name="pendingID", default=None)
    type: Literal["result", "error", "progress"] | None = None
    result: Outcome | UnsetType = UNSET
    error: str | UnsetType = UNSET
    percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    message: str | None = None


def _bringing(*always: str) -> dict[str, Any]:
    """The `openapi_extra=` of a callback: it has one of three shapes, each with these keys."""
    known = {**schema_of(Callback)["properties"], **schema_of(ResultBody)["properties"]}
    brought: dict[str, dict[str, Any]] = {
        "result": {"result": known["result"]},
        "error": {"error": schema_of(ErrorBody)["properties"]["error"]},
        "type": {"type": {"const": "progress"}} | {k: known[k] for k in ("percent", "message")},
    }
    shapes = [
        {
            "type": "object",
            "properties": {**properties, **{name: known[name] for name in always}},
            "required": [key, *always],
            "additionalProperties": False,
        }
        for key, properties in brought.items()
    ]
    content = {"application/json": {"schema": {"oneOf": shapes}}}
    return {"requestBody": {"content": content, "required": True}}


@router.post("/async-tool/result", responses=_ANSWERS, openapi_extra=taking(ResultBody))
async def result(door: Sends) -> Response:
    """Complete a call; the session goes on by itself. The same result again changes nothing."""
    body = await door.body(ResultBody)
    command = _result(door, body.result, body.by)
    return await _submitted(door, body.pending_id, command, body.wait)


@router.post("/async-tool/error", responses=_ANSWERS, openapi_extra=taking(ErrorBody))
async def error(door: Sends) -> Response:
    """Say that a call has failed; the session goes on with the error."""
    body = await door.body(ErrorBody)
    command = SubmitError(body.error, door.by(body.by), door.via)
    return await _submitted(door, body.pending_id, command, body.wait)


@router.post("/async-tool/webhook", responses=_ANSWERS, openapi_extra=_bringing("pendingID"))
async def webhook(door: CallsBack) -> Response:
    """Bring a result, an error or progress for the call that the body names."""
    body = await door.body(Callback)
    if body.pending_id is None:
        raise Refused("pendingID is missing", code="BODY_INVALID")
    return await _called_back(door, body.pending_id, body)


@router.post("/async-tool/webhook/{pending_id}", responses=_ANSWERS, openapi_extra=_bringing())
async def webhook_of(door: CallsBack, pending_id: Id) -> Response:
    """Bring a result, an error or progress: the address that a tool gives away as callbackURL."""
    body = await door.body(Callback)
    if body.pending_id not in (None, pending_id):
        raise Refused("pendingID is another one than in the address", code="BODY_INVALID")
    return await _called_back(door, pending_id, body)


async def _called_back(door: RequestScope, pending_id: str, body: Callback) -> Response:
    match _brought(body):
        case "result", Outcome() as outcome:
            return await _submitted(door, pending_id, _result(door, outcome, None))
        case "error", str(text):
            return await _submitted(door, pending_id, SubmitError(text, door.by(), door.via))
        case _:
            return await _progressed(door, pending_id, body)


def _brought(body: Callback) -> tuple[str, object]:
    """The one thing that a callback brings. Raises Refused."""
    news = body.percent is not None or body.message is not None
    brought: list[tuple[str, object]] = [
        (name, value)
        for name, value in (("result", body.result), ("error", body.error))
        if value is not UNSET
    ]
    if body.type == "progress" or news:
        brought.append(("progress", None))
    if len(brought) != 1 or body.type not in (None, brought[0][0]):
        raise Refused(
            "a callback brings exactly one of result, error and progress",
            code="BODY_INVALID",
            hint='{"result": {"output": …}}, {"error": …} or {"type": "progress", "percent": …}',
        )
    if news and body.type != "progress":
        raise Refused('progress needs "type": "progress"', code="BODY_INVALID")
    return brought[0]


def _result(door: RequestScope, outcome: Outcome, by: str | None) -> SubmitResult:
    return SubmitResult(outcome.output, outcome.title, outcome.metadata, door.by(by), door.via)


async def _submitted(
    door: RequestScope, pending_id: str, command: Command, wait: Wait = None
) -> Response:
    outcome = await settled(door, pending_id, command)
    status, more = await waited(door, outcome.record, wait)
    if outcome.duplicate:
        more["duplicate"] = True
    return reply({"success": True, "sessionID": outcome.record.session_id, **more}, status)


async def _progressed(door: RequestScope, pending_id: str, body: Callback) -> Response:
    """Keep the news, unless they are what is known already; a settled call takes none."""
    door.shared.count(door.named(pending_id))
    settling = door.service.desk.settling
    record = await settling.pending(pending_id, door.tenant)
    with unseen_is_not_there(door, pending_id):
        decide.check_takes(record, Verb.RESULT)
    if not _is_known(record, body):
        at = door.service.desk.store.now()
        told = {"percent": body.percent, "message": body.message, "at": at}
        fact = events.Progress(
            pending_id=record.id,
            call_id=record.call_id,
            task_id=record.task_id,
            percent=body.percent,
            message=body.message,
        )
        await settling.update(pending_id, lambda now: replace(now, progress=told), lambda _: fact)
    return reply({"success": True, "sessionID": record.session_id})


def _is_known(record: PendingRecord, news: Callback) -> bool:
    last = record.progress
    if last is None:
        return False
    return (last.get("percent"), last.get("message")) == (news.percent, news.message)
