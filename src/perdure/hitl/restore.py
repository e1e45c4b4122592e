"""Restoring a run from an execution state: its session is created, or its counts are set."""

from typing import Any

import msgspec

from perdure.app import Runtime
from perdure.core.execution_states.messages import message_events
from perdure.core.execution_states.state import (
    ExecutionState,
    ToolCall,
    check_unredacted,
    redact_state,
)
from perdure.core.log import events
from perdure.core.log.events import Event, StampedEvent
from perdure.core.pending.answers import check_question
from perdure.core.session.state import State, fold
from perdure.core.transfer.open_calls import open_records
from perdure.errors import Conflict, Refused
from perdure.hitl.access import open_service, session_ref
from perdure.ids import secret_id
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.runtime.records.entries import SessionEntry, SessionRef
from perdure.runtime.records.log import as_record
from perdure.runtime.sessions.handle import Session
from perdure.runtime.sessions.service import Service
from perdure.runtime.tools.invoke import render_prompt
from perdure.runtime.transfer.create import NewSession, SessionNames, session_record
from perdure.store.base import HeadMoved, VersionMoved


async def restore_reasoning_state(rt: Runtime, state: ExecutionState) -> Session[Any]:
    """Return the session in which the run of a state waits for its call to be decided.

    If the session does not exist, it is created with the messages of the state, the open call and
    the counts of turns and tokens. If the run is paused here, its counts are set to the state's.
    Raises Conflict if the session has another run, Refused if the agent lacks a sub-agent or the
    state was saved without the secrets that its call needs.
    """
    service = open_service(rt)
    ref = session_ref(rt, state.context_id)
    agent = service.agents.find(state.reasoning_state.agent_name)
    if agent is not None:
        _check_settings(state, agent)
    entry = await service.find(ref)
    if entry is None:
        await _create(service, ref, state, agent)
    else:
        await _set_counts(service, entry, state)
    return rt.session(state.context_id)


def _check_settings(state: ExecutionState, agent: ReadyAgent) -> None:
    available = {getattr(sub, "name", sub) for sub in agent.agent.sub_agents}
    if missing := sorted(set(state.reasoning_state.sub_agents) - available):
        raise Refused(
            f"the run may use the sub-agent {missing[0]!r}, which agent {agent.name!r} lacks here",
            code="AGENT_UNKNOWN",
            hint="add it to sub_agents, or restore the run where the agent has it",
        )


async def _set_counts(service: Service, entry: SessionEntry, state: ExecutionState) -> None:
    log = await service.log(entry)
    run = log.state.run
    if run is None or run.id != state.task_id or log.state.status != "waiting":
        raise Conflict(
            f"session {state.context_id!r} is here, and task {state.task_id!r} is not paused in it",
            code="SESSION_EXISTS",
            hint="restore it under another context_id",
        )
    if (run.turns, run.tokens) != (state.iteration, state.total_tokens):
        await service.append(entry, [_restored_event(state)], head=log.state.head)


async def _create(
    service: Service, ref: SessionRef, state: ExecutionState, agent: ReadyAgent | None
) -> None:
    now, name = service.now(), state.reasoning_state.agent_name
    if not name:
        raise Refused(
            "failed to load execution state: it names no agent",
            code="STATE_CORRUPT",
            hint="set reasoning_state.agent_name",
        )
    messages = _conversation_events(state)
    facts = [*messages, *_open_call_events(messages, state, agent), _restored_event(state)]
    log = [StampedEvent(seq, now, fact) for seq, fact in enumerate(facts, 1)]
    names = SessionNames(ref.tenant, ref.session_id, name, service.agents.queue_for(name))
    record = session_record(names, log, fold(log))
    calls = open_records(log, ref.session_id, ref.tenant, name)
    records = [as_record(fact, now) for fact in facts]
    try:
        await service.transfers.restore(NewSession(record, log, records, calls))
    except (HeadMoved, VersionMoved) as error:
        raise Conflict(
            f"session {ref.session_id!r} was created meanwhile",
            code="SESSION_EXISTS",
            hint="restore it again; the run is then compared with that session",
        ) from error


def _conversation_events(state: ExecutionState) -> list[Event]:
    """Return the messages before the run and in it; the run begins with its query."""
    name = state.reasoning_state.agent_name
    earlier: list[Event] = []
    for message in state.history:
        earlier += message_events(message, name, None)
    if earlier:  # an earlier run, which is over
        earlier.append(events.AgentComplete(run="", output=events.raw_json(None), duration=0))
    current: list[Event] = []
    for message in state.current_turn:
        current += message_events(message, name, state.task_id)
    if not any(isinstance(event, events.User) for event in current):
        current.insert(0, events.User(role="user", content=state.query, task_id=state.task_id))
    return earlier + current


def _open_call_events(
    messages: list[Event], state: ExecutionState, agent: ReadyAgent | None
) -> list[Event]:
    """Open every call without a result for an approver: a state does not say which ones were.

    A pending call that no model response requested gets a response that requests it.
    """
    call, task, name = state.pending_tool_call, state.task_id, state.reasoning_state.agent_name
    if call is None:
        raise Refused(
            "failed to load execution state: no call is pending",
            code="STATE_CORRUPT",
            hint="restore the state of a paused run; its pending_tool_call is the call to decide",
        )
    added: list[Event] = []
    calls = {
        open_call.id: ToolCall(open_call.id, open_call.tool, open_call.params, open_call.redact)
        for open_call in _fold(messages).open_calls
    }
    if call.id not in calls:
        calls = {call.id: call}
        added.append(events.Assistant(role="assistant", content="", agent=name, task_id=task))
        added.append(
            events.ToolCall(
                id=call.id,
                tool=call.name,
                params=dict(call.args),
                agent=name,
                task_id=task,
                redact=call.redact,
            )
        )
    check_unredacted(list(calls.values()))
    return added + [_pending_event(item, state, agent) for item in calls.values()]


def _fold(facts: list[Event]) -> State:
    return fold([StampedEvent(seq, 0, fact) for seq, fact in enumerate(facts, 1)])


def _pending_event(
    call: ToolCall, state: ExecutionState, agent: ReadyAgent | None
) -> events.Pending:
    tool = None if agent is None else agent.tool(call.name)
    is_question = tool is not None and tool.kind == "question"
    schema, choices = (call.args.get(n) if is_question else None for n in ("schema", "choices"))
    check_question(schema, choices)
    return events.Pending(
        pending_id=secret_id("p"),
        kind="question" if is_question else "approval",
        call_id=call.id,
        tool=call.name,
        input=dict(call.args),
        effect_id=secret_id("e"),
        prompt=None if tool is None else render_prompt(tool, call.args),
        schema=schema,
        choices=choices,
        policy=None if tool is None else tool.approval.policy,
        started_by=state.started_by,
        task_id=state.task_id,
        redact=call.redact,
    )


def _restored_event(state: ExecutionState) -> events.Restored:
    snapshot = redact_state(state).reasoning_state
    return events.Restored(
        task_id=state.task_id,
        turns=snapshot.iteration,
        tokens=snapshot.total_tokens,
        response=snapshot.assistant_response,
        final=snapshot.final_response_added,
        first_calls=[msgspec.to_builtins(call) for call in snapshot.first_iteration_tool_calls],
        sub_agents=list(snapshot.sub_agents),
        show_thinking=snapshot.show_thinking,
        started_by=state.started_by,
    )
