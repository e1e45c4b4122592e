"""From what a server answers, or does not, to the error that says what to do."""

from collections.abc import Mapping
from typing import Any, Final

import httpx2

from perdure.errors import Conflict, NotAllowed, NotFound, PerdureError, Refused, StoreError

_KINDS: Final[Mapping[int, type[PerdureError]]] = {
    400: Refused,
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    413: Refused,
    429: Refused,
    503: StoreError,
}
NOT_NOW: Final = frozenset({502, 503, 504})  # of a proxy too, whose server is away


def refusal(response: httpx2.Response) -> PerdureError:
    """The error that an answer is; one that is not perdure's says so."""
    status = response.status_code
    kind = _KINDS.get(status, PerdureError)
    told = _told(response)
    if told is not None:
        details = told.get("details")
        return kind(
            str(told["error"]),
            code=str(told.get("code") or kind.code),
            hint=str(told.get("hint") or "") or None,
            details=details if isinstance(details, Mapping) else None,
        )
    where = f"{response.request.url.host} answered {status}"
    if status in NOT_NOW:
        return StoreError(
            f"{where}: the server behind it is away", code="SERVER_AWAY", hint="try again"
        )
    return kind(f"{where}, not as perdure does", code="NOT_PERDURE", hint="check the URL")


def _told(response: httpx2.Response) -> Mapping[str, Any] | None:
    try:
        told = response.json()
    except ValueError:
        return None
    return told if isinstance(told, Mapping) and "error" in told else None


def unreachable(url: str, error: Exception) -> StoreError:
    """Nobody answered, and nothing was sent."""
    why = str(error) or type(error).__name__
    return StoreError(
        f"no server answers at {url}: {why}",
        code="SERVER_UNREACHABLE",
        hint="check the URL, and that `perdure serve` runs there",
    )


def answer_lost(url: str, error: Exception, *, harmless: bool) -> StoreError:
    """The connection broke before the answer was there."""
    why = str(error) or type(error).__name__
    hint = "try again" if harmless else "it may have been done: look before you send it again"
    return StoreError(f"the answer of {url} was lost: {why}", code="ANSWER_LOST", hint=hint)
