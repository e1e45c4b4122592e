"""Failures of a provider as errors of perdure: transient ones, and those the user must fix."""

import json
import os
import ssl
from collections.abc import Iterator, Mapping
from socket import gaierror
from typing import Any, Final

import httpx2
from pydantic_ai import exceptions as theirs

from perdure.core.log.redaction import MASK
from perdure.core.providers.stream import ProviderStreamError
from perdure.errors import ModelError, ModelUnavailable, PerdureError

_TRANSIENT: Final = (
    theirs.ModelRateLimitError,
    theirs.ModelUnavailableError,
    theirs.ModelServerError,
    theirs.ModelConnectionError,
    theirs.ModelRequestTimeout,
)
_TRANSIENT_STATUS: Final = frozenset({408, 409, 425, 429})
_CUT: Final = (httpx2.TransportError, httpx2.StreamError, json.JSONDecodeError, UnicodeDecodeError)
_NO_ADDRESS: Final = (httpx2.UnsupportedProtocol, httpx2.InvalidURL)
_KEY_HEADERS: Final = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
_CUT_OFF: Final = "the response was cut off"
_MIN_KEY_LENGTH: Final = 8  # shorter: a placeholder for a server that needs no key
_REFUSED: Final = ("content_policy", "content_filter", "content filter", "invalid_prompt")

# Exception of the library, error code, text and advice.
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
        "the provider does not know the model",
        "check its name, and base_url if you set one",
    ),
    (
        theirs.ModelContextWindowExceededError,
        "MODEL_CONTEXT",
        "the conversation is too long for the model",
        "compact it (perdure sessions compact), or use a model with a larger window",
    ),
    (
        theirs.ContentFilterError,
        "MODEL_REFUSED",
        "the provider refused the content",
        "use another model, or fork the session before the message",
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


def failure(error: Exception, model: str, command: str) -> PerdureError | None:
    """Return the error of perdure for a failure; None for an unforeseen one.

    `command` is what the user types once the cause is removed.
    """
    if isinstance(error, PerdureError):
        return error
    if isinstance(error, ProviderStreamError):
        error = _library_error(error, model)
    if any(isinstance(cause, _NO_ADDRESS) for cause in _causes(error)):
        text = f"{model}: the address of the provider is not a valid URL"
        advice = "check base_url, or the environment variable of the provider (ANTHROPIC_BASE_URL)"
        return _lasting_error("MODEL_ERROR", text, advice, command, "")
    if _is_transient(error):
        after = getattr(error, "retry_after", None)
        after_ms = None if after is None else int(after * 1000)
        return ModelUnavailable(f"{model}: {_transient_text(error)}", retry_after_ms=after_ms)
    if not isinstance(error, (*(kind for kind, *_ in _LASTING), theirs.ModelAPIError)):
        return _settings_error(error, model, command)
    code, text, advice = _lasting_kind(error)
    return _lasting_error(code, f"{model}: {text}", advice, command, _provider_text(error, code))


def _library_error(error: ProviderStreamError, model: str) -> theirs.ModelAPIError:
    """Return the exception that the library would raise for an error in a stream."""
    kind = _IN_STREAM.get(error.code, theirs.ModelAPIError)
    body = {"message": error.message}
    return kind(model, str(error), body=body, provider_error_code=error.code or None)


def _lasting_kind(error: Exception) -> tuple[str, str, str]:
    for kind, code, text, advice in _LASTING:
        if isinstance(error, kind):
            return code, text, advice
    if _is_refusal(error):
        return _LASTING[-1][1:]
    status = getattr(error, "status_code", None)
    text = "the provider refused the request" + (f" with {status}" if status else "")
    if not _provider_text(error, "MODEL_ERROR"):
        return "MODEL_ERROR", text, "check base_url and model_settings"
    return "MODEL_ERROR", text, "change what the provider complains about"


def _settings_error(error: Exception, model: str, command: str) -> ModelError | None:
    if not isinstance(error, theirs.UserError):
        return None
    text = " ".join(str(error).split())
    return _lasting_error("MODEL_ERROR", f"{model}: {text}", "change model_settings", command, "")


def refusal_error(explanation: str, model: str, command: str) -> ModelError:
    """Return the error for a response in which the model declines to respond."""
    _, code, text, advice = _LASTING[-1]
    return _lasting_error(code, f"{model}: {text}", advice, command, explanation)


def cut_off_error(model: str) -> ModelUnavailable:
    """Return the error for a response that ended before it was complete."""
    return ModelUnavailable(f"{model}: {_CUT_OFF}")


def web_page_error(model: str) -> ModelUnavailable:
    """Return the error for a web page in place of a response."""
    hint = "check base_url; for most servers it ends in /v1"
    return ModelUnavailable(f"{model}: the server sent a web page, not a response", hint=hint)


def _is_transient(error: Exception) -> bool:
    if isinstance(error, theirs.ModelQuotaExceededError):
        return False
    if isinstance(error, theirs.ModelHTTPError):
        return isinstance(error, _TRANSIENT) or error.status_code in _TRANSIENT_STATUS
    if isinstance(error, theirs.ModelAPIError):  # from inside a stream, or of the connection
        is_bare = type(error) is theirs.ModelAPIError
        return isinstance(error, _TRANSIENT) or (is_bare and not _is_lasting(error))
    if isinstance(error, theirs.ContentFilterError):
        return False
    return isinstance(error, (*_CUT, theirs.UnexpectedModelBehavior))


def _is_lasting(error: theirs.ModelAPIError) -> bool:
    """Report whether an error in a stream was caused by the request itself."""
    code = str(error.provider_error_code or "")
    return "image" in code or code.startswith("invalid_") or _is_refusal(error)


def _is_refusal(error: Exception) -> bool:
    return any(word in str(error).lower() for word in _REFUSED)


def _transient_text(error: Exception) -> str:
    if isinstance(error, theirs.ModelHTTPError):
        reason = _provider_text(error, "") or "no reason given"
        return f"the provider responded with {error.status_code}: {reason}"
    if isinstance(error, theirs.ModelConnectionError | httpx2.TransportError):
        return _connection_text(error)
    if isinstance(error, theirs.ModelRequestTimeout):
        return "the provider did not respond in time"
    if isinstance(error, theirs.ModelAPIError):
        return _provider_text(error, "") or "the response could not be read"
    return _CUT_OFF


def _connection_text(error: BaseException) -> str:
    """Return the host that could not be reached and the reason; no path and no query."""
    host = "the provider"
    for cause in _causes(error):
        if isinstance(cause, httpx2.TransportError) and cause._request is not None:  # noqa: SLF001 - .request raises where there is none
            host = cause.request.url.netloc.rpartition(b"@")[2].decode()
        if reason := _reason(cause):  # the first reason is the most specific
            return f"the connection to {host} failed: {reason}"
    return f"the connection to {host} failed"


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


def _lasting_error(code: str, text: str, advice: str, command: str, explanation: str) -> ModelError:
    return ModelError(
        f"{text}: {explanation}" if explanation else text,
        code=code,
        hint=f"{advice}; then: {command}",
    )


def _provider_text(error: Exception, code: str) -> str:
    """Return the provider's own text; not if it is about the key, which it may partly show."""
    if code == "MODEL_KEY":
        return ""
    if type(error) is theirs.ModelAPIError and error.body is None:
        text = error.message if error.provider_error_code else ""
    else:
        text = _body_text(getattr(error, "body", None))
    for key in _request_keys(error):
        text = text.replace(key, MASK)
    return " ".join(text.split())[:500]


def _body_text(body: Any) -> str:
    """Return the message in a body: in the form of a provider or compatible server, or as text."""
    for _ in range(2):
        if isinstance(body, Mapping) and isinstance(body.get("error"), Mapping):
            body = body["error"]
    if isinstance(body, Mapping):
        body = body.get("message") or body.get("detail") or body.get("error")
    if isinstance(body, Mapping | list):
        return json.dumps(body, ensure_ascii=False)
    is_page = isinstance(body, str) and body.lstrip().startswith("<")
    return body if isinstance(body, str) and not is_page else ""


def _request_keys(error: Exception) -> Iterator[str]:
    """Return the keys in the headers of the failed request: a server may repeat them."""
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        if isinstance(response, httpx2.Response):
            values = map(response.request.headers.get, _KEY_HEADERS)
            keys = [value.rpartition(" ")[2] for value in values if value]
            yield from (key for key in keys if len(key) >= _MIN_KEY_LENGTH)
