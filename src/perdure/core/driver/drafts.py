"""Drafts of a driver: each function turns an effect or outcome into the facts of one commit."""

from collections.abc import Mapping, Sequence
from typing import assert_never

from msgspec import UNSET, Raw, Struct, field
from msgspec.structs import replace

from perdure.core.conversation.compaction import Cut
from perdure.core.conversation.messages import Answer
from perdure.core.driver.draft_builder import Draft, DraftBuilder, SessionScope, draft_builder
from perdure.core.driver.model_failures import ModelFailure, RetryPolicy, retry_or_give_up
from perdure.core.driver.plan import SLOTS
from perdure.core.driver.texts import TIMER_FIRED
from perdure.core.driver.verdicts import (
    Correct,
    Defer,
    Ending,
    Finish,
    GiveUp,
    RequireApproval,
    Start,
    Verdict,
    Wait,
)
from perdure.core.log import events
from perdure.core.log.events import Content
from perdure.core.pending.outcome_texts import expiry_text
from perdure.core.pending.record import PendingRecord, Verb, moved
from perdure.core.pending.settlement import (
    CANCELLED,
    INTERRUPTED,
    LOST,
    LOST_CODE,
    LOST_HINT,
    NOT_STARTED,
    RECORDS_LOST,
    RESULT_INVALID,
    not_answered_in_time,
)
from perdure.core.session.calls import Call, CallStatus
from perdure.core.session.child_tasks import ChildMail, notification_text
from perdure.core.session.children import BACKGROUND_AUTHOR
from perdure.core.session.follow_ups import queued_message
from perdure.core.session.state import CORRECTION_AUTHOR, State
from perdure.core.session.usage import usage_amounts
from perdure.views.literals import OnCrash


class ModelTurn(Struct, frozen=True):
    """A model response, the head of the log at its request, and the verdicts on its calls."""

    answer: Answer
    request_head: int
    verdicts: Sequence[Verdict] = ()
    redact: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # secrets by call id


_STARTING = (Start, Defer)


def record_turn(state: State, scope: SessionScope, model_turn: ModelTurn, now: int) -> Draft:
    """Record a response: its calls, the intents of those that start, and the pending records."""
    answer, turn, builder = model_turn.answer, state.turn + 1, draft_builder(state, now)
    builder.add(_assistant(model_turn, scope.agent, turn, builder.task))
    calls = [
        Call(
            requested.id,
            requested.tool,
            requested.params,
            turn,
            index,
            redact=model_turn.redact.get(requested.id, ()),
        )
        for index, requested in enumerate(answer.calls)
    ]
    for call in calls:
        builder.add(
            events.ToolCall(
                id=call.id,
                tool=call.tool,
                params=dict(call.params),
                agent=scope.agent,
                turn=turn,
                task_id=builder.task,
                redact=call.redact,
            )
        )
    free = SLOTS
    for call, verdict in zip(calls, model_turn.verdicts, strict=True):
        if isinstance(verdict, _STARTING):
            free -= 1
            if free < 0:
                continue  # no intent before it has a slot: a crash would mark it interrupted
        builder.apply_verdict(call, verdict, scope)
    return builder.draft


def _assistant(model_turn: ModelTurn, agent: str, turn: int, task: str) -> events.Assistant:
    answer = model_turn.answer
    return events.Assistant(
        role="assistant",
        content=answer.text,
        agent=agent,
        turn=turn,
        task_id=task,
        request_head=model_turn.request_head,
        model=answer.model,
        provider=answer.provider,
        thinking=answer.thinking,
        output=UNSET if answer.output is None else Raw(answer.output),
        stop=answer.stop_reason,
        usage=usage_amounts(answer.usage),
        native=UNSET if answer.native is None else Raw(answer.native),
        redact=any(model_turn.redact.values()),
    )


def record_summary(state: State, cut: Cut, answer: Answer, now: int) -> Draft:
    """Record the model's summary of the conversation before the cut."""
    builder = draft_builder(state, now)
    builder.add(
        events.Compacted(
            up_to=cut.up_to,
            summary=answer.text,
            first=cut.first,
            turn=state.turn + 1,
            tokens=cut.tokens,
            model=answer.model,
            provider=answer.provider,
            usage=usage_amounts(answer.usage),
            task_id=builder.task,
            redact=cut.redact,
        )
    )
    return builder.draft


def record_model_failure(
    state: State, failure: ModelFailure, policy: RetryPolicy, now: int
) -> Draft:
    """Record a failed model request: its retry, or the end of the run."""
    next_step = retry_or_give_up(state, failure, policy, now)
    return Draft(
        end_run(state, next_step, now) if isinstance(next_step, GiveUp) else [next_step], at=now
    )


def record_summary_failure(
    state: State, failure: ModelFailure, policy: RetryPolicy, now: int
) -> Draft:
    """Record a failed request for a summary: its retry, or the end of the compaction.

    The run has ended and is not affected.
    """
    next_step = retry_or_give_up(state, failure, policy, now)
    if isinstance(next_step, GiveUp):
        return abandon_summary(next_step, now)
    return Draft([next_step], at=now)


def abandon_summary(failure: GiveUp, now: int) -> Draft:
    """Record that a requested compaction failed."""
    fact = events.CompactionFailed(error=failure.error, code=failure.code, hint=failure.hint)
    return Draft([fact], at=now)


def end_run(state: State, ending: Ending, now: int) -> list[events.Event]:
    """Return the facts that end a run, or ask the model to correct its output."""
    run = state.run
    if run is None:
        return []
    match ending:
        case Finish():
            spent = max(0, now - run.started_at)
            return [events.AgentComplete(run=run.id, output=Raw(ending.output), duration=spent)]
        case Correct():
            return [
                events.User(role="user", content=ending.text, task_id=run.id, by=CORRECTION_AUTHOR)
            ]
        case GiveUp():
            error, hint = ending.error, ending.hint
            return [events.AgentError(run=run.id, error=error, code=ending.code, hint=hint)]
        case _:
            assert_never(ending)


def start_calls(
    state: State, scope: SessionScope, verdicts: Mapping[str, Verdict], now: int
) -> Draft:
    """Start calls that were approved or waited for a free slot."""
    builder = draft_builder(state, now)
    for call_id, verdict in verdicts.items():
        builder.apply_verdict(state.calls[call_id], verdict, scope)
    return builder.draft


def record_outcome(
    state: State,
    call: Call,
    content: Content,
    *,
    is_error: bool,
    now: int,
    mail: tuple[str, ...] = (),
) -> Draft:
    """Record what a tool returned or raised; a deferred call that failed to start is settled."""
    mail = tuple([item for item in mail if item in state.children.mail])
    builder = draft_builder(state, now)
    if call.pending_id is not None:
        text = content if isinstance(content, str) else None
        builder.settle_pending(call.id, call.pending_id, Verb.ERROR, text)
    builder.add_result(call, content, is_error=is_error, mail=mail)
    return builder.draft


def record_deferred_start(state: State, progress: events.Progress, now: int) -> Draft:
    """Record what the function of a deferred tool returned."""

    def apply_progress(record: PendingRecord) -> PendingRecord:
        return replace(
            record,
            external_ref=progress.external_ref or record.external_ref,
            output=progress.output or record.output,
            estimated_duration=progress.estimated_duration or record.estimated_duration,
            timeout=record.timeout if progress.expires_at is None else progress.expires_at or None,
            problem=None,
        )

    builder = draft_builder(state, now)
    builder.add(replace(progress, task_id=builder.task))
    builder.draft.record_changes[progress.pending_id] = apply_progress
    return builder.draft


def record_interrupted(
    state: State,
    scope: SessionScope,
    interrupted_calls: Sequence[tuple[Call, OnCrash, RequireApproval]],
    now: int,
) -> Draft:
    """Apply the crash policy to calls that an earlier driver intended: they may have run."""
    builder = draft_builder(state, now)
    for call, on_crash, gate in interrupted_calls:
        if on_crash == "retry":
            builder.add_intent(call, call.effect_id, scope.epoch)
        elif on_crash == "ask":
            _open_gate(builder, call, gate, scope, "interrupted")
        elif call.pending_id is not None:
            _mark_start_interrupted(builder, call, call.pending_id)
        else:
            builder.add_result(call, _interrupted_text(call), is_error=True, interrupted=True)
    return builder.draft


def _interrupted_text(call: Call) -> str:
    return RECORDS_LOST if call.has_lost_records else INTERRUPTED


def record_raised(
    state: State, scope: SessionScope, call: Call, verdict: RequireApproval | Wait, now: int
) -> Draft:
    """Record that a running tool asked a person: its call waits, and was not interrupted."""
    builder = draft_builder(state, now)
    _open_gate(builder, call, verdict, scope, events.RAISED)
    return builder.draft


def _open_gate(
    builder: DraftBuilder,
    call: Call,
    gate: RequireApproval | Wait,
    scope: SessionScope,
    reason: str,
) -> None:
    builder.open_pending(call, gate, scope, reason=reason)
    if call.pending_id is not None:  # it now has two pending ids: settling one closes the other
        builder.draft.new_records[-1] = replace(builder.draft.new_records[-1], twin=call.pending_id)
        builder.draft.record_changes[call.pending_id] = lambda record: replace(
            record, twin=gate.pending_id
        )


def _mark_start_interrupted(builder: DraftBuilder, call: Call, pending_id: str) -> None:
    """Keep the call open: its result may still be submitted, else its deadline settles it."""
    problem = "START_INTERRUPTED"
    builder.add(
        events.Progress(
            pending_id=pending_id,
            call_id=call.id,
            returned=True,
            problem=problem,
            task_id=builder.task,
        )
    )
    now = builder.now
    builder.draft.record_changes[pending_id] = lambda record: moved(
        record, Verb.RESET, now, problem=problem
    )


def reject_results(state: State, invalid: Sequence[Call], now: int) -> Draft:
    """Replace submitted results that their tools do not accept by errors for the model."""
    builder = draft_builder(state, now)
    for call in invalid:
        pending_id = call.unchecked or ""
        builder.add(
            events.Settled(
                pending_id=pending_id, status="failed", call_id=call.id, task_id=builder.task
            )
        )
        builder.add(
            events.ToolResult(
                tool_call_id=call.id,
                result=RESULT_INVALID,
                is_error=True,
                replaces=True,
                task_id=builder.task,
            )
        )
        builder.draft.settled_changes[pending_id] = lambda record: moved(
            record, Verb.REJECT, now, error=RESULT_INVALID
        )
    return builder.draft


def record_child_wait(
    state: State, scope: SessionScope, call: Call, verdict: Wait, now: int
) -> Draft:
    """Record that a call waits for a background agent."""
    builder = draft_builder(state, now)
    builder.open_pending(call, verdict, scope)
    return builder.draft


def deliver_mail(state: State, mails: Sequence[ChildMail], run_id: str, now: int) -> Draft:
    """Tell the model the outcomes of background agents; a session at rest starts a new run."""
    builder = draft_builder(state, now)
    run = state.run
    ids = tuple([mail.id for mail in mails])
    builder.add(
        events.User(
            role="user",
            content=notification_text(mails),
            task_id=run_id if run is None or run.end is not None else run.id,
            by=BACKGROUND_AUTHOR,
            mail=ids,
        )
    )
    builder.draft.taken_mail += ids
    return builder.draft


def start_queued(state: State, run_id: str, now: int) -> Draft:
    """Start a new run with the follow-up that was queued during the run before."""
    builder = draft_builder(state, now)
    builder.add(queued_message(state.queued[0], run_id))
    return builder.draft


def settle_child_calls(state: State, settlements: Sequence[tuple[Call, str]], now: int) -> Draft:
    """Settle calls that waited for background agents, each with its text for the model."""
    builder = draft_builder(state, now)
    for call, text in settlements:
        if call.pending_id is not None:
            builder.settle_pending(call.id, call.pending_id, Verb.RESULT)
        # Two calls may wait for the same outcome, which is delivered once.
        is_open = call.mail in state.children.mail and call.mail not in builder.draft.taken_mail
        builder.add_result(call, text, mail=(call.mail,) if call.mail and is_open else ())
    return builder.draft


def fire_timers(state: State, due: Sequence[Call], now: int) -> Draft:
    """Settle timers that are due."""
    builder = draft_builder(state, now)
    for call in due:
        if call.pending_id is not None:
            builder.settle_pending(call.id, call.pending_id, Verb.RESULT)
        builder.add_result(call, TIMER_FIRED)
    return builder.draft


def close_calls(state: State, now: int) -> Draft:
    """Settle the open calls of a cancelled run with results for the model."""
    builder = draft_builder(state, now)
    for call in state.open_calls:
        builder.cancel_pending(call)
        # intended: it is running, or an approver decides because it may have run before a crash
        is_interrupted = call.may_have_run and call.status is not CallStatus.WAITING
        text = (
            _interrupted_text(call)
            if is_interrupted
            else CANCELLED
            if call.approval_id or call.pending_id
            else NOT_STARTED
        )
        builder.add_result(call, text, is_error=True, interrupted=is_interrupted)
    return builder.draft


def fail_lost_run(state: State, now: int) -> Draft:
    """Fail a run whose driver waited in place for an approver and stopped."""
    builder = draft_builder(state, now)
    _close_open_calls(builder, state, (), LOST)
    builder.add(events.AgentError(run=builder.task, error=LOST, code=LOST_CODE, hint=LOST_HINT))
    return builder.draft


def end_unanswered_run(state: State, overdue: Sequence[Call], on_expire: str, now: int) -> Draft:
    """End a run because approvers did not decide in time about calls waited for in place."""
    builder = draft_builder(state, now)
    reason = not_answered_in_time(overdue[0].tool)
    _close_open_calls(builder, state, overdue, CANCELLED)
    if on_expire == "cancel":
        builder.add(events.Cancelled(reason=reason, task_id=builder.task))
    else:
        builder.add(events.AgentError(run=builder.task, error=reason, code="INPUT_TIMEOUT"))
    return builder.draft


def _close_open_calls(
    builder: DraftBuilder, state: State, overdue: Sequence[Call], text: str
) -> None:
    """Close every open call of a run that ends: overdue ones as expired, the others with `text`."""
    for call in state.open_calls:
        is_overdue = call in overdue
        verb = Verb.EXPIRE if is_overdue else Verb.ERROR if text == LOST else Verb.CANCEL
        outcome = _expiry_text(call) if is_overdue else text
        for pending_id in (call.approval_id, call.pending_id):
            if pending_id is not None:
                builder.settle_pending(call.id, pending_id, verb, outcome)
        is_interrupted = call.status is CallStatus.RUNNING
        builder.add_result(
            call,
            _interrupted_text(call) if is_interrupted else outcome,
            is_error=True,
            interrupted=is_interrupted,
        )


def _expiry_text(call: Call) -> str:
    if call.approval_id is None:
        return expiry_text(call.kind or "tool", call.tool)
    if call.is_raised:
        return expiry_text(call.gate_kind, call.tool, events.RAISED)
    # An intended call that is gated again: an approver decides whether it is repeated.
    return expiry_text("approval", call.tool, "interrupted" if call.may_have_run else None)


def close_strays(state: State, strays: Sequence[Call], now: int) -> Draft:
    """Close the remaining pending ids of calls that are already settled."""
    builder = draft_builder(state, now)
    for call in strays:
        builder.cancel_pending(call)
    return builder.draft
