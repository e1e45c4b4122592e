"""A provider's refusals and failures as errors of ours: what may pass, and what must be changed."""

import json
import os
import ssl
from collections.abc import Iterator, Mapping
from socket import gaierror
from typing import Any, Final

import httpx2
from pydantic_ai import exceptions as theirs

from perdure.core.log.redaction import MASK
from perdure.core.providers.streams import Broken
from perdure.errors import ModelError, ModelUnavailable, PerdureError

_PASSING: Final = (
    theirs.ModelRateLimitError,
    theirs.ModelUnavailableError,
    theirs.ModelServerError,
    theirs.ModelConnectionError,
    theirs.ModelRequestTimeout,
)
_PASSING_STATUS: Final = frozenset({408, 409, 425, 429})
_CUT: Final = (httpx2.TransportError, httpx2.StreamError, json.JSONDecodeError, UnicodeDecodeError)
_NO_ADDRESS: Final = (httpx2.UnsupportedProtocol, httpx2.InvalidURL)
_KEY_HEADERS: Final = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
_CUT_OFF: Final = "the answer was cut off"
_SECRET: Final = 8  # characters at least: servers of one's own are sent a word instead of a key
_REFUSED: Final = ("content_policy", "content_filter", "content filter", "invalid_prompt")

# What kind of refusal it is, its code, how it is told, and what to do then.
_LASTING: Final[tuple[tuple[type[Exception], str, str, str], ...]] = (
    (
        theirs.ModelQuotaExceededError,
        "MODEL_QUOTA",
        "the account has no credit left",
        "top it up or raise its limit",
    ),
    (
        theirs.ModelAuthenticationError,
        "MODEL_KEY",
        "the key was refused",
        "set a key that may use this model",
    ),
    (
        theirs.ModelNotFoundError,
        "MODEL_UNKNOWN",
        "the model is not known there",
        "check its name, and base_url if you gave one",
    ),
    (
        theirs.ModelContextWindowExceededError,
        "MODEL_CONTEXT",
        "the conversation is longer than the model takes",
        "summarise it (perdure sessions compact), or name a model with a larger window",
    ),
    (
        theirs.ContentFilterError,
        "MODEL_REFUSED",
        "the content was refused",
        "name another model, or fork the session before the message",
    ),
)

_IN_STREAM: Final[Mapping[str, type[theirs.ModelAPIError]]] = {
    "authentication_error": theirs.ModelAuthenticationError,
    "permission_error": theirs.ModelAuthenticationError,
    "billing_error": theirs.ModelQuotaExceededError,
    "insufficient_quota": theirs.ModelQuotaExceededError,
    "context_length_exceeded": theirs.ModelContextWindowExceededError,
    "not_found_error": theirs.ModelNotFoundError,
    "model_not_found": theirs.ModelNotFoundError,
}


def failure(error: Exception, model: str, then: str) -> PerdureError | None:
    """The error as ours; None for one that nobody foresaw. `then` is what to type afterwards."""
    if isinstance(error, PerdureError):
        return error
    if isinstance(error, Broken):
        error = _in_stream(error, model)
    if any(isinstance(cause, _NO_ADDRESS) for cause in _causes(error)):
        text = f"{model}: the provider's address is not one"
        advice = "check base_url, or the provider's own variable (as ANTHROPIC_BASE_URL)"
        return _lasting("MODEL_ERROR", text, advice, then, "")
    if _may_pass(error):
        after = getattr(error, "retry_after", None)
        return ModelUnavailable(
            f"{model}: {_told(error)}", retry_after_ms=None if after is None else int(after * 1000)
        )
    if not isinstance(error, (*(kind for kind, *_ in _LASTING), theirs.ModelAPIError)):
        return _misused(error, model, then)
    code, text, advice = _lasting_kind(error)
    return _lasting(code, f"{model}: {text}", advice, then, _said(error, code))


def _in_stream(error: Broken, model: str) -> theirs.ModelAPIError:
    """As the library tells what it finds in a stream."""
    kind = _IN_STREAM.get(error.code, theirs.ModelAPIError)
    body = {"message": error.message}
    return kind(model, str(error), body=body, provider_error_code=error.code or None)


def _lasting_kind(error: Exception) -> tuple[str, str, str]:
    for kind, *told in _LASTING:
        if isinstance(error, kind):
            return told[0], told[1], told[2]
    if _is_refusal(error):
        return _LASTING[-1][1:]
    status = getattr(error, "status_code", None)
    text = f"the request was refused with {status}" if status else "the request was refused"
    if not _said(error, "MODEL_ERROR"):
        return "MODEL_ERROR", text, "check base_url and model_settings"
    return "MODEL_ERROR", text, "change what the provider names"


def _misused(error: Exception, model: str, then: str) -> ModelError | None:
    if not isinstance(error, theirs.UserError):
        return None
    text = " ".join(str(error).split())
    return _lasting("MODEL_ERROR", f"{model}: {text}", "change model_settings", then, "")


def refused(said: str, model: str, then: str) -> ModelError:
    """The model answered that it will not answer."""
    _, code, text, advice = _LASTING[-1]
    return _lasting(code, f"{model}: {text}", advice, then, said)


def cut_off(model: str) -> ModelUnavailable:
    """An answer that ended before it was whole."""
    return ModelUnavailable(f"{model}: {_CUT_OFF}")


def no_answer(model: str) -> ModelUnavailable:
    """What came is a page for people."""
    hint = "check base_url; that of most servers ends in /v1"
    return ModelUnavailable(f"{model}: a web page came instead of an answer", hint=hint)


def _may_pass(error: Exception) -> bool:
    if isinstance(error, theirs.ModelQuotaExceededError):
        return False
    if isinstance(error, theirs.ModelHTTPError):
        return isinstance(error, _PASSING) or error.status_code in _PASSING_STATUS
    if isinstance(error, theirs.ModelAPIError):  # from inside a stream, or of the connection
        is_bare = type(error) is theirs.ModelAPIError
        return isinstance(error, _PASSING) or (is_bare and not _is_lasting(error))
    if isinstance(error, theirs.ContentFilterError):
        return False
    return isinstance(error, (*_CUT, theirs.UnexpectedModelBehavior))


def _is_lasting(error: theirs.ModelAPIError) -> bool:
    """Whether a stream ended with an error that is the request's own."""
    code = str(error.provider_error_code or "")
    return "image" in code or code.startswith("invalid_") or _is_refusal(error)


def _is_refusal(error: Exception) -> bool:
    return any(word in str(error).lower() for word in _REFUSED)


def _told(error: Exception) -> str:
    if isinstance(error, theirs.ModelHTTPError):
        return f"the provider answered {error.status_code}: {_said(error, '') or 'no reason given'}"
    if isinstance(error, theirs.ModelConnectionError | httpx2.TransportError):
        return _unreached(error)
    if isinstance(error, theirs.ModelRequestTimeout):
        return "the provider did not answer in time"
    if isinstance(error, theirs.ModelAPIError):
        return _said(error, "") or "the answer could not be read"
    return _CUT_OFF


def _unreached(error: BaseException) -> str:
    """Who could not be reached, and why, as far as the causes say it; no path and no query."""
    place = "the provider"
    for cause in _causes(error):
        if isinstance(cause, httpx2.TransportError) and cause._request is not None:  # noqa: SLF001 - .request raises where there is none
            place = cause.request.url.netloc.rpartition(b"@")[2].decode()
        if reason := _reason(cause):  # the first: behind it are the steps that led there
            return f"the connection to {place} failed: {reason}"
    return f"the connection to {place} failed"


def _reason(cause: BaseException) -> str | None:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return cause.verify_message
    if isinstance(cause, OSError) and cause.errno:
        return cause.strerror if isinstance(cause, gaierror) else os.strerror(cause.errno)
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _lasting(code: str, text: str, advice: str, then: str, said: str) -> ModelError:
    return ModelError(
        f"{text}: {said}" if said else text,
        code=code,
        hint=f"{advice}; then: {then}",
    )


def _said(error: Exception, code: str) -> str:
    """The provider's own words; not where they are about the key, of which they may show a part."""
    if code == "MODEL_KEY":
        return ""
    if type(error) is theirs.ModelAPIError and error.body is None:
        text = error.message if error.provider_error_code else ""
    else:
        text = _words(getattr(error, "body", None))
    for key in _keys_sent(error):
        text = text.replace(key, MASK)
    return " ".join(text.split())[:500]


def _words(body: Any) -> str:
    """What a body says: the providers' own form, those of servers like theirs, or plain text."""
    for _ in range(2):
        if isinstance(body, Mapping) and isinstance(body.get("error"), Mapping):
            body = body["error"]
    if isinstance(body, Mapping):
        body = body.get("message") or body.get("detail") or body.get("error")
    if isinstance(body, Mapping | list):
        return json.dumps(body, ensure_ascii=False)
    is_page = isinstance(body, str) and body.lstrip().startswith("<")
    return body if isinstance(body, str) and not is_page else ""


def _keys_sent(error: Exception) -> Iterator[str]:
    """What the request that failed had as keys: a server may repeat them."""
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        if isinstance(response, httpx2.Response):
            told = map(response.request.headers.get, _KEY_HEADERS)
            keys = [value.rpartition(" ")[2] for value in told if value]
            yield from (key for key in keys if len(key) >= _SECRET)
