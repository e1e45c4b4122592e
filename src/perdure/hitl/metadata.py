"""Execution states in session metadata, under `pending_executions`.

The state of a run that is paused here is computed from its log. A state that `save` stored counts
until it is cleared, its run has ended, or its run has paused for another call.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from perdure.app import Runtime
from perdure.core.execution_states.paused import expired_state
from perdure.core.execution_states.state import (
    ExecutionState,
    SecretNames,
    redact_state,
    serialize_execution_state,
)
from perdure.core.log.events import PENDING_EXECUTIONS, ToolCall
from perdure.errors import NotFound, Refused
from perdure.hitl.access import open_service, session_ref
from perdure.runtime.records.content import check_size
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.records.log import Log
from perdure.runtime.sessions.execution_states import (
    parse_stored_state,
    run_settings,
    session_metadata,
    stored_state,
    stored_states,
)
from perdure.runtime.sessions.service import Service

Metadata = dict[str, Any]


async def save_execution_state_to_session(
    rt: Runtime, session_id: str, task_id: str, state: ExecutionState
) -> None:
    """Store a state in its session's metadata, without secret arguments.

    States of other tasks are kept. Raises NotFound.
    """
    check_size(serialize_execution_state(state), "the execution state")
    service, entry = await _session(rt, session_id)
    secret_names = _secret_names(
        service, await service.log(entry), state.reasoning_state.agent_name
    )
    stored = stored_state(redact_state(state, secret_names))

    def add(metadata: Metadata) -> Metadata:
        return {PENDING_EXECUTIONS: {**stored_states(metadata), task_id: stored}}

    await _change(rt, session_id, add)


async def load_execution_state_from_session(
    rt: Runtime, session_id: str, task_id: str, *, secrets: bool = False
) -> ExecutionState:
    """Return the state of a task that is paused in a session. NotFound says what is missing.

    If its last pause expired, the state of that pause is kept, with `expired` set.

    With `secrets` it contains the secret arguments, which are needed to restore the run in
    another store; a state that was saved has none.
    """
    service, entry = await _session(rt, session_id)
    metadata = await session_metadata(service, entry, secrets=secrets)
    if task_id not in stored_states(metadata):
        log = await service.log(entry)
        settings = run_settings(service, log.state.agent)
        expired = expired_state(log.events, entry.record.id, task_id, settings)
        if expired is not None:
            return expired if secrets else redact_state(expired)
    if not metadata:
        raise _not_found(f"no execution state found for task {task_id}")
    if PENDING_EXECUTIONS not in metadata:
        raise _not_found("no pending executions in session")
    states = stored_states(metadata)
    if task_id not in states:
        raise _not_found(f"execution state not found for task {task_id}")
    return parse_stored_state(states[task_id])


async def clear_execution_state_from_session(rt: Runtime, session_id: str, task_id: str) -> None:
    """Remove a stored state; it is not an error if there is none."""

    def remove(metadata: Metadata) -> Metadata:
        try:
            states = stored_states(metadata)
        except Refused:
            return {}  # not in our format: left unchanged
        if states.pop(task_id, None) is None:
            return {}
        return {PENDING_EXECUTIONS: states or None}

    await _change(rt, session_id, remove)


async def update_session_metadata(
    rt: Runtime, session_id: str, metadata: Mapping[str, Any]
) -> None:
    """Change the metadata of a session; None removes a key. Raises NotFound."""
    if not isinstance(metadata, Mapping):
        raise Refused(
            f"metadata must be an object, not {metadata!r}",
            code="METADATA_INVALID",
            hint='pass the keys to change, such as {"order": 991}; None removes a key',
        )
    await _change(rt, session_id, lambda _: dict(metadata))


async def get_session_metadata(rt: Runtime, session_id: str) -> Metadata:
    """Return the metadata of a session, with the state of the run that is paused in it."""
    return await session_metadata(*await _session(rt, session_id))


def _secret_names(service: Service, log: Log, agent_name: str) -> SecretNames:
    """Return the secret arguments of calls: as the session recorded them, and as tools say."""
    calls = [item.event for item in log.events if isinstance(item.event, ToolCall)]
    recorded = {call.id: call.redact for call in calls}
    agent = service.agents.find(agent_name or log.state.agent)

    def secret_names(call_id: str, tool_name: str) -> Collection[str]:
        tool = None if agent is None else agent.tool(tool_name)
        return {*recorded.get(call_id, ()), *(() if tool is None else tool.hidden_arguments)}

    return secret_names


def _not_found(text: str) -> NotFound:
    return NotFound(text, code="STATE_NOT_FOUND", hint="the task is not paused, or has ended")


async def _session(rt: Runtime, session_id: str) -> tuple[Service, SessionEntry]:
    service = open_service(rt)
    return service, await service.get(session_ref(rt, session_id))


async def _change(rt: Runtime, session_id: str, change: Callable[[Metadata], Metadata]) -> None:
    await open_service(rt).change_metadata(session_ref(rt, session_id), change)
