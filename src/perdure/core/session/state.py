"""A session as its log tells it: the fold of events into a State."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.events import PENDING_EXECUTIONS, Stamped
from perdure.core.log.stop_reasons import is_paused
from perdure.core.session import calls
from perdure.core.session.calls import Call, CallStatus, Move
from perdure.core.session.permissions import Allowed
from perdure.core.session.todos import is_todo_tool
from perdure.core.session.usage import Usage, counted, tokens

RunState = Literal["pending", "running", "waiting", "completed", "failed", "cancelled"]
RunEnd = Literal["completed", "failed", "cancelled"]
CORRECTION: Final = "perdure:output"  # who says that an output did not fit


class Run(Struct, frozen=True, gc=False):
    """The work that one message started, through all its pauses."""

    id: str
    number: int  # 1 for the first run of the session
    started_at: int
    since: int = 0  # the event that started it
    driven: bool = False
    turns: int = 0
    tokens: float = 0
    corrections: int = 0
    model: str | None = None  # the one that stands in for the agent's own
    end: RunEnd | None = None
    output: Raw | None = None
    error: events.AgentError | None = None


class Compaction(Struct, frozen=True, gc=False):
    """A summary that somebody asked for and that is not there yet, or is not to be had."""

    seq: int  # of the request
    wanted: events.CompactionRequested
    error: events.CompactionFailed | None = None


class State(Struct, frozen=True, gc=False):
    """Everything that decides what happens next, and what people are shown."""

    head: int = 0
    run: Run | None = None
    agent: str = ""
    turn: int = 0  # answers so far
    request_head: int = 0  # what the last answer had seen
    input_head: int = 0  # the last input
    calls: Mapping[str, Call] = field(default_factory=dict)  # of the last turn
    cancelling: bool = False  # open calls of a cancelled run must be closed
    resuming: bool = False  # a new run goes on from the recorded prefix, without a new input
    retry: events.Retry | None = None
    compaction: Compaction | None = None
    digest: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)
    worker: str = ""
    trace: str = ""  # of the last drive that told one
    text: str = ""  # of the last answer
    stop: str | None = None  # why it ended, as its provider says
    pauses: int = 0  # how often in a row the provider paused
    usage: Usage = field(default_factory=dict)
    children: tuple[str, ...] = ()  # sessions that it has started
    metadata: Mapping[str, Any] = field(default_factory=dict)
    todos: tuple[Any, ...] = ()
    allowed: tuple[Allowed, ...] = ()  # what people said need not be asked about again
    created_at: int = 0
    updated_at: int = 0

    @property
    def open_calls(self) -> list[Call]:
        if not self.calls:
            return []
        return [call for call in self.calls.values() if call.status is not CallStatus.SETTLED]

    @property
    def needs_model(self) -> bool:
        """Whether the next thing is to ask the model; never while a call of the turn is open."""
        if self.run is None or self.run.end is not None or self.open_calls:
            return False
        is_due = self.resuming or self.input_head > self.request_head
        return bool(self.calls) or is_due or is_paused(self.stop)

    def goes_on(self, request_head: int) -> bool:
        """Whether an answer asked for at that head is the rest of one that was paused."""
        spoken = self.request_head < self.input_head <= request_head
        return is_paused(self.stop) and not spoken

    @property
    def needs_summary(self) -> bool:
        """Whether somebody waits for a summary, which is made where every call is settled."""
        asked = self.compaction
        return asked is not None and asked.error is None and not self.open_calls

    def takes_summary(self, asked: int) -> bool:
        """Whether the summary that was asked for by that event is still wanted."""
        return self.needs_summary and self.compaction is not None and self.compaction.seq == asked

    def takes_answer(self, turn: int, request_head: int) -> bool:
        """Whether an answer that was asked for at that head still has a place.

        One asked for by a run that was cancelled meanwhile has none, also if the next run waits
        for the same turn.
        """
        is_next = self.needs_model and turn == self.turn + 1
        return is_next and self.run is not None and self.run.since <= request_head

    @property
    def status(self) -> RunState:
        """The canonical state."""
        if self.run is None:
            return "pending"
        if self.run.end is not None:
            return self.run.end
        waiting = self.open_calls
        if waiting and not self.cancelling and all(call.is_outside for call in waiting):
            return "waiting"
        return "running" if self.run.driven else "pending"


def fold(log: Iterable[Stamped], state: State | None = None) -> State:
    """The state after these events, which follow what `state` has seen."""
    state = state or State()
    first = last = None
    for stamped in log:
        first, last = first or stamped, stamped
        apply = _FOLDS.get(type(stamped.event))
        if apply is not None:
            state = apply(state, stamped, stamped.event)
    if first is None or last is None:
        return state
    created_at = state.created_at or first.at
    return replace(state, head=last.seq, created_at=created_at, updated_at=last.at)


def _user(state: State, stamped: Stamped, event: events.User) -> State:
    run = state.run
    if run is None or run.end is not None:
        run = _next_run(state, stamped, event.task_id or f"task_{stamped.seq}")
    if event.by == CORRECTION:
        run = replace(run, corrections=run.corrections + 1)
    return replace(state, run=run, input_head=stamped.seq, resuming=False)


def _next_run(state: State, stamped: Stamped, run_id: str) -> Run:
    number = (state.run.number if state.run else 0) + 1
    return Run(run_id, number, stamped.at, stamped.seq)


def _agent_start(state: State, stamped: Stamped, event: events.AgentStart) -> State:
    run = state.run
    if not event.worker:  # somebody asks for a new run; nobody drives it yet
        if run is not None and run.end is None:
            return _hurried(state, stamped.at)
        return replace(state, run=_next_run(state, stamped, event.run), resuming=True)
    tools = event.tools if event.tools is not None else state.tools
    return replace(
        state,
        run=None if run is None else replace(run, driven=True),
        agent=event.agent,
        digest=event.digest,
        tools=tools,
        worker=event.worker,
        trace=event.trace or state.trace,
    )


def _hurried(state: State, now: int) -> State:
    """Nobody waits any longer before the model is asked again."""
    retry = state.retry
    return state if retry is None else replace(state, retry=replace(retry, next=now))


def _assistant(state: State, stamped: Stamped, event: events.Assistant) -> State:
    run, paused = state.run, is_paused(event.stop)
    before = state.text if state.goes_on(event.request_head or stamped.seq) else ""
    if run is not None:
        spent = run.tokens + tokens(event.usage)
        run = replace(run, driven=True, turns=run.turns + 1, tokens=spent)
    return replace(
        state,
        run=run,
        agent=event.agent,
        turn=event.turn or state.turn + 1,
        request_head=event.request_head or stamped.seq,
        calls={},
        resuming=False,
        retry=None,
        text=before + event.content,
        stop=event.stop,
        pauses=state.pauses + 1 if paused else 0,
        usage=counted(state.usage, event.usage),
    )


def _compacted(state: State, _: Stamped, event: events.Compacted) -> State:
    run = state.run
    if run is not None:
        run = replace(run, driven=True, tokens=run.tokens + tokens(event.usage))
    usage = counted(state.usage, event.usage)
    return replace(state, run=run, retry=None, compaction=None, usage=usage)


def _compaction_requested(
    state: State, stamped: Stamped, event: events.CompactionRequested
) -> State:
    return replace(state, compaction=Compaction(stamped.seq, event))


def _compaction_failed(state: State, _: Stamped, event: events.CompactionFailed) -> State:
    if state.compaction is None:
        return state
    return replace(state, compaction=replace(state.compaction, error=event), retry=None)


def _tool_call(state: State, _: Stamped, event: events.ToolCall) -> State:
    turn = event.turn or state.turn
    place = (turn, len(state.calls))
    call = Call(event.id, event.tool, event.params, *place, redact=event.redact)
    todos = state.todos
    if is_todo_tool(event.tool):
        listed = event.params.get("todos")
        todos = tuple(listed) if isinstance(listed, list) else todos
    return replace(state, calls={**state.calls, event.id: call}, todos=todos)


def _changed(state: State, call_id: str, change: Callable[[Call], Call]) -> State:
    call = state.calls.get(call_id)
    if call is None:
        return state
    return replace(state, calls={**state.calls, call_id: change(call)})


def _tool_started(state: State, _: Stamped, event: events.ToolStarted) -> State:
    return _changed(state, event.id, lambda call: calls.started(call, event))


def _tool_result(state: State, _: Stamped, event: events.ToolResult) -> State:
    state = _changed(state, event.tool_call_id, lambda call: call.moved(Move.SETTLE))
    if state.cancelling and not state.open_calls:
        return replace(state, cancelling=False)
    return state


def _pending(state: State, _: Stamped, event: events.Pending) -> State:
    return _changed(state, event.call_id, lambda call: calls.opened(call, event))


def _progress(state: State, _: Stamped, event: events.Progress) -> State:
    return _changed(state, event.call_id, lambda call: calls.progressed(call, event))


def _decision(state: State, stamped: Stamped, event: events.Decision) -> State:
    def decide(call: Call) -> Call:
        return replace(calls.decided(call, event), decided_at=stamped.at)

    state = _changed(state, event.call_id, decide)
    return _remembered(state, stamped, event) if event.remember else state


def _remembered(state: State, stamped: Stamped, event: events.Decision) -> State:
    call = state.calls.get(event.call_id)
    if call is None or event.kind not in ("approve", "edit"):
        return state
    rule = event.remember if isinstance(event.remember, str) else None
    allowed = Allowed(
        number=stamped.seq,
        tool=call.tool,
        params=call.params,
        redact=call.redact,
        rule=rule,
        by=event.by,
        at=stamped.at,
    )
    return replace(state, allowed=(*state.allowed, allowed))


def _revoked(state: State, _: Stamped, event: events.Revoked) -> State:
    kept = tuple(one for one in state.allowed if one.number != event.decision)
    return replace(state, allowed=kept)


def _settled(state: State, _: Stamped, event: events.Settled) -> State:
    def close(call: Call) -> Call:
        return replace(
            call,
            gate=None if call.gate == event.pending_id else call.gate,
            wait=None if call.wait == event.pending_id else call.wait,
        )

    return _changed(state, event.call_id, close)


def _agent_complete(state: State, _: Stamped, event: events.AgentComplete) -> State:
    if state.run is None:
        return state
    return _ended(state, state.run, end="completed", output=event.output)


def _agent_error(state: State, _: Stamped, event: events.AgentError) -> State:
    if state.run is None or state.run.end is not None:
        return state
    return _ended(state, state.run, end="failed", error=event)


def _ended(state: State, run: Run, **how: Any) -> State:
    """A run is over, and so is what was saved to go on with it."""
    metadata, saved = state.metadata, state.metadata.get(PENDING_EXECUTIONS)
    if isinstance(saved, Mapping) and run.id in saved:
        left = {task: one for task, one in saved.items() if task != run.id}
        metadata = {k: v for k, v in metadata.items() if k != PENDING_EXECUTIONS}
        metadata |= {PENDING_EXECUTIONS: left} if left else {}
    return replace(state, run=replace(run, **how), retry=None, metadata=metadata)


def _retry(state: State, _: Stamped, event: events.Retry) -> State:
    run = state.run
    if run is not None and event.model is not None:
        run = replace(run, model=event.model)
    return replace(state, run=run, retry=event)


def _cancelled(state: State, _: Stamped, event: events.Cancelled) -> State:
    if state.run is None or state.run.end is not None:
        return state
    if event.task_id is not None and event.task_id != state.run.id:
        return state  # a call of an earlier run expired: the message after it still counts
    cancelling = bool(state.open_calls)
    return replace(_ended(state, state.run, end="cancelled"), cancelling=cancelling)


def _restored(state: State, _: Stamped, event: events.Restored) -> State:
    if state.run is None or state.run.id != event.task_id:
        return state
    return replace(state, run=replace(state.run, turns=event.turns, tokens=event.tokens))


def _delegation(state: State, _: Stamped, event: events.Delegation) -> State:
    if event.session_id in state.children:
        return state
    return replace(state, children=(*state.children, event.session_id))


def _metadata(state: State, _: Stamped, event: events.Metadata) -> State:
    merged = {**state.metadata, **event.changes}
    return replace(state, metadata={k: v for k, v in merged.items() if v is not None})


def _forked(state: State, stamped: Stamped, _event: events.Forked) -> State:
    """Here the session's own life begins: a run that was cut off is not its own."""
    is_over = state.run is not None and state.run.end is not None
    run = state.run if is_over else None
    return replace(state, run=run, created_at=stamped.at, allowed=(), retry=None)


_FOLDS: Final[dict[type, Callable[[State, Stamped, Any], State]]] = {
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
    events.Delegation: _delegation,
    events.Forked: _forked,
}

__all__ = ["CORRECTION", "Call", "CallStatus", "Run", "RunState", "State", "fold"]
