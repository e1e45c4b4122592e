"""Errors of requests: the server's own, and those of a connection without a response."""

from collections.abc import Mapping
from typing import Any, Final

import httpx2

from perdure.errors import (
    Conflict,
    Corrupt,
    NotAllowed,
    NotFound,
    PerdureError,
    Refused,
    StoreError,
)

_CLASSES: Final[Mapping[int, type[PerdureError]]] = {
    400: Refused,
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    413: Refused,
    429: Refused,
    503: StoreError,
}
UNAVAILABLE_STATUSES: Final = frozenset({502, 503, 504})  # a proxy's too, if its server is down


def response_error(response: httpx2.Response) -> PerdureError:
    """Return the error in a response, also if the response is not a perdure server's."""
    status = response.status_code
    error_class = _CLASSES.get(status, PerdureError)
    body = _error_body(response)
    if body is not None:
        if body.get("code") == Corrupt.code:
            error_class = Corrupt
        details = body.get("details")
        return error_class(
            str(body["error"]),
            code=str(body.get("code") or error_class.code),
            hint=str(body.get("hint") or "") or None,
            details=details if isinstance(details, Mapping) else None,
        )
    prefix = f"{response.request.url.host} answered {status}"
    if status in UNAVAILABLE_STATUSES:
        return StoreError(
            f"{prefix}: the server behind it is not available",
            code="SERVER_AWAY",
            hint="try again",
        )
    return error_class(
        f"{prefix}, and it is not a perdure server", code="NOT_PERDURE", hint="check the URL"
    )


def _error_body(response: httpx2.Response) -> Mapping[str, Any] | None:
    try:
        body = response.json()
    except ValueError:
        return None
    return body if isinstance(body, Mapping) and "error" in body else None


def unreachable(url: str, error: Exception) -> StoreError:
    """Return the error of a request that was not sent because no server answered."""
    reason = str(error) or type(error).__name__
    return StoreError(
        f"no server answers at {url}: {reason}",
        code="SERVER_UNREACHABLE",
        hint="check the URL, and that `perdure serve` runs there",
    )


def response_lost(url: str, error: Exception, *, repeatable: bool) -> StoreError:
    """Return the error of a request whose connection broke before the response arrived."""
    reason = str(error) or type(error).__name__
    hint = "try again" if repeatable else "it may have taken effect: check before you repeat it"
    return StoreError(f"the response of {url} was lost: {reason}", code="ANSWER_LOST", hint=hint)
