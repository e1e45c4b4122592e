"""The state of a paused run as its log tells it: nothing is stored a second time."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from perdure.core.conversation.messages import conversation
from perdure.core.log import events
from perdure.core.log.events import Content, Stamped
from perdure.core.log.redaction import MASK
from perdure.core.session.calls import Call, CallStatus
from perdure.core.session.state import Run, State
from perdure.hitl.messages import message_json
from perdure.hitl.state import ExecutionState, ReasoningStateSnapshot, ToolCall


@dataclass(frozen=True, slots=True)
class Settings:
    """What an agent says of its runs."""

    sub_agents: tuple[str, ...] = ()
    show_thinking: bool = False


def paused_call(state: State) -> Call | None:
    """The call that a paused run waits for first: one for people before any other."""
    if state.run is None or state.status != "waiting":
        return None
    waiting = [call for call in state.open_calls if call.is_outside]
    people = [one for one in waiting if one.status is CallStatus.GATED or one.kind == "question"]
    return (people or waiting)[0]


def state_in(
    log: Sequence[Stamped], state: State, session_id: str, settings: Settings | None
) -> ExecutionState | None:
    """The execution state of the run that is paused in a log; None if none is.

    Without settings, which an agent that is not known here cannot give, those that a restored
    run came with. Secret arguments are in it, under the names that it says are secret.
    """
    log = [one._replace(event=_said(one.event)) for one in log]
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
    )


def _said(event: events.Event) -> events.Event:
    """What a program said with secrets in it is of no use to a model, and told to nobody."""
    hides = isinstance(event, events.User) and event.redact
    return msgspec.structs.replace(event, content=MASK) if hides else event


def _inputs(log: Sequence[Stamped], run: Run) -> list[tuple[int, events.User]]:
    return [(s, e) for s, _, e in log if isinstance(e, events.User) and s >= run.since]


def _snapshot(
    log: Sequence[Stamped], state: State, run: Run, query: str, settings: Settings | None
) -> ReasoningStateSnapshot:
    told = [one for one in log if not isinstance(one.event, events.Compacted)]  # all of it
    before = conversation(one for one in told if one.seq < run.since)
    current = conversation(told)[len(before) :]
    redact = {e.id: e.redact for _, _, e in log if isinstance(e, events.ToolCall)}
    begun = _restored(log, run)
    after = run.since if begun is None else begun[0]
    said = [e.content for s, _, e in log if s > after and isinstance(e, events.Assistant)]
    came = events.Restored(turns=0) if begun is None else begun[1]
    chosen = settings or Settings(tuple(came.sub_agents), came.show_thinking)
    return ReasoningStateSnapshot(
        iteration=run.turns,
        total_tokens=int(run.tokens),
        history=tuple(message_json(one, redact) for one in before),
        current_turn=tuple(message_json(one, redact) for one in current),
        assistant_response=came.response + "".join(said),
        first_iteration_tool_calls=_first_calls(log, run, came),
        final_response_added=came.final,
        query=query,
        agent_name=state.agent,
        sub_agents=chosen.sub_agents,
        show_thinking=chosen.show_thinking,
    )


def _restored(log: Sequence[Stamped], run: Run) -> tuple[int, events.Restored] | None:
    found = [(s, e) for s, _, e in log if isinstance(e, events.Restored) and e.task_id == run.id]
    return found[-1] if found else None


def _first_calls(log: Sequence[Stamped], run: Run, came: events.Restored) -> tuple[ToolCall, ...]:
    if came.first_calls is not None:
        return tuple(msgspec.convert(one, ToolCall) for one in came.first_calls)
    calls: list[ToolCall] = []
    answers = 0
    for seq, _, event in log:
        if seq < run.since:
            continue
        answers += isinstance(event, events.Assistant)
        if isinstance(event, events.ToolCall) and answers == 1:
            calls.append(ToolCall(event.id, event.tool, event.params, event.redact))
    return tuple(calls)


def _text(content: Content) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part.get("type") == "text")
