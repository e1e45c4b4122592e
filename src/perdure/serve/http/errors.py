"""Error responses: every failure as one flat object, `{error, code, hint, details}`."""

import logging
import re
from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from perdure.errors import NotAllowed, PerdureError, Refused
from perdure.serve.http.responses import json_response

logger = logging.getLogger("perdure")

# Codes whose status differs from that of their class.
STATUS: Final[Mapping[str, int]] = {
    "TOO_LARGE": 413,
    "RATE_LIMITED": 429,
    "NOT_AUTHENTICATED": 401,
    "SIGNATURE_INVALID": 401,
    "METHOD_NOT_ALLOWED": 405,
    "NOT_OPEN": 503,
    "BUSY": 503,
}
BUSY_S: Final = 5
DOCS_HINT: Final = "GET /docs describes the parameters of every route"
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
    body["hint"] = body["hint"] or _HINTS.get(status, DOCS_HINT)
    for command, request in _REQUESTS:
        body["hint"] = command.sub(request, body["hint"])
    return json_response(body, status, _headers(error, status))


def _headers(error: PerdureError, status: int) -> dict[str, str]:
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if status == 405:
        return {"Allow": str(error.details.get("allow", ""))}
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
