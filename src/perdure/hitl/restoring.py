"""Going on from an execution state: the session that it describes, made or found."""

from typing import Any

import msgspec

from perdure.app import Runtime
from perdure.core.log import events
from perdure.core.log.events import Event, Stamped
from perdure.core.session.state import State, fold
from perdure.core.transfer.open_calls import open_records
from perdure.errors import Conflict, Refused
from perdure.hitl.behind import address_of, log_of, service_at
from perdure.hitl.messages import events_of
from perdure.hitl.secrets import check_whole, without_secrets
from perdure.hitl.state import ExecutionState, ToolCall
from perdure.runtime.agents.agents import ReadyAgent
from perdure.runtime.ids import secret_id
from perdure.runtime.records.entries import SessionEntry, SessionRef
from perdure.runtime.records.log import as_record
from perdure.runtime.sessions.handle import Session
from perdure.runtime.sessions.service import Service
from perdure.runtime.tools.invoke import prompt_for
from perdure.runtime.transfer.create import NewSession, SessionNames, listed, make
from perdure.store.base import HeadMoved, VersionMoved, Write


async def restore_reasoning_state(rt: Runtime, state: ExecutionState) -> Session[Any]:
    """The session in which the run of a state waits for its call to be decided, ready to go on.

    Where there is no such session, it is made: with what was said, the call open, and turns and
    tokens counting on. Where the run is paused here, its counts become those of the state.
    Raises Conflict if the session has another run, Refused if the agent lacks a sub-agent or the
    state was saved without the secrets that its call needs.
    """
    service = service_at(rt)
    address = address_of(rt, state.context_id)
    agent = service.agents.find(state.reasoning_state.agent_name)
    if agent is not None:
        _check_settings(state, agent)
    known = await service.desk.outside.find(address)
    if known is None:
        await _made(service, address, state, agent)
    else:
        await _recounted(service, known, state)
    return rt.session(state.context_id)


def _check_settings(state: ExecutionState, agent: ReadyAgent) -> None:
    here = {getattr(one, "name", one) for one in agent.agent.sub_agents}
    if missing := sorted(set(state.reasoning_state.sub_agents) - here):
        raise Refused(
            f"the run may use the sub-agent {missing[0]!r}, which agent {agent.name!r} lacks here",
            code="AGENT_UNKNOWN",
            hint="add it to sub_agents, or restore the run where it is there",
        )


async def _recounted(service: Service, known: SessionEntry, state: ExecutionState) -> None:
    log = await log_of(service, known)
    run = log.state.run
    if run is None or run.id != state.task_id or log.state.status != "waiting":
        raise Conflict(
            f"session {state.context_id!r} is here, and task {state.task_id!r} is not paused in it",
            code="SESSION_EXISTS",
            hint="restore it under another context_id",
        )
    if (run.turns, run.tokens) != (state.iteration, state.total_tokens):
        record = as_record(_counts(state), service.desk.store.now())
        await service.desk.store.commit([Write(known.stream, [record], head=log.state.head)])


async def _made(
    service: Service, address: SessionRef, state: ExecutionState, agent: ReadyAgent | None
) -> None:
    store = service.desk.store
    now, name = store.now(), state.reasoning_state.agent_name
    said = _said(state)
    facts = [*said, *_waiting(said, state, agent), _counts(state)]
    log = [Stamped(seq, now, fact) for seq, fact in enumerate(facts, 1)]
    names = SessionNames(address.tenant, address.session_id, name, service.agents.queue_of(name))
    record = listed(names, log, fold(log))
    calls = open_records(log, address.session_id, address.tenant, name)
    records = [as_record(fact, now) for fact in facts]
    try:
        await make(store, NewSession(record, log, records, calls))
    except (HeadMoved, VersionMoved) as error:
        raise Conflict(
            f"session {address.session_id!r} was made meanwhile", code="SESSION_EXISTS"
        ) from error


def _said(state: ExecutionState) -> list[Event]:
    """What was said before the run and in it; the run begins with its query."""
    name = state.reasoning_state.agent_name
    told: list[Event] = []
    for message in state.history:
        told += events_of(message, name, None)
    if told:  # an earlier run, which is over
        told.append(events.AgentComplete(run="", output=events.raw(None), duration=0))
    current: list[Event] = []
    for message in state.current_turn:
        current += events_of(message, name, state.task_id)
    if not any(isinstance(one, events.User) for one in current):
        current.insert(0, events.User(role="user", content=state.query, task_id=state.task_id))
    return told + current


def _waiting(said: list[Event], state: ExecutionState, agent: ReadyAgent | None) -> list[Event]:
    """Every call without a result waits for a person: nobody knows which of them were asked about.

    One that no answer asked for gets an answer that does.
    """
    call, task, name = state.pending_tool_call, state.task_id, state.reasoning_state.agent_name
    if call is None:
        raise Refused("failed to load execution state: no call is pending", code="STATE_CORRUPT")
    told: list[Event] = []
    asked = {
        one.id: ToolCall(one.id, one.tool, one.params, one.redact)
        for one in _folded(said).open_calls
    }
    if call.id not in asked:
        asked = {call.id: call}
        told.append(events.Assistant(role="assistant", content="", agent=name, task_id=task))
        told.append(
            events.ToolCall(
                id=call.id,
                tool=call.name,
                params=dict(call.args),
                agent=name,
                task_id=task,
                redact=call.redact,
            )
        )
    check_whole(list(asked.values()))
    return told + [_pending(one, task, agent) for one in asked.values()]


def _folded(facts: list[Event]) -> State:
    return fold([Stamped(seq, 0, fact) for seq, fact in enumerate(facts, 1)])


def _pending(call: ToolCall, task: str, agent: ReadyAgent | None) -> events.Pending:
    tool = None if agent is None else agent.tool(call.name)
    return events.Pending(
        pending_id=secret_id("p"),
        kind="question" if tool is not None and tool.kind == "question" else "approval",
        call_id=call.id,
        tool=call.name,
        input=dict(call.args),
        effect_id=secret_id("e"),
        prompt=None if tool is None else prompt_for(tool, call.args),
        task_id=task,
        redact=call.redact,
    )


def _counts(state: ExecutionState) -> events.Restored:
    snapshot = without_secrets(state).reasoning_state
    return events.Restored(
        task_id=state.task_id,
        turns=snapshot.iteration,
        tokens=snapshot.total_tokens,
        response=snapshot.assistant_response,
        final=snapshot.final_response_added,
        first_calls=[msgspec.to_builtins(one) for one in snapshot.first_iteration_tool_calls],
        sub_agents=list(snapshot.sub_agents),
        show_thinking=snapshot.show_thinking,
    )
