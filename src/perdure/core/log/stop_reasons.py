"""Why a model stopped before it had said everything, in one word for all providers."""

from typing import Final, Literal

StopReason = Literal["max_tokens", "context_window", "refusal", "pause_turn"]

# The providers' words, in small letters.
_EARLY: Final[dict[str, StopReason]] = {
    "max_tokens": "max_tokens",
    "length": "max_tokens",
    "max_output_tokens": "max_tokens",
    "model_context_window_exceeded": "context_window",
    "model_length": "context_window",
    "refusal": "refusal",
    "content_filter": "refusal",
    "pause_turn": "pause_turn",
}


def early(stop: str | None) -> StopReason | None:
    """Why an answer ended too early; None: the model had said everything."""
    return None if stop is None else _EARLY.get(stop.lower())


def is_cut(stop: str | None) -> bool:
    """Whether an answer ends somewhere in the middle."""
    return early(stop) in ("max_tokens", "context_window")


def is_paused(stop: str | None) -> bool:
    """Whether the provider goes on with an answer once it gets it back."""
    return early(stop) == "pause_turn"
