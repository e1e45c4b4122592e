"""What a driver writes: the draft of a thing that is to be done, and of one that came back."""

from dataclasses import replace
from typing import Final, assert_never

from msgspec import Struct

from perdure.core.conversation.messages import Answer
from perdure.core.driver import drafts as turns
from perdure.core.driver import effects
from perdure.core.driver.drafts import Draft, ModelTurn, SessionScope
from perdure.core.driver.model_failures import MAX_PAUSES, ModelFailure, useless
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
    Summarised,
    ToolReturned,
)
from perdure.runtime.engine.model_calls import Summaries
from perdure.runtime.engine.tool_calls import Verdicts
from perdure.runtime.engine.writer import LeasedWriter
from perdure.runtime.records.log import Log

Written = (
    effects.Interrupted
    | effects.FireTimers
    | effects.CloseCalls
    | effects.CloseStrays
    | effects.GiveUpLost
    | effects.GiveUpUnanswered
    | effects.Fail
)
FACTS: Final = (ToolReturned, StartReturned)  # what happened, whatever else did; else decisions


class Drafts(Struct, frozen=True):
    """Makes the drafts of one drive.

    It knows nothing of its driver: an object in a circle waits for the collector of garbage.
    """

    agent: ReadyAgent
    ledger: LeasedWriter
    verdicts: Verdicts
    compacting: Summaries

    @property
    def log(self) -> Log:
        return self.ledger.log

    def _scope(self) -> SessionScope:
        """Whose session this is; with a message somebody may have come who is to be told."""
        record, agent = self.ledger.known.record, self.agent
        policy = (agent.agent.on_expire, agent.grace_ms, record.hooks, agent.blocks)
        return SessionScope(record.id, record.tenant, agent.name, self.ledger.lease.epoch, *policy)

    # --- of what is to be done ----------------------------------------------------------------

    def draft_effect(self, effect: Written, now: int) -> Draft:
        """The draft of an effect that is done by writing it."""
        state = self.log.state
        match effect:
            case effects.Interrupted():
                return self._interrupted(effect.calls, now)
            case effects.FireTimers():
                return turns.fire_timers(state, effect.calls, now)
            case effects.CloseCalls():
                return turns.close(state, now)
            case effects.CloseStrays():
                return turns.close_strays(state, effect.calls, now)
            case _:
                return self._ending(effect, now)

    def _ending(
        self, effect: effects.GiveUpLost | effects.GiveUpUnanswered | effects.Fail, now: int
    ) -> Draft:
        match effect:
            case effects.GiveUpLost():
                return turns.lost(self.log.state, now)
            case effects.GiveUpUnanswered():
                on_expire = self._scope().on_expire
                return turns.unanswered(self.log.state, effect.calls, on_expire, now)
            case effects.Fail():
                return self._failed(effect, now)
            case _:
                assert_never(effect)

    def starting(
        self, calls: tuple[Call, ...], now: int
    ) -> tuple[Draft | None, dict[str, Refused]]:
        """The intents of calls that begin now, and why others cannot with the code at hand."""
        verdicts: dict[str, Verdict] = {}
        stuck: dict[str, Refused] = {}
        for call in calls:
            ready = self.verdicts.recheck(call)
            if isinstance(ready, Refused):
                stuck[call.id] = ready
            else:
                verdicts[call.id] = ready
        if not verdicts:
            return None, stuck
        return turns.start_calls(self.log.state, self._scope(), verdicts, now), stuck

    def _interrupted(self, calls: tuple[Call, ...], now: int) -> Draft:
        found = []
        for call in calls:
            tool = self.agent.tool(call.tool)
            policy = "tell" if tool is None else tool.crash_policy
            found.append((call, policy, self.verdicts.gate(tool, dict(call.params))))
        return turns.interrupted(self.log.state, self._scope(), found, now)

    def _failed(self, effect: effects.Fail, now: int) -> Draft:
        state, why = self.log.state, GiveUp(effect.error, effect.code, effect.hint)
        if state.run is None or state.run.end is not None:
            return turns.no_summary(why, now)  # nothing else was left to do
        facts = turns.end_run(state, why, now)
        if effect.limit is not None:
            task = state.run.id
            limit = events.SafetyLimit(limit=effect.limit, value=effect.value, task_id=task)
            facts.insert(0, limit)
        draft = turns.close(state, now) if effect.stops else Draft()
        draft.facts += facts
        return draft

    # --- of what came back --------------------------------------------------------------------

    def draft_outcome(self, outcome: Outcome, now: int) -> Draft | None:
        """The draft of what became of something; None if that has no place in the log any more."""
        match outcome:
            case ToolReturned():
                return self._tool_returned(outcome, now)
            case StartReturned():
                return self._start_returned(outcome, now)
            case _:
                # else it belongs to a turn or a run that is over
                return self._from_model(outcome, now) if self._is_taken(outcome) else None

    def _is_taken(self, outcome: Answered | Summarised | ModelFailed) -> bool:
        cut = None if isinstance(outcome, Answered) else outcome.cut
        if cut is not None and cut.asked:
            return self.log.state.takes_summary(cut.asked)
        return self.log.state.takes_answer(outcome.turn, outcome.request_head)

    def _tool_returned(self, outcome: ToolReturned, now: int) -> Draft | None:
        state = self.log.state
        call = state.calls.get(outcome.call_id)
        if call is None or not call.is_open:
            return None  # known already, or cancelled
        return turns.outcome(state, call, outcome.content, is_error=outcome.is_error, now=now)

    def _start_returned(self, outcome: StartReturned, now: int) -> Draft | None:
        call = self.log.state.calls.get(outcome.call_id)
        if call is None or not call.is_open or call.returned:
            return None
        return turns.returned(self.log.state, outcome.news, now)

    def _from_model(self, outcome: Answered | Summarised | ModelFailed, now: int) -> Draft | None:
        state = self.log.state
        match outcome:
            case Answered():
                return self._answered(outcome, now)
            case Summarised():
                if self.compacting.is_recorded(outcome):
                    return None  # the answer to its commit was lost
                return turns.compacted(state, outcome.cut, outcome.answer, now)
            case ModelFailed():
                return self._failed_to_answer(outcome, now)
            case _:
                assert_never(outcome)

    def _failed_to_answer(self, outcome: ModelFailed, now: int) -> Draft | None:
        state, trouble, patience = self.log.state, _trouble(outcome.error), self.agent.patience
        if outcome.cut is not None and outcome.cut.asked:
            return turns.not_summarised(state, trouble, patience, now)
        if self.compacting.helps(outcome):
            return None
        return turns.not_answered(state, trouble, patience, now)

    def _answered(self, outcome: Answered, now: int) -> Draft:
        state = self.log.state
        said = ModelTurn(outcome.answer, outcome.request_head, outcome.verdicts, outcome.redact)
        draft = turns.record_turn(state, self._scope(), said, now)
        ending = None
        if state.input_head <= outcome.request_head:  # nobody has said anything meanwhile
            goes_on = state.goes_on(outcome.request_head)
            ending = self._ending_with(outcome.answer, state.text if goes_on else "")
        if ending is not None:
            draft.facts += turns.end_run(state, ending, now)
        return draft

    def _ending_with(self, answer: Answer, before: str) -> Ending | None:
        """How the run ends with an answer, to what was said before; None: it goes on."""
        state = self.log.state
        again = is_cut(state.stop) and bool(state.calls)
        ending: Ending | None = useless(answer, again=again)
        if ending is not None or answer.calls:
            return ending
        if is_paused(answer.stop) and state.pauses < MAX_PAUSES:
            return None
        whole = replace(answer, text=before + answer.text)
        return self.agent.output.ending(whole, 0 if state.run is None else state.run.corrections)


def _trouble(error: PerdureError) -> ModelFailure:
    if isinstance(error, ModelUnavailable):
        asked_ms = error.retry_after_ms
        return ModelFailure(
            error.message, error.code, error.hint, may_pass=True, retry_after_ms=asked_ms
        )
    return ModelFailure(error.message, error.code, error.hint)
