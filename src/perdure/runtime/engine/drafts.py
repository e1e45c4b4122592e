"""Drafts of a drive: the events and entries to commit for an effect or an outcome."""

from collections.abc import Collection
from dataclasses import replace
from typing import assert_never

from perdure.core.conversation.messages import Answer
from perdure.core.driver import drafts as turns
from perdure.core.driver import effects
from perdure.core.driver.budget_questions import close_question, open_question
from perdure.core.driver.draft_builder import Draft, SessionScope
from perdure.core.driver.drafts import ModelTurn
from perdure.core.driver.model_failures import MAX_PAUSES, ModelFailure, unusable_response
from perdure.core.driver.verdicts import Ending, GiveUp, RequireApproval, Verdict, Wait
from perdure.core.log import events
from perdure.core.log.stop_reasons import is_cut, is_paused
from perdure.core.session.calls import Call
from perdure.core.session.state import State
from perdure.errors import ModelUnavailable, PerdureError, Refused
from perdure.ids import secret_id
from perdure.runtime.engine.in_flight import (
    Answered,
    ModelFailed,
    Outcome,
    StartReturned,
    Summarized,
    ToolAsked,
    ToolReturned,
)
from perdure.runtime.engine.summaries import SummaryProblems, is_recorded, may_continue
from perdure.runtime.engine.verdicts import (
    CheckedArguments,
    approval_verdict,
    is_perhaps_gated,
    recheck,
)
from perdure.runtime.engine.writer import LeasedWriter

WrittenEffect = (
    effects.HandleInterrupted
    | effects.FireTimers
    | effects.CloseCalls
    | effects.CloseStrays
    | effects.FailLostRun
    | effects.EndUnansweredRun
    | effects.AskForBudget
    | effects.FailRun
)


def _scope(drive: LeasedWriter) -> SessionScope:
    """Return the scope of the drafts; a message may have added a receiver to the entry."""
    record, agent = drive.entry.record, drive.agent
    policy = (agent.agent.on_expire, agent.grace_ms, record.hooks, agent.is_blocking)
    names = (record.id, record.tenant, agent.name, drive.lease.epoch)
    return SessionScope(*names, *policy, record.ancestry)


# --- drafts of effects ------------------------------------------------------------------------


def draft_effect(drive: LeasedWriter, effect: WrittenEffect, now: int) -> Draft:
    """Return the draft of an effect that consists of a commit."""
    state = drive.log.state
    match effect:
        case effects.HandleInterrupted():
            return _draft_interrupted(drive, effect.calls, now)
        case effects.FireTimers():
            return turns.fire_timers(state, effect.calls, now)
        case effects.CloseStrays():
            return turns.close_strays(state, effect.calls, now)
        case effects.CloseCalls():
            return turns.close_calls(state, now)
        case effects.AskForBudget():
            pending_id = secret_id("p")
            return open_question(state, _scope(drive), effect.reached, pending_id, now)
        case _:
            return _draft_ending(drive, effect, now)


def _draft_ending(
    drive: LeasedWriter,
    effect: effects.FailLostRun | effects.EndUnansweredRun | effects.FailRun,
    now: int,
) -> Draft:
    state = drive.log.state
    match effect:
        case effects.FailLostRun():
            return turns.fail_lost_run(state, now)
        case effects.EndUnansweredRun():
            on_expire = drive.agent.agent.on_expire
            return turns.end_unanswered_run(state, effect.calls, on_expire, now)
        case effects.FailRun():
            return _draft_failure(state, effect, now)
        case _:
            assert_never(effect)


def draft_start(
    drive: LeasedWriter, calls: tuple[Call, ...], checked: dict[str, CheckedArguments], now: int
) -> tuple[Draft | None, dict[str, Refused]]:
    """Return the intents of calls that start now, and why others cannot with the code here."""
    verdicts: dict[str, Verdict] = {}
    stuck: dict[str, Refused] = {}
    for call in calls:
        verdict = recheck(drive, call, checked)
        if isinstance(verdict, Refused):
            stuck[call.id] = verdict
        else:
            verdicts[call.id] = verdict
    if not verdicts:
        return None, stuck
    return turns.start_calls(drive.log.state, _scope(drive), verdicts, now), stuck


def _draft_interrupted(drive: LeasedWriter, calls: tuple[Call, ...], now: int) -> Draft:
    interrupted = []
    for call in calls:
        tool = drive.agent.tool(call.tool)
        policy = "tell" if tool is None else tool.crash_policy
        if tool is not None and call.has_lost_records:
            policy = "ask" if policy == "ask" or is_perhaps_gated(drive, tool, call) else "tell"
        interrupted.append((call, policy, approval_verdict(drive, tool, dict(call.params))))
    return turns.record_interrupted(drive.log.state, _scope(drive), interrupted, now)


def _draft_failure(state: State, effect: effects.FailRun, now: int) -> Draft:
    ending = GiveUp(effect.error, effect.code, effect.hint)
    if state.run is None or state.run.end is not None:
        return turns.abandon_summary(ending, now)  # only a summary was left to do
    facts = turns.end_run(state, ending, now)
    if effect.limit is not None:
        task = state.run.id
        limit = events.SafetyLimit(limit=effect.limit, value=effect.value, task_id=task)
        facts.insert(0, limit)
    draft = turns.close_calls(state, now) if effect.closes_calls else Draft()
    if state.run.wait is not None:
        draft.extend(close_question(state, now))
    draft.facts += facts
    return draft


# --- drafts of outcomes -----------------------------------------------------------------------


def draft_outcome(
    drive: LeasedWriter,
    outcome: Outcome,
    problems: SummaryProblems,
    now: int,
    taken_mail: Collection[str] = (),
) -> Draft | None:
    """Return the draft of an outcome; None if the log has no use for it any more.

    `taken_mail` is delivered by an outcome that is recorded with this one.
    """
    if not isinstance(outcome, ToolReturned | StartReturned | ToolAsked):
        # An outcome that is not current belongs to an earlier turn or run.
        is_current = _is_current(drive.log.state, outcome)
        return _draft_model_outcome(drive, outcome, problems, now) if is_current else None
    state = drive.log.state
    call = state.calls.get(outcome.call_id)
    if call is None or not call.is_open:
        return None  # recorded already, or cancelled
    match outcome:
        case ToolReturned(content=content, is_error=is_error, mail=mail):
            mail = tuple([item for item in mail if item not in taken_mail])
            return turns.record_outcome(state, call, content, is_error=is_error, now=now, mail=mail)
        case StartReturned():
            progress = outcome.progress
            return None if call.returned else turns.record_deferred_start(state, progress, now)
        case ToolAsked():
            return _draft_asked(drive, call, outcome.verdict, now)
        case _:
            assert_never(outcome)


def _draft_asked(
    drive: LeasedWriter, call: Call, verdict: RequireApproval | Wait, now: int
) -> Draft | None:
    if call.approval_id is not None or call.mail is not None:
        return None  # recorded already
    if isinstance(verdict, Wait) and verdict.kind == "child":
        return turns.record_child_wait(drive.log.state, _scope(drive), call, verdict, now)
    return turns.record_raised(drive.log.state, _scope(drive), call, verdict, now)


def _is_current(state: State, outcome: Answered | Summarized | ModelFailed) -> bool:
    cut = None if isinstance(outcome, Answered) else outcome.cut
    if cut is not None and cut.request_seq:
        return state.may_take_summary(cut.request_seq)
    return state.may_take_response(outcome.turn, outcome.request_head)


def _draft_model_outcome(
    drive: LeasedWriter,
    outcome: Answered | Summarized | ModelFailed,
    problems: SummaryProblems,
    now: int,
) -> Draft | None:
    match outcome:
        case Answered():
            return _draft_answered(drive, outcome, now)
        case Summarized():
            if is_recorded(drive.log, outcome):
                return None  # the reply to its commit was lost
            return turns.record_summary(drive.log.state, outcome.cut, outcome.answer, now)
        case ModelFailed():
            return _draft_model_failed(drive, outcome, problems, now)
        case _:
            assert_never(outcome)


def _draft_model_failed(
    drive: LeasedWriter, outcome: ModelFailed, problems: SummaryProblems, now: int
) -> Draft | None:
    state, policy = drive.log.state, drive.agent.retry_policy
    failure = _model_failure(outcome.error)
    if outcome.cut is not None and outcome.cut.request_seq:
        return turns.record_summary_failure(state, failure, policy, now)
    if may_continue(drive, problems, outcome):
        return None
    return turns.record_model_failure(state, failure, policy, now)


def _draft_answered(drive: LeasedWriter, outcome: Answered, now: int) -> Draft:
    state = drive.log.state
    turn = ModelTurn(outcome.answer, outcome.request_head, outcome.verdicts, outcome.redact)
    draft = turns.record_turn(state, _scope(drive), turn, now)
    ending = None
    if state.input_head <= outcome.request_head:  # no message came in the meantime
        is_continued = state.is_continuation(outcome.request_head)
        ending = _ending_after(drive, outcome.answer, state.text if is_continued else "")
    if ending is not None:
        draft.facts += turns.end_run(state, ending, now)
    return draft


def _ending_after(drive: LeasedWriter, answer: Answer, before: str) -> Ending | None:
    """Return how the run ends with this answer; None: it continues."""
    state = drive.log.state
    is_repeated = is_cut(state.stop) and bool(state.calls)
    ending: Ending | None = unusable_response(answer, is_repeated=is_repeated)
    if ending is not None or answer.calls:
        return ending
    if is_paused(answer.stop_reason) and state.pauses < MAX_PAUSES:
        return None
    complete = replace(answer, text=before + answer.text) if before else answer
    return drive.agent.output.ending(complete, 0 if state.run is None else state.run.corrections)


def _model_failure(error: PerdureError) -> ModelFailure:
    if isinstance(error, ModelUnavailable):
        wait_ms = error.retry_after_ms
        return ModelFailure(
            error.message, error.code, error.hint, is_transient=True, retry_after_ms=wait_ms
        )
    return ModelFailure(error.message, error.code, error.hint)
