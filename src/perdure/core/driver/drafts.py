"""What a driver writes: each function turns what happened into the facts of one commit."""

from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from msgspec import UNSET, Raw, Struct, field
from msgspec.structs import replace

from perdure.core.conversation.compaction import Cut
from perdure.core.conversation.messages import Answer
from perdure.core.driver.model_failures import ModelFailure, RetryPolicy, after_trouble
from perdure.core.driver.plan import SLOTS
from perdure.core.driver.verdicts import (
    Correct,
    Defer,
    Ending,
    Finish,
    GiveUp,
    OnCrash,
    Reject,
    RequireApproval,
    Start,
    Verdict,
    Wait,
)
from perdure.core.log import events
from perdure.core.log.events import Content
from perdure.core.pending.record import ENDS, PEOPLE, PendingRecord, PendingTime, Verb, moved
from perdure.core.pending.settlement import (
    CANCELLED,
    INTERRUPTED,
    LOST,
    LOST_CODE,
    LOST_HINT,
    NOT_STARTED,
    TIMED_OUT,
)
from perdure.core.session.calls import Call, CallStatus
from perdure.core.session.state import CORRECTION, State

Change = Callable[[PendingRecord], PendingRecord]


class SessionScope(Struct, frozen=True):
    """Whose session is driven, and under which epoch."""

    session_id: str
    tenant: str
    agent: str
    epoch: int
    on_expire: str = "fail"
    grace: int = 0  # ms before `cancel` acts
    hooks: tuple[str, ...] = ()
    blocks: bool = False  # people are waited for in place


class Draft(Struct):
    """The facts of one commit, the pending records it opens and those it changes."""

    facts: list[events.Event] = field(default_factory=list)
    opened: list[PendingRecord] = field(default_factory=list)
    changed: dict[str, Change] = field(default_factory=dict)
    at: int = 0  # the instant that its records and facts share; 0: that of writing


class ModelTurn(Struct, frozen=True):
    """A model answer, the head of the log it was asked at, and what becomes of its calls."""

    answer: Answer
    request_head: int
    verdicts: Sequence[Verdict] = ()
    redact: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by call, what is hidden


class _DraftBuilder(Struct, frozen=True):
    """Writes a draft: for one run, at one instant."""

    task: str
    now: int
    draft: Draft = field(default_factory=Draft)

    def fact(self, event: events.Event) -> None:
        self.draft.facts.append(event)

    def result(
        self, call: Call, content: Content, *, is_error: bool = False, interrupted: bool = False
    ) -> None:
        self.fact(
            events.ToolResult(
                tool_call_id=call.id,
                result=content,
                is_error=is_error,
                interrupted=interrupted,
                task_id=self.task,
            )
        )

    def intent(self, call: Call, effect_id: str, epoch: int) -> None:
        self.fact(
            events.ToolStarted(
                id=call.id,
                effect_id=call.effect_id or effect_id,
                attempt=call.attempt + 1,
                epoch=epoch,
                task_id=self.task,
            )
        )

    def wait(
        self,
        call: Call,
        verdict: RequireApproval | Defer | Wait,
        scope: SessionScope,
        reason: str | None = None,
    ) -> None:
        record = self._record(call, verdict, scope, reason)
        self.draft.opened.append(record)
        self.fact(
            events.Pending(
                pending_id=record.id,
                kind=record.kind,
                call_id=call.id,
                tool=call.tool,
                input=record.input,
                effect_id=record.effect_id,
                prompt=record.prompt,
                expires_at=record.timeout,
                reason=reason,
                epoch=record.epoch,
                task_id=self.task,
                redact=record.redact,
            )
        )

    def _record(
        self,
        call: Call,
        verdict: RequireApproval | Defer | Wait,
        scope: SessionScope,
        reason: str | None,
    ) -> PendingRecord:
        kind = verdict.kind if isinstance(verdict, Wait) else _KINDS[type(verdict)]
        message = f"m{call.turn}"
        return PendingRecord(
            id=verdict.pending_id,
            session_id=scope.session_id,
            tenant=scope.tenant,
            agent=scope.agent,
            task_id=self.task,
            message_id=message,
            part_id=f"{message}.{call.index}",
            call_id=call.id,
            effect_id=call.effect_id or verdict.effect_id,
            tool=call.tool,
            input=dict(call.params),
            kind=kind,
            time=PendingTime(created=self.now),
            timeout=verdict.until if isinstance(verdict, Wait) else verdict.expires_at,
            prompt=None if isinstance(verdict, Defer) else verdict.prompt,
            reason=reason,
            on_expire=scope.on_expire if kind in PEOPLE else "fail",
            epoch=scope.epoch if scope.blocks and kind in PEOPLE else None,
            grace=scope.grace if kind in PEOPLE and scope.on_expire == "cancel" else 0,
            redact=call.redact,
            hooks=scope.hooks,
        )

    def settle_wait(
        self, call: Call, pending_id: str, verb: Verb, error: str | None = None
    ) -> None:
        status = ENDS[verb]
        self.fact(
            events.Settled(
                pending_id=pending_id, status=status.value, call_id=call.id, task_id=self.task
            )
        )
        now = self.now
        self.draft.changed[pending_id] = lambda record: moved(record, verb, now, error=error)

    def cancel_waits(self, call: Call) -> None:
        for pending_id in (call.gate, call.wait):
            if pending_id is not None:
                self.settle_wait(call, pending_id, Verb.CANCEL, CANCELLED)

    def begin(self, call: Call, verdict: Verdict, scope: SessionScope) -> None:
        match verdict:
            case Reject():
                self.result(call, verdict.text, is_error=True)
            case Start():
                self.intent(call, verdict.effect_id, scope.epoch)
            case RequireApproval() | Wait():
                self.wait(call, verdict, scope)
            case Defer():
                if call.wait is None:
                    self.wait(call, verdict, scope)
                self.intent(call, verdict.effect_id, scope.epoch)
            case _:
                assert_never(verdict)


_KINDS: dict[type, events.CallKind] = {RequireApproval: "approval", Defer: "tool"}
_STARTING = (Start, Defer)


def _pen(state: State, now: int) -> _DraftBuilder:
    return _DraftBuilder(state.run.id if state.run is not None else "", now, Draft(at=now))


def record_turn(state: State, scope: SessionScope, said: ModelTurn, now: int) -> Draft:
    """The model answered: its calls, intents of those that start, records of those that wait."""
    answer, turn, pen = said.answer, state.turn + 1, _pen(state, now)
    pen.fact(_assistant(said, scope.agent, turn, pen.task))
    calls = [
        Call(asked.id, asked.tool, asked.params, turn, index, redact=said.redact.get(asked.id, ()))
        for index, asked in enumerate(answer.calls)
    ]
    for call in calls:
        pen.fact(
            events.ToolCall(
                id=call.id,
                tool=call.tool,
                params=dict(call.params),
                agent=scope.agent,
                turn=turn,
                task_id=pen.task,
                redact=call.redact,
            )
        )
    free = SLOTS
    for call, verdict in zip(calls, said.verdicts, strict=True):
        if isinstance(verdict, _STARTING):
            free -= 1
            if free < 0:
                continue  # no intent before its slot: a crash must not throw doubt on it
        pen.begin(call, verdict, scope)
    return pen.draft


def _assistant(said: ModelTurn, agent: str, turn: int, task: str) -> events.Assistant:
    answer = said.answer
    return events.Assistant(
        role="assistant",
        content=answer.text,
        agent=agent,
        turn=turn,
        task_id=task,
        request_head=said.request_head,
        model=answer.model,
        provider=answer.provider,
        thinking=answer.thinking,
        output=UNSET if answer.output is None else Raw(answer.output),
        stop=answer.stop,
        usage=dict(answer.usage) if answer.usage else None,
        native=UNSET if answer.native is None else Raw(answer.native),
        redact=any(said.redact.values()),
    )


def compacted(state: State, cut: Cut, answer: Answer, now: int) -> Draft:
    """The model has summarised what was said before the cut."""
    pen = _pen(state, now)
    pen.fact(
        events.Compacted(
            up_to=cut.up_to,
            summary=answer.text,
            first=cut.first,
            turn=state.turn + 1,
            tokens=cut.tokens,
            model=answer.model,
            provider=answer.provider,
            usage=dict(answer.usage) if answer.usage else None,
            task_id=pen.task,
            redact=cut.redact,
        )
    )
    return pen.draft


def not_answered(state: State, trouble: ModelFailure, patience: RetryPolicy, now: int) -> Draft:
    """The model did not answer: when it is asked again, or the end of the run."""
    then = after_trouble(state, trouble, patience, now)
    return Draft(end_run(state, then, now) if isinstance(then, GiveUp) else [then], at=now)


def not_summarised(state: State, trouble: ModelFailure, patience: RetryPolicy, now: int) -> Draft:
    """The summary that somebody wants was not given: when it is asked for again, or that it is not.

    The run, which is over, stays as it ended.
    """
    then = after_trouble(state, trouble, patience, now)
    if isinstance(then, GiveUp):
        return no_summary(then, now)
    return Draft([then], at=now)


def no_summary(why: GiveUp, now: int) -> Draft:
    """The summary that somebody wants is not to be had."""
    fact = events.CompactionFailed(error=why.error, code=why.code, hint=why.hint)
    return Draft([fact], at=now)


def end_run(state: State, ending: Ending, now: int) -> list[events.Event]:
    """The facts that end a run, or tell the model that it has not given what was asked."""
    run = state.run
    if run is None:
        return []
    match ending:
        case Finish():
            spent = max(0, now - run.started_at)
            return [events.AgentComplete(run=run.id, output=Raw(ending.output), duration=spent)]
        case Correct():
            return [events.User(role="user", content=ending.text, task_id=run.id, by=CORRECTION)]
        case GiveUp():
            error, hint = ending.error, ending.hint
            return [events.AgentError(run=run.id, error=error, code=ending.code, hint=hint)]
        case _:
            assert_never(ending)


def start_calls(
    state: State, scope: SessionScope, verdicts: Mapping[str, Verdict], now: int
) -> Draft:
    """Calls that were approved, or waited for a free slot, begin now."""
    pen = _pen(state, now)
    for call_id, verdict in verdicts.items():
        pen.begin(state.calls[call_id], verdict, scope)
    return pen.draft


def outcome(state: State, call: Call, content: Content, *, is_error: bool, now: int) -> Draft:
    """A tool returned or failed; a deferred one that failed to start will get no result."""
    pen = _pen(state, now)
    if call.wait is not None:
        text = content if isinstance(content, str) else None
        pen.settle_wait(call, call.wait, Verb.ERROR, text)
    pen.result(call, content, is_error=is_error)
    return pen.draft


def returned(state: State, news: events.Progress, now: int) -> Draft:
    """The start of a deferred call came back."""

    def learn(record: PendingRecord) -> PendingRecord:
        return replace(
            record,
            external_ref=news.external_ref or record.external_ref,
            output=news.output or record.output,
            estimated_duration=news.estimated_duration or record.estimated_duration,
            timeout=record.timeout if news.expires_at is None else news.expires_at or None,
            problem=None,
        )

    pen = _pen(state, now)
    pen.fact(replace(news, task_id=pen.task))
    pen.draft.changed[news.pending_id] = learn
    return pen.draft


def interrupted(
    state: State,
    scope: SessionScope,
    found: Sequence[tuple[Call, OnCrash, RequireApproval]],
    now: int,
) -> Draft:
    """Calls that a driver before us intended, of which nobody knows whether they happened."""
    pen = _pen(state, now)
    for call, on_crash, gate in found:
        if on_crash == "retry":
            pen.intent(call, call.effect_id, scope.epoch)
        elif on_crash == "ask":
            _ask_whether_to_repeat(pen, call, gate, scope)
        elif call.wait is not None:
            _mark_start_interrupted(pen, call, call.wait)
        else:
            pen.result(call, INTERRUPTED, is_error=True, interrupted=True)
    return pen.draft


def _ask_whether_to_repeat(
    pen: _DraftBuilder, call: Call, gate: RequireApproval, scope: SessionScope
) -> None:
    pen.wait(call, gate, scope, reason="interrupted")
    if call.wait is not None:  # it waits under two ids now: whichever settles it closes both
        pen.draft.opened[-1] = replace(pen.draft.opened[-1], twin=call.wait)
        pen.draft.changed[call.wait] = lambda record: replace(record, twin=gate.pending_id)


def _mark_start_interrupted(pen: _DraftBuilder, call: Call, pending_id: str) -> None:
    """Left open, since the outside may still answer; its deadline settles it at the latest."""
    problem = "START_INTERRUPTED"
    pen.fact(
        events.Progress(
            pending_id=pending_id,
            call_id=call.id,
            returned=True,
            problem=problem,
            task_id=pen.task,
        )
    )
    now = pen.now
    pen.draft.changed[pending_id] = lambda record: moved(record, Verb.RESET, now, problem=problem)


def fire_timers(state: State, due: Sequence[Call], now: int) -> Draft:
    """Timers whose instant has come."""
    pen = _pen(state, now)
    for call in due:
        if call.wait is not None:
            pen.settle_wait(call, call.wait, Verb.RESULT)
        pen.result(call, "The time has come.")
    return pen.draft


def close(state: State, now: int) -> Draft:
    """The open calls of a cancelled run get the result that the model will see, if it goes on."""
    pen = _pen(state, now)
    for call in state.open_calls:
        pen.cancel_waits(call)
        # intended once, and now running, or asked about because nobody knows whether it ran
        doubt = call.epoch is not None and call.status is not CallStatus.WAITING
        text = INTERRUPTED if doubt else CANCELLED if call.gate or call.wait else NOT_STARTED
        pen.result(call, text, is_error=True, interrupted=doubt)
    return pen.draft


def lost(state: State, now: int) -> Draft:
    """The driver that waited in place for a person is gone, and with it what it waited for."""
    pen = _pen(state, now)
    _give_up(pen, state, (), LOST)
    pen.fact(events.AgentError(run=pen.task, error=LOST, code=LOST_CODE, hint=LOST_HINT))
    return pen.draft


def unanswered(state: State, overdue: Sequence[Call], on_expire: str, now: int) -> Draft:
    """Nobody decided in time about calls that were waited for in place: the run ends."""
    pen = _pen(state, now)
    why = f"{overdue[0].tool} was not answered in time"
    _give_up(pen, state, overdue, CANCELLED)
    if on_expire == "cancel":
        pen.fact(events.Cancelled(reason=why, task_id=pen.task))
    else:
        pen.fact(events.AgentError(run=pen.task, error=why, code="INPUT_TIMEOUT"))
    return pen.draft


def _give_up(pen: _DraftBuilder, state: State, overdue: Sequence[Call], text: str) -> None:
    """Close every open call of a run that ends: the overdue ones as such, the others with why."""
    for call in state.open_calls:
        is_overdue = call in overdue
        verb = Verb.EXPIRE if is_overdue else Verb.ERROR if text == LOST else Verb.CANCEL
        said = TIMED_OUT if is_overdue else text
        for pending_id in (call.gate, call.wait):
            if pending_id is not None:
                pen.settle_wait(call, pending_id, verb, said)
        doubt = call.status is CallStatus.RUNNING
        pen.result(call, INTERRUPTED if doubt else said, is_error=True, interrupted=doubt)


def close_strays(state: State, strays: Sequence[Call], now: int) -> Draft:
    """Settled calls under whose other id somebody could still answer."""
    pen = _pen(state, now)
    for call in strays:
        pen.cancel_waits(call)
    return pen.draft
