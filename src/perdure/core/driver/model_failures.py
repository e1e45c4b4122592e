"""Failed model requests and unusable responses: retry, fallback, or the end of the run."""

import zlib
from typing import Final

from msgspec import Struct

from perdure.core.conversation.messages import Answer
from perdure.core.driver.verdicts import GiveUp
from perdure.core.log import events
from perdure.core.log.stop_reasons import is_cut, stop_reason
from perdure.core.session.state import Run, State
from perdure.views.durations import format_ms
from perdure.views.literals import StopReason

FIRST_MS: Final = 1_000  # the first back-off; each following one is twice as long
LONGEST_MS: Final = 60_000
_WHOLE_SECONDS_MS: Final = 10_000  # longer back-offs are shown in whole seconds
LONGEST_REQUESTED_MS: Final = 24 * 3_600_000  # the longest back-off that a provider may request
# Codes of failures for which a fallback may succeed: the request itself is not the cause.
FALLBACK_CODES: Final = frozenset(
    {"MODEL_UNAVAILABLE", "MODEL_KEY", "MODEL_QUOTA", "MODEL_UNKNOWN"}
)


class ModelFailure(Struct, frozen=True):
    """Failure of a model request."""

    error: str
    code: str
    hint: str | None = None
    is_transient: bool = False  # the same request may succeed later
    retry_after_ms: int | None = None  # as the provider requested


class RetryPolicy(Struct, frozen=True):
    """Number of retries, and the names of the models to try in order."""

    retries: int = 6
    models: tuple[str, ...] = ()  # the agent's own first, then its fallbacks


def retry_or_give_up(
    state: State, failure: ModelFailure, policy: RetryPolicy, now: int
) -> events.Retry | GiveUp:
    """Retry at an instant, switch to the next model at once, or end the run."""
    run, failed = state.run, failed_attempt(state)
    task = None if run is None else run.id
    if failure.is_transient and failed <= policy.retries:
        at = now + delay_ms(f"{task}:{state.turn}:{failed}", failed, failure.retry_after_ms)
        return events.Retry(attempt=failed, message=failure.error, next=at, task_id=task)
    fallback = _next_model(run, policy.models)
    if failure.code in FALLBACK_CODES and fallback is not None:
        return events.Retry(
            attempt=failed, message=failure.error, next=now, task_id=task, model=fallback
        )
    return _give_up(failure, failed)


def retry_text(retry: events.Retry, now: int, attempts: int) -> str:
    """Return a line for people: why a request is repeated, when, and which attempt that is."""
    reason = f"the model request failed ({retry.message})"
    if retry.model is not None:
        return f"{reason}; continuing with {retry.model}"
    ms = max(0, retry.next - now)
    delay = f"{ms / 1_000:.1f}s" if ms < _WHOLE_SECONDS_MS else format_ms(ms // 1_000 * 1_000)
    return f"{reason}; attempt {retry.attempt + 1} of {attempts} in {delay}"


def failed_attempt(state: State) -> int:
    """Return the number of the attempt that just failed, counted from 1 per turn and model."""
    previous = state.retry
    return 1 if previous is None or previous.model is not None else previous.attempt + 1


def delay_ms(salt: str, failed: int, requested_ms: int | None) -> int:
    """Return the back-off: exponential, with jitter from `salt`, at least what was requested."""
    spread = zlib.crc32(salt.encode()) / 2**32
    longest = min(LONGEST_MS, FIRST_MS << min(failed - 1, 16))
    own = int(longest / 2 * (1 + spread))
    if requested_ms is None:
        return own
    return max(own, min(max(requested_ms, 0), LONGEST_REQUESTED_MS) + int(FIRST_MS / 2 * spread))


def _next_model(run: Run | None, models: tuple[str, ...]) -> str | None:
    """Return the model after the run's current one; None if that was the last."""
    current = models.index(run.model) if run is not None and run.model in models else 0
    return models[current + 1] if current + 1 < len(models) else None


def _give_up(failure: ModelFailure, failed: int) -> GiveUp:
    if not failure.is_transient:
        return GiveUp(failure.error, failure.code, failure.hint)
    attempts = "once" if failed == 1 else f"{failed} times"
    hint = failure.hint or "when the provider answers again, resume the session"
    return GiveUp(f"{failure.error} (asked {attempts})", failure.code, hint)


MAX_PAUSES: Final = 10  # in a row; then the text so far is the response
_CUT_PLACES: Final[dict[StopReason, str]] = {
    "max_tokens": "at the limit of tokens (max_tokens)",
    "context_window": "at the end of the model's window",
}
_HINTS: Final[dict[StopReason, str]] = {
    "max_tokens": "raise max_tokens in the agent's model_settings, then resume the session",
    "context_window": "compact the session or name a model with a larger window, then resume it",
}


def unusable_response(answer: Answer, *, is_repeated: bool) -> GiveUp | None:
    """Return why a cut-off response cannot be used; None if it can.

    None of its calls is run, because a truncated call can look complete. The first time the model
    is asked to repeat them; if the next response is cut off too (`is_repeated`), the run fails.
    """
    if not is_cut(answer.stop_reason):
        return None
    if answer.calls:
        problem = "before its tool calls were complete, twice in a row; none of them was run"
        return cut_off_response(answer, problem) if is_repeated else None
    has_content = answer.text.strip() or answer.output is not None
    return None if has_content else cut_off_response(answer, "before anything was said")


def cut_off_response(answer: Answer, when: str) -> GiveUp:
    """Return the end of a run whose last response is cut off and cannot be used."""
    reason = stop_reason(answer.stop_reason) or "max_tokens"
    error = f"{answer.model or 'the model'}: the answer was cut off {_CUT_PLACES[reason]} {when}"
    return GiveUp(error, "MODEL_CUT", _HINTS[reason])
