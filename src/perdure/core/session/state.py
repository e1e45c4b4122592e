"""State of a session: the fold of its events."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.events import PENDING_EXECUTIONS, Bound, ReachedLimit, StampedEvent
from perdure.core.log.stop_reasons import is_paused
from perdure.core.session import calls
from perdure.core.session.call_table import CallTable
from perdure.core.session.calls import Call, CallStatus, Move
from perdure.core.session.children import (
    BACKGROUND_AUTHOR,
    ChildEvent,
    Children,
    apply_event,
    end_active,
    take_mail,
)
from perdure.core.session.permissions import RememberedPermission
from perdure.core.session.todos import is_todo_tool
from perdure.core.session.usage import Amounts, add_request, total_tokens
from perdure.views.literals import RunState

RunEnd = Literal["completed", "failed", "cancelled"]
CORRECTION_AUTHOR: Final = "perdure:output"  # `by` of requests to correct an output
RECOVERY_AUTHOR: Final = "perdure:recovery"  # `by` of messages in the place of lost records


class RunWait(Struct, frozen=True, gc=False):
    """The question with which a run itself waits, at a limit of its budget."""

    pending_id: str
    reached: ReachedLimit
    is_denied: bool = False


class Run(Struct, frozen=True, gc=False):
    """The work that one message started, through all its pauses."""

    id: str
    number: int  # 1 for the first run of the session
    started_at: int
    since: int = 0  # the event that started it
    authors: tuple[str, ...] = ()  # of its messages, as far as they are recorded
    is_driven: bool = False
    turns: int = 0
    tokens: float = 0
    corrections: int = 0
    model: str | None = None  # the fallback that replaces the agent's own
    # By tool: how many processes stopped while it ran, since it last returned; the last epoch.
    crashes: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    end: RunEnd | None = None
    output: Raw | None = None
    error: events.AgentError | None = None
    origin: str = ""  # id of the run that notifications continued, and whose budget it uses
    bounds: tuple[Bound, ...] = ()  # budgets of the runs that launched it
    wait: RunWait | None = None
    is_incomplete: bool = False  # a call of which the log has lost everything may have run

    @property
    def budget_run(self) -> str:
        """Id of the run whose budget it uses: its own, unless a notification started it."""
        return self.origin or self.id


class RequestedCompaction(Struct, frozen=True, gc=False):
    """A requested compaction that is not done yet, or has failed."""

    seq: int  # of the request event
    request: events.CompactionRequested
    error: events.CompactionFailed | None = None


class State(Struct, frozen=True, gc=False):
    """Folded log: everything that planning and snapshots need."""

    head: int = 0
    run: Run | None = None
    agent: str = ""
    turn: int = 0  # responses so far
    request_head: int = 0  # head of the log at the request of the last response
    input_head: int = 0  # seq of the last input
    calls: CallTable = field(default_factory=CallTable)  # of the last turn
    unchecked: tuple[str, ...] = ()  # calls of the last turn with results that nobody validated
    cancelling: bool = False  # open calls of a cancelled run must be closed
    resuming: bool = False  # a new run continues from the recorded log, without a new input
    retry: events.Retry | None = None
    compaction: RequestedCompaction | None = None
    digest: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)
    worker: str = ""
    trace: str = ""  # trace id of the last drive that recorded one
    text: str = ""  # of the last response
    stop: str | None = None  # the provider's stop reason of the last response
    pauses: int = 0  # consecutive responses that the provider paused
    usage: Amounts = field(default_factory=dict)
    children: Children = field(default_factory=Children)  # background agents that it launched
    launch: events.Launched | None = None  # if it is a background agent itself
    queued: tuple[events.FollowUpQueued, ...] = ()  # until its run ends
    metadata: Mapping[str, Any] = field(default_factory=dict)
    todos: tuple[Any, ...] = ()
    permissions: tuple[RememberedPermission, ...] = ()  # remembered for the whole session
    created_at: int = 0
    updated_at: int = 0

    @property
    def open_calls(self) -> list[Call]:
        return self.calls.open_calls if self.calls else []

    @property
    def pending_ids(self) -> list[str]:
        """Pending ids of the open calls, and of the question of the run itself."""
        calls = (*self.calls.active.values(), *self.calls.waiting.values())
        ids = [i for c in calls for i in (c.approval_id, c.pending_id) if i]
        run = self.run
        return ids if run is None or run.wait is None else [*ids, run.wait.pending_id]

    @property
    def unchecked_calls(self) -> list[Call]:
        """Calls whose submitted results must be validated before the model sees them."""
        calls = [self.calls[call_id] for call_id in self.unchecked if call_id in self.calls]
        return [call for call in calls if call.unchecked is not None]

    @property
    def is_model_due(self) -> bool:
        """True if the next effect is a model request; never while a call of the turn is open."""
        if self.run is None or self.run.end is not None or self.calls.has_open:
            return False
        if self.run.wait is not None:
            return False
        is_due = self.resuming or self.input_head > self.request_head
        return bool(self.calls) or is_due or is_paused(self.stop)

    def is_continuation(self, request_head: int) -> bool:
        """Return True if a response requested at that head continues a paused one."""
        has_new_input = self.request_head < self.input_head <= request_head
        return is_paused(self.stop) and not has_new_input

    @property
    def is_summary_due(self) -> bool:
        """True if a compaction was requested and every call is settled."""
        compaction = self.compaction
        return compaction is not None and compaction.error is None and not self.calls.has_open

    def may_take_summary(self, request_seq: int) -> bool:
        """Return True if the compaction that the event at that seq requested is still due."""
        compaction = self.compaction
        return self.is_summary_due and compaction is not None and compaction.seq == request_seq

    def may_take_response(self, turn: int, request_head: int) -> bool:
        """Return True if a response requested at that head can still be recorded.

        It cannot if its run was cancelled meanwhile, even if the next run is due for the same
        turn.
        """
        is_next = self.is_model_due and turn == self.turn + 1
        return is_next and self.run is not None and self.run.since <= request_head

    @property
    def status(self) -> RunState:
        """The canonical state of the run."""
        if self.run is None:
            return "pending"
        if self.run.end is not None:
            return self.run.end
        if self.calls.are_pending and not self.cancelling:
            return "waiting"
        if self.run.wait is not None and not self.run.wait.is_denied:
            return "waiting"
        return "running" if self.run.is_driven else "pending"


def fold(log: Iterable[StampedEvent], state: State | None = None) -> State:
    """Return the state after these events, which follow those folded into `state`."""
    state = state or State()
    first = last = None
    for stamped in log:
        first, last = first or stamped, stamped
        apply = _FOLDS.get(type(stamped.event))
        if apply is not None:
            state = apply(state, stamped, stamped.event)
    if first is None or last is None:
        return state
    state.calls.is_closed = state.children.is_closed = True
    created_at = state.created_at or first.at
    return replace(state, head=last.seq, created_at=created_at, updated_at=last.at)


def _user(state: State, stamped: StampedEvent, event: events.User) -> State:
    run = state.run
    if run is None or run.end is not None:
        run = _next_run(state, stamped, event.task_id or f"task_{stamped.seq}")
        run = _with_bounds(run, state.run, event)
    if event.by == CORRECTION_AUTHOR:
        run = replace(run, corrections=run.corrections + 1)
    elif event.by == BACKGROUND_AUTHOR:  # it continues the work of those who launched the agent
        authors = () if state.run is None else state.run.authors
        run = replace(run, authors=tuple(dict.fromkeys((*authors, *run.authors))))
    elif event.by not in (None, RECOVERY_AUTHOR, *run.authors):
        run = replace(run, authors=(*run.authors, event.by))
    if event.mail:
        state = replace(state, children=take_mail(state.children, event.mail))
    if event.queued:
        state = replace(state, queued=state.queued[1:])
    return replace(state, run=run, input_head=stamped.seq, resuming=False)


def _with_bounds(run: Run, previous: Run | None, event: events.User) -> Run:
    """Return a new run with its budgets: a notification continues the run before it."""
    if event.by == BACKGROUND_AUTHOR and previous is not None:
        return replace(run, origin=previous.budget_run, bounds=previous.bounds)
    return replace(run, bounds=event.bounds) if event.bounds else run


def _next_run(state: State, stamped: StampedEvent, run_id: str) -> Run:
    number = (state.run.number if state.run else 0) + 1
    return Run(run_id, number, stamped.at, stamped.seq)


def _agent_start(state: State, stamped: StampedEvent, event: events.AgentStart) -> State:
    run = state.run
    if not event.worker:  # a caller requested a new run; no driver has started yet
        if run is not None and run.end is None:
            return _end_back_off(state, stamped.at)
        next_run = _next_run(state, stamped, event.run)
        if run is not None:  # it continues their work
            next_run = replace(next_run, authors=run.authors, bounds=run.bounds)
        return replace(state, run=next_run, resuming=True)
    tools = event.tools if event.tools is not None else state.tools
    return replace(
        state,
        run=None if run is None else replace(run, is_driven=True),
        agent=event.agent,
        digest=event.digest,
        tools=tools,
        worker=event.worker,
        trace=event.trace or state.trace,
    )


def _end_back_off(state: State, now: int) -> State:
    """Return the state in which a pending retry is due now."""
    retry = state.retry
    return state if retry is None else replace(state, retry=replace(retry, next=now))


def _assistant(state: State, stamped: StampedEvent, event: events.Assistant) -> State:
    run, paused = state.run, is_paused(event.stop)
    previous_text = state.text if state.is_continuation(event.request_head or stamped.seq) else ""
    if run is not None:
        used_tokens = run.tokens + total_tokens(event.usage)
        run = replace(run, is_driven=True, turns=run.turns + 1, tokens=used_tokens)
    return replace(
        state,
        run=run,
        agent=event.agent,
        turn=event.turn or state.turn + 1,
        request_head=event.request_head or stamped.seq,
        calls=CallTable(),
        unchecked=(),
        resuming=False,
        retry=None,
        text=previous_text + event.content,
        stop=event.stop,
        pauses=state.pauses + 1 if paused else 0,
        usage=add_request(state.usage, event.usage),
    )


def _compacted(state: State, _: StampedEvent, event: events.Compacted) -> State:
    run = state.run
    if run is not None:
        run = replace(run, is_driven=True, tokens=run.tokens + total_tokens(event.usage))
    usage = add_request(state.usage, event.usage)
    return replace(state, run=run, retry=None, compaction=None, usage=usage)


def _compaction_requested(
    state: State, stamped: StampedEvent, event: events.CompactionRequested
) -> State:
    return replace(state, compaction=RequestedCompaction(stamped.seq, event))


def _compaction_failed(state: State, _: StampedEvent, event: events.CompactionFailed) -> State:
    if state.compaction is None:
        return state
    return replace(state, compaction=replace(state.compaction, error=event), retry=None)


def _tool_call(state: State, _: StampedEvent, event: events.ToolCall) -> State:
    turn = event.turn or state.turn
    position = (turn, len(state.calls))
    call = Call(event.id, event.tool, event.params, *position, redact=event.redact)
    return _put_call(state, call)


def _put_call(state: State, call: Call) -> State:
    """Return the state with a new or changed call of the turn."""
    table = state.calls.with_call(call)
    return state if table is state.calls else replace(state, calls=table)


def _tool_started(state: State, _: StampedEvent, event: events.ToolStarted) -> State:
    state, call = _count_crash(state, event.id, event.epoch), state.calls.get(event.id)
    return state if call is None else _put_call(state, calls.apply_started(call, event))


def _count_crash(state: State, call_id: str, epoch: int | None = None) -> State:
    """Count the process that stopped while a call ran, if the call had been started before."""
    call, run = state.calls.get(call_id), state.run
    if call is None or run is None or not call.is_started or call.epoch == epoch:
        return state
    count, counted_epoch = run.crashes.get(call.tool, (0, None))
    if counted_epoch == call.epoch:  # by another call of the same tool
        return state
    crashes = {**run.crashes, call.tool: (count + 1, call.epoch)}
    return replace(state, run=replace(run, crashes=crashes))


def _forget_crashes(state: State, call_id: str) -> State:
    call, run = state.calls.get(call_id), state.run
    if call is None or run is None or call.tool not in run.crashes:
        return state
    crashes = {tool: count for tool, count in run.crashes.items() if tool != call.tool}
    return replace(state, run=replace(run, crashes=crashes))


def _tool_result(state: State, _: StampedEvent, event: events.ToolResult) -> State:
    account = _count_crash if event.interrupted else _forget_crashes
    state, call = account(state, event.tool_call_id), state.calls.get(event.tool_call_id)
    if call is not None:
        state = _put_call(state, call.moved(Move.SETTLE))
    if call is not None and not event.is_error and is_todo_tool(call.tool):
        items = call.params.get("todos")  # a list that the tool refused is not the agent's
        state = replace(state, todos=tuple(items)) if isinstance(items, list) else state
    if event.mail:
        state = replace(state, children=take_mail(state.children, event.mail))
    if state.cancelling and not state.calls.has_open:
        return replace(state, cancelling=False)
    return state


def _pending(state: State, _: StampedEvent, event: events.Pending) -> State:
    if event.budget is not None:
        return _change_wait(state, RunWait(event.pending_id, event.budget))
    call = state.calls.get(event.call_id)
    return state if call is None else _put_call(state, calls.apply_pending(call, event))


def _progress(state: State, _: StampedEvent, event: events.Progress) -> State:
    call = state.calls.get(event.call_id)
    return state if call is None else _put_call(state, calls.apply_progress(call, event))


def _change_wait(state: State, wait: RunWait | None) -> State:
    """Return the state with another wait of its run."""
    if state.run is None or state.run.end is not None:
        return state
    return replace(state, run=replace(state.run, wait=wait))


def _own_wait(state: State, pending_id: str) -> RunWait | None:
    """Return the wait of the run, if it has that pending id."""
    wait = None if state.run is None else state.run.wait
    return wait if wait is not None and wait.pending_id == pending_id else None


def _decision(state: State, stamped: StampedEvent, event: events.Decision) -> State:
    if (wait := _own_wait(state, event.pending_id)) is not None:
        is_raised = event.kind == "respond"
        return _change_wait(state, None if is_raised else replace(wait, is_denied=True))
    call = state.calls.get(event.call_id)
    if call is not None:
        state = _put_call(state, calls.apply_decision(call, event, stamped.at))
    return _remember(state, stamped, event) if event.remember else state


def _remember(state: State, stamped: StampedEvent, event: events.Decision) -> State:
    call = state.calls.get(event.call_id)
    if call is None or event.kind == "respond":
        return state
    rule = event.remember if isinstance(event.remember, str) else None
    permission = RememberedPermission(
        effect="deny" if event.kind == "deny" else "allow",
        number=stamped.seq,
        tool=call.tool,
        params=call.params,
        redact=call.redact,
        rule=rule,
        by=event.by,
        at=stamped.at,
    )
    return replace(state, permissions=(*state.permissions, permission))


def _revoked(state: State, _: StampedEvent, event: events.Revoked) -> State:
    remaining = tuple(item for item in state.permissions if item.number != event.decision)
    return replace(state, permissions=remaining)


def _settled(state: State, _: StampedEvent, event: events.Settled) -> State:
    if (wait := _own_wait(state, event.pending_id)) is not None:
        return _change_wait(state, replace(wait, is_denied=True))
    if event.unchecked:
        state = replace(state, unchecked=(*state.unchecked, event.call_id))
    call = state.calls.get(event.call_id)
    if call is None:
        return state
    closed = replace(
        call,
        approval_id=None if call.approval_id == event.pending_id else call.approval_id,
        pending_id=None if call.pending_id == event.pending_id else call.pending_id,
        unchecked=event.pending_id if event.unchecked else None,
    )
    return _put_call(state, closed)


def _agent_complete(state: State, _: StampedEvent, event: events.AgentComplete) -> State:
    if state.run is None:
        return state
    return _end_run(state, state.run, end="completed", output=event.output)


def _agent_error(state: State, _: StampedEvent, event: events.AgentError) -> State:
    if state.run is None or state.run.end is not None:
        return state
    return _end_run(state, state.run, end="failed", error=event)


def _end_run(state: State, run: Run, **changes: Any) -> State:
    """Return the state after the end of a run; its saved execution state is dropped."""
    metadata, saved = state.metadata, state.metadata.get(PENDING_EXECUTIONS)
    if isinstance(saved, Mapping) and run.id in saved:
        remaining = {task: execution for task, execution in saved.items() if task != run.id}
        metadata = {k: v for k, v in metadata.items() if k != PENDING_EXECUTIONS}
        metadata |= {PENDING_EXECUTIONS: remaining} if remaining else {}
    return replace(state, run=replace(run, **changes), retry=None, metadata=metadata)


def _retry(state: State, _: StampedEvent, event: events.Retry) -> State:
    run = state.run
    if run is not None and event.model is not None:
        run = replace(run, model=event.model)
    return replace(state, run=run, retry=event)


def _cancelled(state: State, _: StampedEvent, event: events.Cancelled) -> State:
    if state.run is None or state.run.end is not None:
        return state
    if event.task_id is not None and event.task_id != state.run.id:
        return state  # a call of an earlier run expired: the current run is not affected
    cancelling = state.calls.has_open
    children = state.children if event.keep_children else end_active(state.children)
    ended = _end_run(state, state.run, end="cancelled")
    return replace(ended, cancelling=cancelling, children=children, queued=())


def _restored(state: State, _: StampedEvent, event: events.Restored) -> State:
    if state.run is None or state.run.id != event.task_id:
        return state
    authors = tuple(dict.fromkeys((*state.run.authors, *event.started_by)))
    run = replace(state.run, turns=event.turns, tokens=event.tokens, authors=authors)
    return replace(state, run=run)


def _child_event(state: State, _: StampedEvent, event: ChildEvent) -> State:
    table = apply_event(state.children, event)
    return state if table is state.children else replace(state, children=table)


def _launched(state: State, _: StampedEvent, event: events.Launched) -> State:
    return replace(state, launch=event)


def _follow_up_queued(state: State, _: StampedEvent, event: events.FollowUpQueued) -> State:
    return replace(state, queued=(*state.queued, event))


def _follow_up_dropped(state: State, _: StampedEvent, _event: events.FollowUpDropped) -> State:
    return replace(state, queued=())


def _metadata(state: State, _: StampedEvent, event: events.Metadata) -> State:
    merged = {**state.metadata, **event.changes}
    return replace(state, metadata={k: v for k, v in merged.items() if v is not None})


def _session_recovery(state: State, _: StampedEvent, event: events.SessionRecovery) -> State:
    for call_id in event.interrupted:
        if (call := state.calls.get(call_id)) is not None:
            state = _put_call(state, calls.apply_loss(call))
    run = state.run
    if event.incomplete and run is not None and run.end is None:
        state = replace(state, run=replace(run, is_incomplete=True))
    return replace(state, permissions=()) if event.lost else state


def _forked(state: State, stamped: StampedEvent, _event: events.Forked) -> State:
    """Return the state of a new fork: a run that was cut off does not belong to it."""
    is_over = state.run is not None and state.run.end is not None
    run = state.run if is_over else None
    changes = {"permissions": (), "retry": None, "children": Children(), "launch": None}
    return replace(state, run=run, created_at=stamped.at, queued=(), **changes)


_FOLDS: Final[dict[type, Callable[[State, StampedEvent, Any], State]]] = {
    events.User: _user,
    events.Assistant: _assistant,
    events.ToolCall: _tool_call,
    events.ToolStarted: _tool_started,
    events.ToolResult: _tool_result,
    events.Pending: _pending,
    events.Progress: _progress,
    events.Decision: _decision,
    events.Revoked: _revoked,
    events.Settled: _settled,
    events.AgentStart: _agent_start,
    events.AgentComplete: _agent_complete,
    events.AgentError: _agent_error,
    events.Retry: _retry,
    events.Compacted: _compacted,
    events.CompactionRequested: _compaction_requested,
    events.CompactionFailed: _compaction_failed,
    events.Cancelled: _cancelled,
    events.Metadata: _metadata,
    events.Restored: _restored,
    events.Launched: _launched,
    events.FollowUpQueued: _follow_up_queued,
    events.FollowUpDropped: _follow_up_dropped,
    events.Delegation: _child_event,
    events.DelegationQueued: _child_event,
    events.DelegationResumed: _child_event,
    events.DelegationComplete: _child_event,
    events.DelegationCleared: _child_event,
    events.MailTaken: _child_event,
    events.ReservationEnded: _child_event,
    events.SessionRecovery: _session_recovery,
    events.Forked: _forked,
}

__all__ = ["CORRECTION_AUTHOR", "Call", "CallStatus", "Run", "State", "fold"]
