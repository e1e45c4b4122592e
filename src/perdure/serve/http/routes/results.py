"""Routes for submitters of deferred calls: result, error, and callback with progress."""

from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import asdict
from starlette.responses import Response

from perdure.errors import Refused
from perdure.serve.http.dependencies import CALLS_BACK, SUBMITS, RequestScope
from perdure.serve.http.responses import json_response
from perdure.serve.http.routes.pending import settled_session
from perdure.serve.http.table import Route, tagged
from perdure.views.bodies import (
    CallbackBody,
    CallbackError,
    CallbackProgress,
    CallbackResult,
    ErrorBody,
    NamedCallbackError,
    NamedCallbackProgress,
    NamedCallbackResult,
    ResultBody,
    ResultIn,
    Wait,
)
from perdure.views.calls import DecidedCall
from perdure.views.sessions import SubmittedResult

_PROGRESS_KEYS: Final = ("percent", "message", "id", "sequence")


async def submit_result(scope: RequestScope, body: ResultBody) -> Response:
    """Submit the result of a call; the session then continues. Repeating it changes nothing."""
    scope.count_submission(body.pending_id)
    settled = await _submit(scope, body.pending_id, body.result, body.by)
    return await _receipt(scope, settled, body.wait)


async def submit_error(scope: RequestScope, body: ErrorBody) -> Response:
    """Submit the error of a failed call; the session then continues with it."""
    scope.count_submission(body.pending_id)
    settled = await scope.calls.submit_error(body.pending_id, body.error, by=body.by)
    return await _receipt(scope, settled, body.wait)


async def receive_callback(scope: RequestScope, body: CallbackBody) -> Response:
    """Submit a result, an error or progress of the call that the body names."""
    if body.pending_id is None:
        raise Refused(
            "pendingID is missing",
            code="BODY_INVALID",
            hint="name the call as pendingID, or POST to its callbackURL",
        )
    return await _receive(scope, body.pending_id, body)


async def receive_call_callback(
    scope: RequestScope, pending_id: str, body: CallbackBody
) -> Response:
    """Submit a result, an error or progress; the URL is the callbackURL of the call."""
    if body.pending_id not in (None, pending_id):
        raise Refused(
            "the pendingID of the body differs from that of the URL",
            code="BODY_INVALID",
            hint="leave pendingID out of the body",
        )
    return await _receive(scope, pending_id, body)


async def _receive(scope: RequestScope, pending_id: str, body: CallbackBody) -> Response:
    scope.count_submission(pending_id)
    verbs = scope.calls
    match _payload(body):
        case "result", ResultIn() as result:
            return await _receipt(scope, await _submit(scope, pending_id, result))
        case "error", str(text):
            return await _receipt(scope, await verbs.submit_error(pending_id, text))
        case _:
            session_id = await verbs.report_progress(pending_id, body)
            return json_response(SubmittedResult(success=True, session_id=session_id))


async def _submit(
    scope: RequestScope, pending_id: str, result: ResultIn, by: str | None = None
) -> DecidedCall:
    return await scope.calls.submit_result(pending_id, **asdict(result), by=by)


async def _receipt(scope: RequestScope, settled: DecidedCall, wait: Wait = None) -> Response:
    status, session = await settled_session(scope, settled, wait)
    name, duplicate = settled.session_id, settled.duplicate
    receipt = SubmittedResult(success=True, session_id=name, duplicate=duplicate, session=session)
    return json_response(receipt, status)


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


_SUBMITTED: Final[dict[int, Any]] = {200: SubmittedResult, 202: SubmittedResult}
_CALLBACKS: Final = (CallbackResult, CallbackError, CallbackProgress)
_NAMED_CALLBACKS: Final = (NamedCallbackResult, NamedCallbackError, NamedCallbackProgress)
_CALLBACK: Final = "/async-tool/webhook"
ROUTES: Final = tagged(
    "async tools",
    Route("POST", "/async-tool/result", SUBMITS, submit_result, returns=_SUBMITTED),
    Route("POST", "/async-tool/error", SUBMITS, submit_error, returns=_SUBMITTED),
    Route(
        "POST",
        _CALLBACK,
        CALLS_BACK,
        receive_callback,
        body_types=_NAMED_CALLBACKS,
        returns=_SUBMITTED,
    ),
    Route(
        "POST",
        f"{_CALLBACK}/{{pending_id}}",
        CALLS_BACK,
        receive_call_callback,
        body_types=_CALLBACKS,
        returns=_SUBMITTED,
    ),
)
