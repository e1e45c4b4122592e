"""Stop reasons of responses that ended early, normalized over all providers."""

from typing import Final

from perdure.views.literals import StopReason

# The providers' stop reasons, in lower case.
_STOP_REASONS: Final[dict[str, StopReason]] = {
    "max_tokens": "max_tokens",
    "length": "max_tokens",
    "max_output_tokens": "max_tokens",
    "model_context_window_exceeded": "context_window",
    "model_length": "context_window",
    "refusal": "refusal",
    "content_filter": "refusal",
    "pause_turn": "pause_turn",
}


def stop_reason(stop: str | None) -> StopReason | None:
    """Return the reason why a response ended early; None if it is complete."""
    return None if stop is None else _STOP_REASONS.get(stop.lower())


def is_cut(stop: str | None) -> bool:
    """Return True if a response was cut off in the middle."""
    return stop is not None and stop_reason(stop) in ("max_tokens", "context_window")


def is_paused(stop: str | None) -> bool:
    """Return True if the provider continues the response when it is sent back."""
    return stop is not None and stop.lower() == "pause_turn"
