"""Every failure as one flat object, `{error, code, hint, details}`, with the status it has."""

import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from perdure.errors import NotAllowed, NotFound, PerdureError, Refused
from perdure.serve.http.responses import reply

logger = logging.getLogger("perdure")

# Where the code says more than the class; the others have the status of their class.
STATUS: Final[Mapping[str, int]] = {
    "TOO_LARGE": 413,
    "RATE_LIMITED": 429,
    "NOT_AUTHENTICATED": 401,
    "SIGNATURE_INVALID": 401,
    "NOT_OPEN": 503,
}
_UNEXPECTED: Final = PerdureError(
    "something went wrong inside the server",
    code="INTERNAL",
    hint="the server's log says what",
)
# Hints are commands; who came over HTTP is told the request instead.
_REQUESTS: Final = (
    (re.compile(r"perdure (pending|sessions) list"), r"GET /\1"),
    (re.compile(r"perdure webhook list"), "GET /deliveries"),
    (re.compile(r"perdure (pending|sessions) show (\S+)"), r"GET /\1/\2"),
    (re.compile(r"perdure sessions resume (\S+)"), r"POST /sessions/\1/resume"),
)


def status_of(error: PerdureError) -> int:
    """The HTTP status of an error."""
    return STATUS.get(error.code, error.http_status)


def told(error: PerdureError) -> Response:
    """The answer that says what went wrong; nothing of the inside where that was unexpected."""
    status = status_of(error)
    if status == 500:
        if error is not _UNEXPECTED:
            logger.error("%s (%s)", error.message, error.code)
        error = _UNEXPECTED
    shown = error.to_json()
    for command, request in _REQUESTS:
        shown["hint"] = command.sub(request, shown["hint"])
    return reply(shown, status, _headers(error, status))


def _headers(error: PerdureError, status: int) -> dict[str, str]:
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if status in (429, 503):
        return {"Retry-After": str(error.details.get("retryAfter", 1))}
    return {}


def unexpected() -> Response:
    """The answer to what nobody foresaw."""
    return told(_UNEXPECTED)


def not_authenticated() -> NotAllowed:
    """The refusal of somebody who was not recognised."""
    return NotAllowed(
        "this needs a token",
        code="NOT_AUTHENTICATED",
        hint="send it as Authorization: Bearer TOKEN",
    )


def rate_limited(what: str, wait_ms: int) -> Refused:
    """The refusal of one request too many."""
    seconds = max(1, -(-wait_ms // 1000))
    return Refused(
        f"too many requests {what}",
        code="RATE_LIMITED",
        hint=f"try again in {seconds} s",
        details={"retryAfter": seconds},
    )


def install(app: FastAPI) -> None:
    """Let the application answer every failure in this shape."""

    async def foreseen(_: Request, error: Exception) -> Response:
        return told(error) if isinstance(error, PerdureError) else unexpected()

    async def invalid(_: Request, error: Exception) -> Response:
        problems = error.errors() if isinstance(error, RequestValidationError) else []
        return told(_of_parameters(problems))

    async def no_route(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return _no_route(app, request, status)

    async def unforeseen(_: Request, __: Exception) -> Response:
        return unexpected()  # the gate logs it

    app.add_exception_handler(PerdureError, foreseen)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, no_route)
    app.add_exception_handler(Exception, unforeseen)


def _of_parameters(problems: Any) -> Refused:
    told_of = [
        f"{'.'.join(str(part) for part in one['loc'][1:])}: {one['msg']}" for one in problems
    ]
    return Refused(
        "; ".join(told_of) or "the request is malformed",
        code="PARAMETER_INVALID",
        hint="GET /docs says what it takes",
    )


def _no_route(app: FastAPI, request: Request, status: int) -> Response:
    path, method = request.scope["path"], request.method
    if status == 404:
        return told(
            NotFound(f"there is no {path}", code="ROUTE_NOT_FOUND", hint="GET /docs lists them")
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
            f"{path} does not take {method}",
            code="METHOD_NOT_ALLOWED",
            hint=f"it takes {names}",
        )
        return reply(error.to_json(), 405, {"Allow": names})
    return unexpected() if status >= 500 else told(Refused("the request is malformed"))
