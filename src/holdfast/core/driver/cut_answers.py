"""What can be done with an answer that was cut off."""

from typing import Final

from holdfast.core.conversation.messages import Answer
from holdfast.core.driver.verdicts import GiveUp
from holdfast.core.log.stop_reasons import Early, early, is_cut

MAX_PAUSES: Final = 10  # in a row, after which what was said so far is the answer
_WHERE: Final[dict[Early, str]] = {
    "max_tokens": "at the limit of tokens (max_tokens)",
    "context_window": "at the end of the model's window",
}
_HINTS: Final[dict[Early, str]] = {
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
