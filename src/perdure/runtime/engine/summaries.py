"""Summaries before a turn: when one is requested, up to where, and what its failure means."""

import logging
from typing import Final

from perdure.core.conversation import compaction
from perdure.core.conversation.compaction import Cut
from perdure.core.driver.model_failures import FALLBACK_CODES
from perdure.core.driver.verdicts import GiveUp
from perdure.core.session.naming import stream_label
from perdure.runtime.agents.prices import context_window
from perdure.runtime.engine.in_flight import ModelFailed, Summarized
from perdure.runtime.engine.model_calls import ModelCalls
from perdure.runtime.records.log import Log

logger = logging.getLogger("perdure")

TOO_LONG: Final = "MODEL_CONTEXT"  # error code of a request that exceeds the context of the model
_SHORTER_MAY_FIT: Final = (
    TOO_LONG,
    "MODEL_CUT",
)  # codes after which a summary of fewer messages may succeed
NOTHING_TO_COMPACT: Final = GiveUp("there is nothing to summarize", "NOTHING_TO_COMPACT")
_SMALL_TOKENS: Final = 2_000  # fit every model, so that the table of windows is not loaded


class Summaries:
    """Decides when a summary is requested before the next turn, and what its failure means."""

    def __init__(self, model_calls: ModelCalls, log: Log) -> None:
        self._model_calls = model_calls
        self._agent = model_calls.context.agent
        self._policy = self._agent.compaction
        self._log = log
        self._too_long: tuple[int, int] | None = None  # turn and summary, not accepted
        self._skipped_turn: int | None = None  # the turn before which no summary could be obtained

    def next_cut(self) -> Cut | None:
        """Return where to cut before the next turn is requested; None: no summary is needed."""
        turn, log, policy = self._log.state.turn + 1, self._log.events, self._policy
        if policy is None or turn == self._skipped_turn:
            return None
        if self._too_long is not None and self._too_long == (turn, compaction.summary_end(log)):
            return compaction.find_cut(log, policy)
        needs_window = (
            policy.is_window_required
            and compaction.estimate_tokens(log, _SMALL_TOKENS) >= _SMALL_TOKENS
        )
        model = self._agent.model_for(self._log.state.run)
        window = context_window(model.name) if needs_window else None
        return compaction.automatic_cut(log, policy, window)

    def requested_cut(self) -> Cut | None:
        """Return where to cut for a caller's request; None: there is nothing to summarize."""
        requested = self._log.state.compaction
        if requested is None:
            return None
        policy = self._policy or compaction.CompactionPolicy()
        return compaction.requested_cut(self._log.events, policy, requested.request, requested.seq)

    async def summarize(self, cut: Cut) -> Summarized | ModelFailed:
        """Request a summary up to the cut, or up to an earlier one if that is too long."""
        state, text = self._log.state, self._instructions(cut)
        while True:
            covered = self._log.covered_messages(cut.up_to)
            outcome = await self._model_calls.request_summary(cut, covered, state, text)
            is_too_long = (
                isinstance(outcome, ModelFailed) and outcome.error.code in _SHORTER_MAY_FIT
            )
            earlier = compaction.shorter_cut(self._log.events, cut) if is_too_long else None
            if earlier is None:
                return outcome
            cut = earlier

    def _instructions(self, cut: Cut) -> str:
        text = compaction.INSTRUCTIONS if self._policy is None else self._policy.instructions
        requested = self._log.state.compaction if cut.request_seq else None
        more = None if requested is None else requested.request.instructions
        return f"{text}\n\n{more}" if more else text

    def is_recorded(self, outcome: Summarized) -> bool:
        """Return whether a summary is recorded already."""
        return compaction.summary_end(self._log.events) >= outcome.cut.up_to

    def may_continue(self, failed: ModelFailed) -> bool:
        """Return whether the session can continue after this failure, with or without a summary."""
        if failed.cut is not None:
            if failed.error.code in FALLBACK_CODES:
                return False  # as for any request: a retry, or another model
            text = "%s: no summary, the conversation keeps its length: %s"
            logger.warning(text, stream_label(self._log.stream), failed.error.message)
            self._skipped_turn = failed.turn
            return True
        if (
            failed.error.code != TOO_LONG
            or failed.turn == self._skipped_turn
            or self._policy is None
        ):
            return False
        log = self._log.events
        self._too_long = (failed.turn, compaction.summary_end(log))
        return compaction.find_cut(log, self._policy) is not None
