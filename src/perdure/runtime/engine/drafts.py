"""Drafts of a driver: the events and entries to commit for an effect or an outcome."""

from dataclasses import replace
from typing import assert_never

from msgspec import Struct

from perdure.core.conversation.messages import Answer
from perdure.core.driver import drafts as turns
from perdure.core.driver import effects
from perdure.core.driver.draft_builder import Draft, SessionScope
from perdure.core.driver.drafts import ModelTurn
from perdure.core.driver.model_failures import MAX_PAUSES, ModelFailure, unusable_response
from perdure.core.driver.verdicts import Ending, GiveUp, Verdict
from perdure.core.log import events
from perdure.core.log.stop_reasons import is_cut, is_paused
from perdure.core.session.calls import Call
from perdure.errors import ModelUnavailable, PerdureError, Refused
from perdure.runtime.agents.agents import ReadyAgent
from perdure.runtime.engine.in_flight import (
    Answered,
    ModelFailed,
    Outcome,
    StartReturned,
    Summarized,
    ToolAsked,
    ToolReturned,
)
from perdure.runtime.engine.summaries import Summaries
from perdure.runtime.engine.tool_calls import Verdicts
from perdure.runtime.engine.writer import LeasedWriter
from perdure.runtime.records.log import Log

WrittenEffect = (
    effects.HandleInterrupted
    | effects.FireTimers
    | effects.CloseCalls
    | effects.CloseStrays
    | effects.FailLostRun
    | effects.EndUnansweredRun
    | effects.FailRun
)


class Drafts(Struct, frozen=True):
    """Drafts of one drive.

    It has no reference to its driver: a reference cycle is freed only by the garbage collector.
    """

    agent: ReadyAgent
    writer: LeasedWriter
    verdicts: Verdicts
    summaries: Summaries

    @property
    def log(self) -> Log:
        return self.writer.log

    def _scope(self) -> SessionScope:
        """Return the scope of the drafts; a message may have added a receiver to the entry."""
        record, agent = self.writer.entry.record, self.agent
        policy = (agent.agent.on_expire, agent.grace_ms, record.hooks, agent.is_blocking)
        return SessionScope(record.id, record.tenant, agent.name, self.writer.lease.epoch, *policy)

    # --- drafts of effects --------------------------------------------------------------------

    def draft_effect(self, effect: WrittenEffect, now: int) -> Draft:
        """Return the draft of an effect that consists of a commit."""
        state = self.log.state
        match effect:
            case effects.HandleInterrupted():
                return self._draft_interrupted(effect.calls, now)
            case effects.FireTimers():
                return turns.fire_timers(state, effect.calls, now)
            case effects.CloseCalls():
                return turns.close_calls(state, now)
            case effects.CloseStrays():
                return turns.close_strays(state, effect.calls, now)
            case _:
                return self._draft_ending(effect, now)

    def _draft_ending(
        self, effect: effects.FailLostRun | effects.EndUnansweredRun | effects.FailRun, now: int
    ) -> Draft:
        match effect:
            case effects.FailLostRun():
                return turns.fail_lost_run(self.log.state, now)
            case effects.EndUnansweredRun():
                on_expire = self._scope().on_expire
                return turns.end_unanswered_run(self.log.state, effect.calls, on_expire, now)
            case effects.FailRun():
                return self._draft_failure(effect, now)
            case _:
                assert_never(effect)

    def draft_start(
        self, calls: tuple[Call, ...], now: int
    ) -> tuple[Draft | None, dict[str, Refused]]:
        """Return the intents of calls that start now, and why others cannot with the code here."""
        verdicts: dict[str, Verdict] = {}
        stuck: dict[str, Refused] = {}
        for call in calls:
            verdict = self.verdicts.recheck(call)
            if isinstance(verdict, Refused):
                stuck[call.id] = verdict
            else:
                verdicts[call.id] = verdict
        if not verdicts:
            return None, stuck
        return turns.start_calls(self.log.state, self._scope(), verdicts, now), stuck

    def _draft_interrupted(self, calls: tuple[Call, ...], now: int) -> Draft:
        interrupted = []
        for call in calls:
            tool = self.agent.tool(call.tool)
            policy = "tell" if tool is None else tool.crash_policy
            approval = self.verdicts.approval_verdict(tool, dict(call.params))
            interrupted.append((call, policy, approval))
        return turns.record_interrupted(self.log.state, self._scope(), interrupted, now)

    def _draft_failure(self, effect: effects.FailRun, now: int) -> Draft:
        state, ending = self.log.state, GiveUp(effect.error, effect.code, effect.hint)
        if state.run is None or state.run.end is not None:
            return turns.abandon_summary(ending, now)  # only a summary was left to do
        facts = turns.end_run(state, ending, now)
        if effect.limit is not None:
            task = state.run.id
            limit = events.SafetyLimit(limit=effect.limit, value=effect.value, task_id=task)
            facts.insert(0, limit)
        draft = turns.close_calls(state, now) if effect.closes_calls else Draft()
        draft.facts += facts
        return draft

    # --- drafts of outcomes -------------------------------------------------------------------

    def draft_outcome(self, outcome: Outcome, now: int) -> Draft | None:
        """Return the draft of an outcome; None if the log has no use for it any more."""
        match outcome:
            case ToolReturned():
                return self._draft_tool_returned(outcome, now)
            case StartReturned():
                return self._draft_start_returned(outcome, now)
            case ToolAsked():
                return self._draft_tool_asked(outcome, now)
            case _:
                # An outcome that is not current belongs to an earlier turn or run.
                is_current = self._is_current(outcome)
                return self._draft_model_outcome(outcome, now) if is_current else None

    def _is_current(self, outcome: Answered | Summarized | ModelFailed) -> bool:
        cut = None if isinstance(outcome, Answered) else outcome.cut
        if cut is not None and cut.request_seq:
            return self.log.state.may_take_summary(cut.request_seq)
        return self.log.state.may_take_response(outcome.turn, outcome.request_head)

    def _draft_tool_returned(self, outcome: ToolReturned, now: int) -> Draft | None:
        state = self.log.state
        call = state.calls.get(outcome.call_id)
        if call is None or not call.is_open:
            return None  # recorded already, or cancelled
        return turns.record_outcome(
            state, call, outcome.content, is_error=outcome.is_error, now=now
        )

    def _draft_tool_asked(self, outcome: ToolAsked, now: int) -> Draft | None:
        call = self.log.state.calls.get(outcome.call_id)
        if call is None or not call.is_open or call.approval_id is not None:
            return None  # cancelled, or recorded already
        return turns.record_raised(self.log.state, self._scope(), call, outcome.verdict, now)

    def _draft_start_returned(self, outcome: StartReturned, now: int) -> Draft | None:
        call = self.log.state.calls.get(outcome.call_id)
        if call is None or not call.is_open or call.returned:
            return None
        return turns.record_deferred_start(self.log.state, outcome.progress, now)

    def _draft_model_outcome(
        self, outcome: Answered | Summarized | ModelFailed, now: int
    ) -> Draft | None:
        state = self.log.state
        match outcome:
            case Answered():
                return self._draft_answered(outcome, now)
            case Summarized():
                if self.summaries.is_recorded(outcome):
                    return None  # the reply to its commit was lost
                return turns.record_summary(state, outcome.cut, outcome.answer, now)
            case ModelFailed():
                return self._draft_model_failed(outcome, now)
            case _:
                assert_never(outcome)

    def _draft_model_failed(self, outcome: ModelFailed, now: int) -> Draft | None:
        state, policy = self.log.state, self.agent.retry_policy
        failure = _model_failure(outcome.error)
        if outcome.cut is not None and outcome.cut.request_seq:
            return turns.record_summary_failure(state, failure, policy, now)
        if self.summaries.may_continue(outcome):
            return None
        return turns.record_model_failure(state, failure, policy, now)

    def _draft_answered(self, outcome: Answered, now: int) -> Draft:
        state = self.log.state
        turn = ModelTurn(outcome.answer, outcome.request_head, outcome.verdicts, outcome.redact)
        draft = turns.record_turn(state, self._scope(), turn, now)
        ending = None
        if state.input_head <= outcome.request_head:  # no message came in the meantime
            is_continued = state.is_continuation(outcome.request_head)
            ending = self._ending_after(outcome.answer, state.text if is_continued else "")
        if ending is not None:
            draft.facts += turns.end_run(state, ending, now)
        return draft

    def _ending_after(self, answer: Answer, before: str) -> Ending | None:
        """Return how the run ends with this answer; None: it continues."""
        state = self.log.state
        is_repeated = is_cut(state.stop) and bool(state.calls)
        ending: Ending | None = unusable_response(answer, is_repeated=is_repeated)
        if ending is not None or answer.calls:
            return ending
        if is_paused(answer.stop) and state.pauses < MAX_PAUSES:
            return None
        complete = replace(answer, text=before + answer.text)
        return self.agent.output.ending(complete, 0 if state.run is None else state.run.corrections)


def _model_failure(error: PerdureError) -> ModelFailure:
    if isinstance(error, ModelUnavailable):
        wait_ms = error.retry_after_ms
        return ModelFailure(
            error.message, error.code, error.hint, is_transient=True, retry_after_ms=wait_ms
        )
    return ModelFailure(error.message, error.code, error.hint)
