"""Summaries before a turn: when one is requested, up to where, and what its failure means."""

import logging
from typing import Final

from msgspec import Struct

from perdure.core.conversation import compaction
from perdure.core.conversation.compaction import Cut
from perdure.core.driver.model_failures import FALLBACK_CODES
from perdure.core.session.naming import stream_label
from perdure.runtime.agents.prices import context_window
from perdure.runtime.engine.in_flight import ModelFailed, Summarized
from perdure.runtime.engine.model_calls import request_summary
from perdure.runtime.engine.writer import LeasedWriter
from perdure.runtime.records.log import Log

logger = logging.getLogger("perdure")

TOO_LONG: Final = "MODEL_CONTEXT"  # error code of a request that exceeds the context of the model
_SHORTER_MAY_FIT: Final = (
    TOO_LONG,
    "MODEL_CUT",
)  # codes after which a summary of fewer messages may succeed
_SMALL_TOKENS: Final = 2_000  # fit every model, so that the table of windows is not loaded


class SummaryProblems(Struct, gc=False):
    """Problems that a drive had with the length of its conversation."""

    too_long: tuple[int, int] | None = None  # turn and summary, not accepted
    skipped_turn: int | None = None  # the turn before which no summary could be obtained


def next_cut(drive: LeasedWriter, problems: SummaryProblems) -> Cut | None:
    """Return where to cut before the next turn is requested; None: no summary is needed."""
    turn, log, policy = drive.log.state.turn + 1, drive.log.events, drive.agent.compaction
    if policy is None or turn == problems.skipped_turn:
        return None
    too_long = problems.too_long
    if too_long is not None and too_long == (turn, compaction.summary_end(log)):
        return compaction.find_cut(log, policy)
    window, most = None, drive.log.token_bound.update(log)
    if policy.is_window_required:
        if most < _SMALL_TOKENS:
            return None
        window = context_window(drive.agent.model_for(drive.log.state.run).name)
    threshold = policy.threshold(window)
    if threshold is None or most < threshold:
        return None
    return compaction.automatic_cut(log, policy, window)


def requested_cut(drive: LeasedWriter) -> Cut | None:
    """Return where to cut for a caller's request; None: there is nothing to summarize."""
    requested = drive.log.state.compaction
    if requested is None:
        return None
    policy = drive.agent.compaction or compaction.CompactionPolicy()
    return compaction.requested_cut(drive.log.events, policy, requested.request, requested.seq)


async def summarize(drive: LeasedWriter, cut: Cut) -> Summarized | ModelFailed:
    """Request a summary up to the cut, or up to an earlier one if that is too long."""
    log, text = drive.log, _instructions(drive, cut)
    state = log.state
    while True:
        outcome = await request_summary(drive, cut, log.covered_messages(cut.up_to), state, text)
        is_too_long = isinstance(outcome, ModelFailed) and outcome.error.code in _SHORTER_MAY_FIT
        earlier = compaction.shorter_cut(log.events, cut) if is_too_long else None
        if earlier is None:
            return outcome
        cut = earlier


def _instructions(drive: LeasedWriter, cut: Cut) -> str:
    policy = drive.agent.compaction
    text = compaction.INSTRUCTIONS if policy is None else policy.instructions
    requested = drive.log.state.compaction if cut.request_seq else None
    more = None if requested is None else requested.request.instructions
    return f"{text}\n\n{more}" if more else text


def is_recorded(log: Log, outcome: Summarized) -> bool:
    """Return whether a summary is recorded already."""
    return compaction.summary_end(log.events) >= outcome.cut.up_to


def may_continue(drive: LeasedWriter, problems: SummaryProblems, failed: ModelFailed) -> bool:
    """Return whether the session can continue after this failure, with or without a summary."""
    log, policy = drive.log, drive.agent.compaction
    if failed.cut is not None:
        if failed.error.code in FALLBACK_CODES:
            return False  # as for any request: a retry, or another model
        text = "%s: no summary, the conversation keeps its length: %s"
        logger.warning(text, stream_label(log.stream), failed.error.message)
        problems.skipped_turn = failed.turn
        return True
    if failed.error.code != TOO_LONG or failed.turn == problems.skipped_turn or policy is None:
        return False
    problems.too_long = (failed.turn, compaction.summary_end(log.events))
    return compaction.find_cut(log.events, policy) is not None
