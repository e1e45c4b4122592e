"""Execution states of the runs that are paused in a session, computed from its log."""

from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.core.execution_states.paused import RunSettings, paused_state
from perdure.core.execution_states.state import (
    ExecutionState,
    parse_state,
    redact_state,
    serialize_execution_state,
)
from perdure.core.log.events import PENDING_EXECUTIONS
from perdure.errors import Refused
from perdure.runtime.records.entries import SessionEntry, SessionRef
from perdure.runtime.records.log import Log
from perdure.runtime.sessions.service import Service
from perdure.views.sessions import PausedState, Result

Metadata = dict[str, Any]


async def session_metadata(
    service: Service, entry: SessionEntry, *, secrets: bool = False
) -> Metadata:
    """Return the metadata of a session, with the state of the run that is paused in it."""
    log = await service.log(entry)
    metadata = dict(log.state.metadata)
    state = _computed_state(service, log, entry.record.id)
    if state is None:
        return metadata
    state = state if secrets else redact_state(state)
    computed = stored_state(state, seq=log.state.head, at=log.state.updated_at)
    states = stored_states(metadata)
    if not _is_of_pause(states.get(state.task_id), state):
        states[state.task_id] = computed
    return {**metadata, PENDING_EXECUTIONS: states}


def _is_of_pause(stored: Any, state: ExecutionState) -> bool:
    """Return whether a stored state was saved at the pause that this state describes."""
    try:
        call = None if stored is None else parse_stored_state(stored).pending_tool_call
    except Refused:
        return True  # damaged: loading it says so
    now = state.pending_tool_call
    return stored is not None and (call is None or now is None or call.id == now.id)


async def pause_state(service: Service, result: Result[Any]) -> PausedState:
    """Return the open calls of a session as its caller sees it, and the states of its paused runs.

    `age` is how long it has been waiting, in ms.
    """
    entry = await service.get(SessionRef(result.tenant, result.session_id))
    metadata = await session_metadata(service, entry)
    now = service.now()
    return PausedState(
        session_id=result.session_id,
        state=result.state,
        pending=result.pending,
        pending_executions=metadata.get(PENDING_EXECUTIONS, {}),
        age=now - min((call.time.created for call in result.pending), default=now),
    )


def _computed_state(service: Service, log: Log, session_id: str) -> ExecutionState | None:
    """Return the state of the run that is paused in a log, with its secrets."""
    settings = run_settings(service, log.state.agent)
    return paused_state(log.events, log.state, session_id, settings)


def run_settings(service: Service, name: str) -> RunSettings | None:
    """Return the settings of an agent; None if it is not known here."""
    agent = service.agents.find(name)
    if agent is None:
        return None
    names = tuple(sub.name for sub in agent.sub_agents)
    return RunSettings(names, agent.agent.show_thinking)


def stored_state(state: ExecutionState, **checkpoint: Any) -> Metadata:
    """Return a state as session metadata holds it."""
    data = msgspec.json.decode(serialize_execution_state(state))
    return {
        "execution_state": data,
        "pending_tool_call": data["pending_tool_call"],
        "checkpoint_data": {"version": data["version"], **checkpoint},
    }


def parse_stored_state(value: Any) -> ExecutionState:
    """Return the state of a value of `pending_executions`, which may be the state itself."""
    if isinstance(value, Mapping) and "execution_state" in value:
        inner = value["execution_state"]
        if isinstance(inner, Mapping):
            call = value.get("pending_tool_call")
            return parse_state({"pending_tool_call": call, **inner})
    return parse_state(value)


def stored_states(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states that metadata holds, by task id. Raises Refused STATE_CORRUPT."""
    states = metadata.get(PENDING_EXECUTIONS, {})
    if not isinstance(states, Mapping):
        raise Refused(
            "invalid pending_executions format",
            code="STATE_CORRUPT",
            hint=f"remove it: update_session_metadata(rt, id, {{{PENDING_EXECUTIONS!r}: None}})",
        )
    return dict(states)
