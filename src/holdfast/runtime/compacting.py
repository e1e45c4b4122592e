"""What one drive does about a conversation that has become too long."""

import logging
from typing import Final

from holdfast.core.conversation import compaction
from holdfast.core.conversation.compaction import Cut
from holdfast.core.driver.model_failures import ELSEWHERE
from holdfast.core.driver.verdicts import GiveUp
from holdfast.runtime.asking import Asking
from holdfast.runtime.log import Log
from holdfast.runtime.outcomes import ModelFailed, Summarised
from holdfast.runtime.prices import window

logger = logging.getLogger("holdfast")

TOO_LONG: Final = "MODEL_CONTEXT"  # what is said of a request that the model cannot take
_OF_LESS: Final = (TOO_LONG, "MODEL_CUT")  # a summary of less may be had, and shorter
NOTHING: Final = GiveUp("there is nothing to summarise", "NOTHING_TO_COMPACT")
_SMALL: Final = 2_000  # tokens that every model takes: the table of windows is not even loaded


class Compacting:
    """When a summary is asked for instead of the next turn, and what if there is none."""

    def __init__(self, asking: Asking, log: Log) -> None:
        self._asking = asking
        self._agent = asking.place.agent
        self._policy = self._agent.compaction
        self._log = log
        self._too_long: tuple[int, int] | None = None  # turn and summary that were not taken
        self._given_up: int | None = None  # the turn before which there is no summary to be had

    def wanted(self) -> Cut | None:
        """Where to cut before the next turn is asked for; None: it is asked for as it is."""
        turn, log, policy = self._log.state.turn + 1, self._log.events, self._policy
        if policy is None or turn == self._given_up:
            return None
        if self._too_long is not None and self._too_long == (turn, compaction.covered(log)):
            return compaction.cut(log, policy)
        looks = policy.needs_window and compaction.size(log, _SMALL) >= _SMALL
        model = self._agent.model_of(self._log.state.run)
        return compaction.wanted(log, policy, window(model.name) if looks else None)

    def by_hand(self) -> Cut | None:
        """Where to cut because somebody wants it; None: there is nothing to summarise."""
        asked = self._log.state.compaction
        if asked is None:
            return None
        policy = self._policy or compaction.Policy()
        return compaction.by_hand(self._log.events, policy, asked.wanted, asked.seq)

    async def summarise(self, cut: Cut) -> Summarised | ModelFailed:
        """A summary of what stands before the cut, or of less if that is too much for one."""
        state, text = self._log.state, self._instructions(cut)
        while True:
            covered = self._log.covered(cut.up_to)
            outcome = await self._asking.summary(cut, covered, state, text)
            is_too_much = isinstance(outcome, ModelFailed) and outcome.error.code in _OF_LESS
            nearer = compaction.shorter(self._log.events, cut) if is_too_much else None
            if nearer is None:
                return outcome
            cut = nearer

    def _instructions(self, cut: Cut) -> str:
        text = compaction.INSTRUCTIONS if self._policy is None else self._policy.instructions
        asked = self._log.state.compaction if cut.asked else None
        more = None if asked is None else asked.wanted.instructions
        return f"{text}\n\n{more}" if more else text

    def is_recorded(self, outcome: Summarised) -> bool:
        """Whether a summary stands in the log already."""
        return compaction.covered(self._log.events) >= outcome.cut.up_to

    def helps(self, failed: ModelFailed) -> bool:
        """Whether the session can go on after this, with a summary or without one."""
        if failed.cut is not None:
            if failed.error.code in ELSEWHERE:
                return False  # as of any request: it is asked for again, or another model is
            what = "%s: there is no summary, the conversation stays as long as it is: %s"
            logger.warning(what, self._log.stream, failed.error.message)
            self._given_up = failed.turn
            return True
        if failed.error.code != TOO_LONG or failed.turn == self._given_up or self._policy is None:
            return False
        log = self._log.events
        self._too_long = (failed.turn, compaction.covered(log))
        return compaction.cut(log, self._policy) is not None
