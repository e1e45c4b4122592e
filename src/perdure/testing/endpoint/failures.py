"""Failures on demand, with the error of each provider."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.testing.provider_rules import Format

# Failures of the connection: the response is cut off, incomplete JSON, delayed, or missing.
CONNECTION_FAILURES: Final = ("cut", "half_json", "stall", "drop")


@dataclass(frozen=True, slots=True)
class ProviderError:
    """Error response of a provider; `type` and `code` are its own words."""

    status: int
    type: str
    message: str
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


_CREDIT: Final = (
    "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to "
    "upgrade or purchase credits."
)
_RATE: Final = "This request would exceed the rate limit for your organization"
_KEY: Final = "Incorrect API key provided. You can find your API key in your account's settings."
_TOKENS: Final = (
    "This model's maximum context length is 128000 tokens. However, your messages resulted in "
    "130001 tokens. Please reduce the length of the messages."
)
_FLAGGED: Final = (
    "Invalid prompt: your prompt was flagged as potentially violating our usage policy. Please try "
    "again with a different prompt."
)

_ANTHROPIC: Final[Mapping[str, ProviderError]] = {
    "rate_limit": ProviderError(429, "rate_limit_error", _RATE),
    "server_error": ProviderError(500, "api_error", "Internal server error"),
    "overloaded": ProviderError(529, "overloaded_error", "Overloaded"),
    "key": ProviderError(401, "authentication_error", "invalid x-api-key"),
    "quota": ProviderError(400, "invalid_request_error", _CREDIT),
    "context": ProviderError(
        400, "invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum"
    ),
    "refused": ProviderError(
        400, "invalid_request_error", "Output blocked by content filtering policy"
    ),
    "unknown_model": ProviderError(404, "not_found_error", "model: {model}"),
}
_OPENAI: Final[Mapping[str, ProviderError]] = {
    "rate_limit": ProviderError(
        429, "requests", "Rate limit reached for {model}. Please try again.", "rate_limit_exceeded"
    ),
    "server_error": ProviderError(
        500, "server_error", "The server had an error while processing your request. Sorry!"
    ),
    "overloaded": ProviderError(
        503, "server_error", "The engine is currently overloaded, please try again later"
    ),
    "key": ProviderError(401, "invalid_request_error", _KEY, "invalid_api_key"),
    "quota": ProviderError(
        429,
        "insufficient_quota",
        "You exceeded your current quota, please check your plan and billing details.",
        "insufficient_quota",
    ),
    "context": ProviderError(
        400, "invalid_request_error", _TOKENS, "context_length_exceeded", "messages"
    ),
    "refused": ProviderError(400, "invalid_request_error", _FLAGGED, "invalid_prompt"),
    "unknown_model": ProviderError(
        404,
        "invalid_request_error",
        "The model `{model}` does not exist or you do not have access to it.",
        "model_not_found",
    ),
}
PROVIDER_FAILURES: Final = tuple(_ANTHROPIC)


def provider_error(name: str | int, format: Format, model: str) -> ProviderError:  # noqa: A002
    """Return the provider's error for a failure; a status has no text of the provider."""
    if isinstance(name, int):
        return ProviderError(name, "error", f"HTTP {name}")
    error = (_ANTHROPIC if format == "anthropic" else _OPENAI)[name]
    return ProviderError(
        error.status, error.type, error.message.format(model=model), error.code, error.param
    )


def error_body(error: ProviderError, format: Format, number: int) -> dict[str, Any]:  # noqa: A002
    """Return the body in which the provider sends an error."""
    if format == "anthropic":
        details = {"type": error.type, "message": error.message}
        return {"type": "error", "error": details, "request_id": f"req_{number}"}
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }
