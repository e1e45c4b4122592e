"""What becomes of a request that a model did not answer: again later, another model, or the end."""

import zlib
from typing import Final

from msgspec import Struct

from perdure.core.conversation.messages import Answer
from perdure.core.driver.verdicts import GiveUp
from perdure.core.log import events
from perdure.core.log.stop_reasons import StopReason, early, is_cut
from perdure.core.session.state import Run, State

FIRST_MS: Final = 1_000  # the first back-off; each one after it is twice as long
LONGEST_MS: Final = 60_000
LONGEST_ASKED_MS: Final = 24 * 3_600_000  # the longest that a provider may ask for
# Another model may answer the same request: what failed is not the request's own fault.
ELSEWHERE: Final = frozenset({"MODEL_UNAVAILABLE", "MODEL_KEY", "MODEL_QUOTA", "MODEL_UNKNOWN"})


class ModelFailure(Struct, frozen=True):
    """Why a model did not answer."""

    error: str
    code: str
    hint: str | None = None
    may_pass: bool = False  # the same request may be answered later
    retry_after_ms: int | None = None  # as the provider asked


class RetryPolicy(Struct, frozen=True):
    """How often a model is asked again, and which ones stand in for it then, by name."""

    retries: int = 6
    models: tuple[str, ...] = ()  # the agent's own first


def after_trouble(
    state: State, trouble: ModelFailure, patience: RetryPolicy, now: int
) -> events.Retry | GiveUp:
    """Ask again at an instant, ask the next model at once, or end the run."""
    run, failed = state.run, attempt(state)
    task = None if run is None else run.id
    if trouble.may_pass and failed <= patience.retries:
        at = now + delay_ms(f"{task}:{state.turn}:{failed}", failed, trouble.retry_after_ms)
        return events.Retry(attempt=failed, message=trouble.error, next=at, task_id=task)
    stand_in = _next_model(run, patience.models)
    if trouble.code in ELSEWHERE and stand_in is not None:
        return events.Retry(
            attempt=failed, message=trouble.error, next=now, task_id=task, model=stand_in
        )
    return _given_up(trouble, failed)


def attempt(state: State) -> int:
    """Which attempt of its turn just failed; they are counted from 1 for each model."""
    before = state.retry
    return 1 if before is None or before.model is not None else before.attempt + 1


def delay_ms(salt: str, failed: int, asked_ms: int | None) -> int:
    """How long to wait: longer each time, never the same for all who failed together.

    What the provider asks for is the least.
    """
    spread = zlib.crc32(salt.encode()) / 2**32
    longest = min(LONGEST_MS, FIRST_MS << min(failed - 1, 16))
    own = int(longest / 2 * (1 + spread))
    if asked_ms is None:
        return own
    return max(own, min(max(asked_ms, 0), LONGEST_ASKED_MS) + int(FIRST_MS / 2 * spread))


def _next_model(run: Run | None, models: tuple[str, ...]) -> str | None:
    """The model after the one that the run is with; None if that was the last."""
    now = models.index(run.model) if run is not None and run.model in models else 0
    return models[now + 1] if now + 1 < len(models) else None


def _given_up(trouble: ModelFailure, failed: int) -> GiveUp:
    if not trouble.may_pass:
        return GiveUp(trouble.error, trouble.code, trouble.hint)
    asked = "once" if failed == 1 else f"{failed} times"
    hint = trouble.hint or "when the provider answers again, resume the session"
    return GiveUp(f"{trouble.error} (asked {asked})", trouble.code, hint)


MAX_PAUSES: Final = 10  # in a row, after which what was said so far is the answer
_WHERE: Final[dict[StopReason, str]] = {
    "max_tokens": "at the limit of tokens (max_tokens)",
    "context_window": "at the end of the model's window",
}
_HINTS: Final[dict[StopReason, str]] = {
    "max_tokens": "raise max_tokens in the agent's model_settings, then resume the session",
    "context_window": "compact the session or name a model with a larger window, then resume it",
}
NOT_RUN: Final = (
    "Not run: your answer was cut off before it was complete. Ask for it again, in smaller pieces."
)


def useless(answer: Answer, *, again: bool) -> GiveUp | None:
    """Why nothing can be done with an answer that was cut off; None: something can.

    None of its calls is run: one may be half of what was meant, and look whole. The model is told
    so, and does better or is cut off `again`.
    """
    if not is_cut(answer.stop):
        return None
    if answer.calls:
        what = "before its tool calls were complete, twice in a row; none of them was run"
        return cut_off(answer, what) if again else None
    said = answer.text.strip() or answer.output is not None
    return None if said else cut_off(answer, "before anything was said")


def cut_off(answer: Answer, when: str) -> GiveUp:
    """The end of a run whose last answer cannot be used."""
    why = early(answer.stop) or "max_tokens"
    error = f"{answer.model or 'the model'}: the answer was cut off {_WHERE[why]} {when}"
    return GiveUp(error, "MODEL_CUT", _HINTS[why])
