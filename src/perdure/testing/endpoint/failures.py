"""What goes wrong on demand, and how each provider says it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.testing.provider_rules import Format

# Failures of the line and not of the provider: the answer is cut off, half there, or does not come.
BROKEN: Final = ("cut", "half_json", "stall", "drop")


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as a provider answers it; `type` and `code` are its words."""

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

_ANTHROPIC: Final[Mapping[str, Problem]] = {
    "rate_limit": Problem(429, "rate_limit_error", _RATE),
    "server_error": Problem(500, "api_error", "Internal server error"),
    "overloaded": Problem(529, "overloaded_error", "Overloaded"),
    "key": Problem(401, "authentication_error", "invalid x-api-key"),
    "quota": Problem(400, "invalid_request_error", _CREDIT),
    "context": Problem(
        400, "invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum"
    ),
    "refused": Problem(400, "invalid_request_error", "Output blocked by content filtering policy"),
    "unknown_model": Problem(404, "not_found_error", "model: {model}"),
}
_OPENAI: Final[Mapping[str, Problem]] = {
    "rate_limit": Problem(
        429, "requests", "Rate limit reached for {model}. Please try again.", "rate_limit_exceeded"
    ),
    "server_error": Problem(
        500, "server_error", "The server had an error while processing your request. Sorry!"
    ),
    "overloaded": Problem(
        503, "server_error", "The engine is currently overloaded, please try again later"
    ),
    "key": Problem(401, "invalid_request_error", _KEY, "invalid_api_key"),
    "quota": Problem(
        429,
        "insufficient_quota",
        "You exceeded your current quota, please check your plan and billing details.",
        "insufficient_quota",
    ),
    "context": Problem(
        400, "invalid_request_error", _TOKENS, "context_length_exceeded", "messages"
    ),
    "refused": Problem(400, "invalid_request_error", _FLAGGED, "invalid_prompt"),
    "unknown_model": Problem(
        404,
        "invalid_request_error",
        "The model `{model}` does not exist or you do not have access to it.",
        "model_not_found",
    ),
}
REFUSED: Final = tuple(_ANTHROPIC)


def problem(name: str | int, format: Format, model: str) -> Problem:  # noqa: A002
    """The failure of that name in the words of the provider; any other status, bare."""
    if isinstance(name, int):
        return Problem(name, "error", f"HTTP {name}")
    found = (_ANTHROPIC if format == "anthropic" else _OPENAI)[name]
    return Problem(
        found.status, found.type, found.message.format(model=model), found.code, found.param
    )


def body_of(wrong: Problem, format: Format, number: int) -> dict[str, Any]:  # noqa: A002
    """The body in which the provider sends an error."""
    if format == "anthropic":
        error = {"type": wrong.type, "message": wrong.message}
        return {"type": "error", "error": error, "request_id": f"req_{number}"}
    return {
        "error": {
            "message": wrong.message,
            "type": wrong.type,
            "param": wrong.param,
            "code": wrong.code,
        }
    }
