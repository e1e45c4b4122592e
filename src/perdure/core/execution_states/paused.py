"""Execution state of a paused run, computed from its log: nothing is stored a second time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from perdure.core.conversation.messages import conversation
from perdure.core.execution_states.messages import message_json
from perdure.core.execution_states.state import ExecutionState, ReasoningStateSnapshot, ToolCall
from perdure.core.log import events
from perdure.core.log.events import Content, StampedEvent
from perdure.core.log.redaction import MASK
from perdure.core.session.calls import Call, CallStatus
from perdure.core.session.state import Run, State, fold


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of an agent that its execution states carry."""

    sub_agents: tuple[str, ...] = ()
    show_thinking: bool = False


def paused_call(state: State) -> Call | None:
    """Return the call that a paused run waits for; one for an approver goes first.

    A run that waits at a limit of its budget waits for no call.
    """
    if state.run is None or state.status != "waiting":
        return None
    waiting = [call for call in state.open_calls if call.is_pending]
    for_approver = [
        call for call in waiting if call.status is CallStatus.GATED or call.kind == "question"
    ]
    return next(iter(for_approver or waiting), None)


def paused_state(
    log: Sequence[StampedEvent], state: State, session_id: str, settings: RunSettings | None
) -> ExecutionState | None:
    """Return the execution state of the run that is paused in a log; None if none is.

    Without settings (the agent is not known here) it has those that a restored run came with.
    It contains secret arguments, and the names of those that are secret.
    """
    log = [StampedEvent(item.seq, item.at, _mask_redacted(item.event)) for item in log]
    run, call = state.run, paused_call(state)
    if run is None or call is None:
        return None
    query = next((_text(e.content) for _, e in _inputs(log, run)), "")
    return ExecutionState(
        task_id=run.id,
        context_id=session_id,
        query=query,
        reasoning_state=_snapshot(log, state, run, query, settings),
        pending_tool_call=ToolCall(call.id, call.tool, dict(call.params), call.redact),
        started_by=run.authors,
    )


def expired_state(
    log: Sequence[StampedEvent], session_id: str, task_id: str, settings: RunSettings | None
) -> ExecutionState | None:
    """Return the state of the last pause of a run that expired, as it was before; None if none did.

    It is kept although the run continued, so that it can be inspected or restored elsewhere.
    """
    pause: int | None = None  # seq of the first expiry of the last pause in which calls expired
    is_same_pause = False
    for stamped in log:
        seq, event = stamped.seq, stamped.event
        if isinstance(event, events.Assistant):
            is_same_pause = False
        if not isinstance(event, events.Settled) or event.task_id != task_id:
            continue
        if event.status == "expired" and not is_same_pause:
            pause, is_same_pause = seq, True
    if pause is None:
        return None
    before = [item for item in log if item.seq < pause]
    state = paused_state(before, fold(before), session_id, settings)
    return None if state is None else replace(state, expired=True)


def _mask_redacted(event: events.Event) -> events.Event:
    """Mask a message in which a program passed secrets: no model is sent it, no reader sees it."""
    is_secret = isinstance(event, events.User) and event.redact
    return msgspec.structs.replace(event, content=MASK) if is_secret else event


def _inputs(log: Sequence[StampedEvent], run: Run) -> list[tuple[int, events.User]]:
    current = [item for item in log if item.seq >= run.since]
    return [(item.seq, item.event) for item in current if isinstance(item.event, events.User)]


def _snapshot(
    log: Sequence[StampedEvent], state: State, run: Run, query: str, settings: RunSettings | None
) -> ReasoningStateSnapshot:
    # Without the summaries, the conversation is complete.
    uncompacted = [item for item in log if not isinstance(item.event, events.Compacted)]
    before = conversation(item for item in uncompacted if item.seq < run.since)
    current = conversation(uncompacted)[len(before) :]
    redact = {
        item.event.id: item.event.redact for item in log if isinstance(item.event, events.ToolCall)
    }
    restored_at, restored = _restored(log, run)
    later = [item.event for item in log if item.seq > restored_at]
    texts = [event.content for event in later if isinstance(event, events.Assistant)]
    chosen = settings or RunSettings(tuple(restored.sub_agents), restored.show_thinking)
    return ReasoningStateSnapshot(
        iteration=run.turns,
        total_tokens=int(run.tokens),
        history=tuple(message_json(message, redact) for message in before),
        current_turn=tuple(message_json(message, redact) for message in current),
        assistant_response=restored.response + "".join(texts),
        first_iteration_tool_calls=_first_calls(log, run, restored),
        final_response_added=restored.final,
        query=query,
        agent_name=state.agent,
        sub_agents=chosen.sub_agents,
        show_thinking=chosen.show_thinking,
    )


def _restored(log: Sequence[StampedEvent], run: Run) -> tuple[int, events.Restored]:
    """Return the last restoration of the run with its seq; an empty one if it never was."""
    restorations = [
        (item.seq, item.event)
        for item in log
        if isinstance(item.event, events.Restored) and item.event.task_id == run.id
    ]
    return restorations[-1] if restorations else (run.since, events.Restored(turns=0))


def _first_calls(
    log: Sequence[StampedEvent], run: Run, restored: events.Restored
) -> tuple[ToolCall, ...]:
    if restored.first_calls is not None:
        return tuple(msgspec.convert(call, ToolCall) for call in restored.first_calls)
    calls: list[ToolCall] = []
    responses = 0
    for stamped in log:
        event = stamped.event
        if stamped.seq < run.since:
            continue
        responses += isinstance(event, events.Assistant)
        if isinstance(event, events.ToolCall) and responses == 1:
            calls.append(ToolCall(event.id, event.tool, event.params, event.redact))
    return tuple(calls)


def _text(content: Content) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part.get("type") == "text")
