"""Routes for submitters of deferred calls: result, error, and callback with progress."""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Response
from msgspec import UNSET, Meta, Struct, UnsetType, field

from perdure.core.pending.commands import Command, SubmitError, SubmitResult
from perdure.core.pending.progress import ProgressReport
from perdure.core.pending.record import Verb
from perdure.core.pending.settlement import check_verb
from perdure.errors import Conflict, Refused
from perdure.runtime.records.entries import pending_not_found
from perdure.serve.http.dependencies import CallsBack, Id, RequestScope, Submits
from perdure.serve.http.responses import json_response, json_schema, request_body, responses
from perdure.serve.http.schemas import ACCEPTED, By, IdText, Wait
from perdure.serve.http.settlement import is_hidden, settle_call, wait_for_session

router = APIRouter(tags=["async tools"])

_SUBMIT_RESPONSES: Final = responses({200: ACCEPTED, 202: ACCEPTED}, 404, 409)


class ResultIn(Struct, forbid_unknown_fields=True):
    """The result of a deferred tool; its default title is the name of the tool."""

    output: Any
    title: str | None = None
    metadata: dict[str, Any] | None = None


class ResultBody(Struct, forbid_unknown_fields=True):
    """The result of one call."""

    pending_id: IdText = field(name="pendingID")
    result: ResultIn
    by: By | None = None
    wait: Wait = None


class ErrorBody(Struct, forbid_unknown_fields=True):
    """The failure of one call."""

    pending_id: IdText = field(name="pendingID")
    error: str
    by: By | None = None
    wait: Wait = None


class CallbackBody(Struct, forbid_unknown_fields=True):
    """Exactly one of a result, an error, and a progress report."""

    pending_id: IdText | None = field(name="pendingID", default=None)
    type: Literal["result", "error", "progress"] | None = None
    result: ResultIn | UnsetType = UNSET
    error: str | UnsetType = UNSET
    percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    message: str | None = None
    id: IdText | None = None  # of a progress report
    sequence: Annotated[int, Meta(ge=0)] | None = None


_PROGRESS_KEYS: Final = ("percent", "message", "id", "sequence")


def _callback_body(*required: str) -> dict[str, Any]:
    """Return the `openapi_extra=` of a callback: one of three schemas, each with these keys."""
    fields = {**json_schema(CallbackBody)["properties"], **json_schema(ResultBody)["properties"]}
    variants: dict[str, dict[str, Any]] = {
        "result": {"result": fields["result"]},
        "error": {"error": json_schema(ErrorBody)["properties"]["error"]},
        "type": {"type": {"const": "progress"}} | {k: fields[k] for k in _PROGRESS_KEYS},
    }
    schemas = [
        {
            "type": "object",
            "properties": {**properties, **{name: fields[name] for name in required}},
            "required": [key, *required],
            "additionalProperties": False,
        }
        for key, properties in variants.items()
    ]
    content = {"application/json": {"schema": {"oneOf": schemas}}}
    return {"requestBody": {"content": content, "required": True}}


@router.post(
    "/async-tool/result", responses=_SUBMIT_RESPONSES, openapi_extra=request_body(ResultBody)
)
async def submit_result(scope: Submits) -> Response:
    """Submit the result of a call; the session then continues. Repeating it changes nothing."""
    body = await scope.read_body(ResultBody)
    command = _result_command(scope, body.result, body.by)
    return await _submit(scope, body.pending_id, command, body.wait)


@router.post(
    "/async-tool/error", responses=_SUBMIT_RESPONSES, openapi_extra=request_body(ErrorBody)
)
async def submit_error(scope: Submits) -> Response:
    """Submit the error of a failed call; the session then continues with it."""
    body = await scope.read_body(ErrorBody)
    command = SubmitError(body.error, scope.actor(body.by), scope.via)
    return await _submit(scope, body.pending_id, command, body.wait)


@router.post(
    "/async-tool/webhook", responses=_SUBMIT_RESPONSES, openapi_extra=_callback_body("pendingID")
)
async def receive_callback(scope: CallsBack) -> Response:
    """Submit a result, an error or progress of the call that the body names."""
    body = await scope.read_body(CallbackBody)
    if body.pending_id is None:
        raise Refused(
            "pendingID is missing",
            code="BODY_INVALID",
            hint="name the call as pendingID, or POST to its callbackURL",
        )
    return await _receive(scope, body.pending_id, body)


@router.post(
    "/async-tool/webhook/{pending_id}", responses=_SUBMIT_RESPONSES, openapi_extra=_callback_body()
)
async def receive_call_callback(scope: CallsBack, pending_id: Id) -> Response:
    """Submit a result, an error or progress; the URL is the callbackURL of the call."""
    body = await scope.read_body(CallbackBody)
    if body.pending_id not in (None, pending_id):
        raise Refused(
            "the pendingID of the body differs from that of the URL",
            code="BODY_INVALID",
            hint="leave pendingID out of the body",
        )
    return await _receive(scope, pending_id, body)


async def _receive(scope: RequestScope, pending_id: str, body: CallbackBody) -> Response:
    match _payload(body):
        case "result", ResultIn() as result:
            return await _submit(scope, pending_id, _result_command(scope, result, None))
        case "error", str(text):
            return await _submit(scope, pending_id, SubmitError(text, scope.actor(), scope.via))
        case _:
            return await _report_progress(scope, pending_id, body)


def _payload(body: CallbackBody) -> tuple[str, object]:
    """Return the type and value of the one payload of a callback. Raises Refused."""
    has_progress = any(getattr(body, key) is not None for key in _PROGRESS_KEYS)
    payloads: list[tuple[str, object]] = [
        (name, value)
        for name, value in (("result", body.result), ("error", body.error))
        if value is not UNSET
    ]
    if body.type == "progress" or has_progress:
        payloads.append(("progress", None))
    if len(payloads) != 1 or body.type not in (None, payloads[0][0]):
        raise Refused(
            "a callback needs exactly one of result, error and progress",
            code="BODY_INVALID",
            hint='{"result": {"output": …}}, {"error": …} or {"type": "progress", "percent": …}',
        )
    if has_progress and body.type != "progress":
        raise Refused(
            'a progress report needs "type": "progress"',
            code="BODY_INVALID",
            hint='{"type": "progress", "percent": …, "message": …}',
        )
    return payloads[0]


def _result_command(scope: RequestScope, result: ResultIn, by: str | None) -> SubmitResult:
    return SubmitResult(result.output, result.title, result.metadata, scope.actor(by), scope.via)


async def _submit(
    scope: RequestScope, pending_id: str, command: Command, wait: Wait = None
) -> Response:
    settlement = await settle_call(scope, pending_id, command)
    status, extra = await wait_for_session(scope, settlement.record, wait)
    if settlement.duplicate:
        extra["duplicate"] = True
    body = {"success": True, "sessionID": settlement.record.session_id, **extra}
    return json_response(body, status)


async def _report_progress(scope: RequestScope, pending_id: str, body: CallbackBody) -> Response:
    """Record progress unless it is outdated or repeated. Raises Conflict for a settled call."""
    scope.app_state.count_submission(scope.rate_key(pending_id))
    record = await scope.service.calls.get(pending_id, scope.tenant)
    try:
        check_verb(record, Verb.RESULT)
    except Conflict as error:
        if is_hidden(scope, error):
            raise pending_not_found(pending_id) from error
        raise
    report = ProgressReport(
        percent=body.percent, message=body.message, id=body.id, sequence=body.sequence
    )
    await scope.service.calls.report_progress(record, report)
    return json_response({"success": True, "sessionID": record.session_id})
