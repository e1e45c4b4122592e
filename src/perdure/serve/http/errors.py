"""Error responses: every failure as one flat object, `{error, code, hint, details}`."""

import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from perdure.errors import NotAllowed, NotFound, PerdureError, Refused
from perdure.serve.http.responses import json_response

logger = logging.getLogger("perdure")

# Codes whose status differs from that of their class.
STATUS: Final[Mapping[str, int]] = {
    "TOO_LARGE": 413,
    "RATE_LIMITED": 429,
    "NOT_AUTHENTICATED": 401,
    "SIGNATURE_INVALID": 401,
    "NOT_OPEN": 503,
    "BUSY": 503,
}
BUSY_S: Final = 5
_DOCS_HINT: Final = "GET /docs describes the parameters of every route"
_UNEXPECTED: Final = PerdureError(
    "an unexpected error occurred in the server",
    code="INTERNAL",
    hint="see the server's log",
)
# For errors of user code and of rare cases, which have no hint of their own.
_HINTS: Final[Mapping[int, str]] = {
    403: "use a token that may do this",
    404: "check the id and the tenant",
    409: "read it again, then decide what to do",
    503: "try again later",
}
# Hints name commands; an HTTP caller needs the request instead.
_REQUESTS: Final = (
    (re.compile(r"perdure (pending|sessions) list"), r"GET /\1"),
    (re.compile(r"perdure webhook list"), "GET /deliveries"),
    (re.compile(r"perdure (pending|sessions) show (\S+)"), r"GET /\1/\2"),
    (re.compile(r"perdure sessions resume (\S+)"), r"POST /sessions/\1/resume"),
)


def http_status(error: PerdureError) -> int:
    """Return the HTTP status of an error."""
    return STATUS.get(error.code, error.http_status)


def error_response(error: PerdureError) -> Response:
    """Return the response to an error; an internal error is logged and not disclosed."""
    status = http_status(error)
    if status == 500:
        if error is not _UNEXPECTED:
            logger.error("%s (%s)", error.message, error.code)
        error = _UNEXPECTED
    body = error.to_json()
    body["hint"] = body["hint"] or _HINTS.get(status, _DOCS_HINT)
    for command, request in _REQUESTS:
        body["hint"] = command.sub(request, body["hint"])
    return json_response(body, status, _headers(error, status))


def _headers(error: PerdureError, status: int) -> dict[str, str]:
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if status in (429, 503):
        return {"Retry-After": str(error.details.get("retryAfter", 1))}
    return {}


def internal_error_response() -> Response:
    """Return the response to an unexpected error."""
    return error_response(_UNEXPECTED)


def not_authenticated(*, has_token: bool, is_forwarded: bool) -> NotAllowed:
    """Return the error for a caller whose token is wrong, or who sent none."""
    hint = f"send {'a token of this server' if has_token else 'it'} as Authorization: Bearer TOKEN"
    if is_forwarded:
        hint += (
            "; a server without tokens accepts no request through a proxy or tunnel,"
            " so set server.tokens there"
        )
    return NotAllowed(
        "the token of this request is wrong" if has_token else "this request needs a token",
        code="NOT_AUTHENTICATED",
        hint=hint,
    )


def too_many_bodies() -> PerdureError:
    """Return the error for a body without a token that the server has no memory for now."""
    return PerdureError(
        "too many large bodies without a token are arriving at once",
        code="BUSY",
        hint=f"try again in {BUSY_S} s, or send a token",
        details={"retryAfter": BUSY_S},
    )


def rate_limited(subject: str, wait_ms: int) -> Refused:
    """Return the error for one request too many `subject`, such as "from this address"."""
    seconds = max(1, -(-wait_ms // 1000))
    return Refused(
        f"too many requests {subject}",
        code="RATE_LIMITED",
        hint=f"try again in {seconds} s",
        details={"retryAfter": seconds},
    )


def install(app: FastAPI) -> None:
    """Register handlers so that the application answers every failure in this shape."""

    async def expected(_: Request, error: Exception) -> Response:
        return (
            error_response(error) if isinstance(error, PerdureError) else internal_error_response()
        )

    async def invalid(_: Request, error: Exception) -> Response:
        problems = error.errors() if isinstance(error, RequestValidationError) else []
        return error_response(_invalid_parameters(problems))

    async def no_route(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return _no_route(app, request, status)

    async def unexpected(_: Request, __: Exception) -> Response:
        return internal_error_response()  # the request filter logs the error

    app.add_exception_handler(PerdureError, expected)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, no_route)
    app.add_exception_handler(Exception, unexpected)


def _invalid_parameters(problems: Any) -> Refused:
    messages = [
        f"{'.'.join(str(part) for part in problem['loc'][1:])}: {problem['msg']}"
        for problem in problems
    ]
    return Refused(
        "; ".join(messages) or "the request is malformed",
        code="PARAMETER_INVALID",
        hint=_DOCS_HINT,
    )


def _no_route(app: FastAPI, request: Request, status: int) -> Response:
    path, method = request.scope["path"], request.method
    if status == 404:
        return error_response(
            NotFound(
                f"there is no route {path}",
                code="ROUTE_NOT_FOUND",
                hint="GET /docs lists the routes",
            )
        )
    if status == 405:
        allowed = sorted(
            method
            for route in app.routes
            if route.matches(request.scope)[0] is not Match.NONE
            for method in getattr(route, "methods", None) or ()
        )
        names = ", ".join(allowed)
        error = PerdureError(
            f"{path} does not accept {method}",
            code="METHOD_NOT_ALLOWED",
            hint=f"it accepts {names}",
        )
        return json_response(error.to_json(), 405, {"Allow": names})
    return (
        internal_error_response()
        if status >= 500
        else error_response(Refused("the request is malformed", hint=_DOCS_HINT))
    )
