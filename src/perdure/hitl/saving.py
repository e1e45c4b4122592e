"""Execution states in session metadata, under `pending_executions`.

Those of our own paused runs are computed from the log. What `save` wrote is stored, and counts
until it is cleared or its run has ended.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import msgspec

from perdure.app import Runtime
from perdure.core.log.events import PENDING_EXECUTIONS, ToolCall
from perdure.errors import NotFound, Refused
from perdure.hitl.behind import address_of, log_of, service_at
from perdure.hitl.secrets import Hidden, without_secrets
from perdure.hitl.state import ExecutionState, serialize_execution_state, state_from
from perdure.hitl.view import Settings, state_in
from perdure.runtime.records.content import check_size
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.records.log import Log
from perdure.runtime.sessions.service import Service

Metadata = dict[str, Any]

_CORRUPT: Final = "STATE_CORRUPT"


async def save_execution_state_to_session(
    rt: Runtime, session_id: str, task_id: str, state: ExecutionState
) -> None:
    """Store a state with its session, without secret arguments; others there stay.

    Raises NotFound.
    """
    check_size(serialize_execution_state(state), "the execution state")
    service, known = await _found(rt, session_id)
    hidden = _hidden(service, await log_of(service, known), state.reasoning_state.agent_name)
    stored = stored_state(without_secrets(state, hidden))

    def add(metadata: Metadata) -> Metadata:
        return {PENDING_EXECUTIONS: {**_stored(metadata), task_id: stored}}

    await _change(rt, session_id, add)


async def load_execution_state_from_session(
    rt: Runtime, session_id: str, task_id: str, *, secrets: bool = False
) -> ExecutionState:
    """The state of a task that is paused in a session. NotFound says what is missing.

    With `secrets` it has the arguments that are shown to nobody, which it takes to restore the
    run in another store; a state that was saved has none.
    """
    metadata = await metadata_of(*await _found(rt, session_id), secrets=secrets)
    if not metadata:
        raise _missing(f"no execution state found for task {task_id}")
    if PENDING_EXECUTIONS not in metadata:
        raise _missing("no pending executions in session")
    pending = _stored(metadata)
    if task_id not in pending:
        raise _missing(f"execution state not found for task {task_id}")
    return state_of(pending[task_id])


async def clear_execution_state_from_session(rt: Runtime, session_id: str, task_id: str) -> None:
    """Forget a state that was stored; one that was not is no error."""

    def remove(metadata: Metadata) -> Metadata:
        try:
            left = _stored(metadata)
        except Refused:
            return {}  # it is none of ours: left as it is
        if left.pop(task_id, None) is None:
            return {}
        return {PENDING_EXECUTIONS: left or None}

    await _change(rt, session_id, remove)


async def update_session_metadata(
    rt: Runtime, session_id: str, metadata: Mapping[str, Any]
) -> None:
    """Change the metadata of a session; None removes a key. Raises NotFound."""
    await _change(rt, session_id, lambda _: dict(metadata))


async def get_session_metadata(rt: Runtime, session_id: str) -> Metadata:
    """The metadata of a session, with the state of the run that is paused in it."""
    return await metadata_of(*await _found(rt, session_id))


async def metadata_of(service: Service, known: SessionEntry, *, secrets: bool = False) -> Metadata:
    """The same, of a session that was found."""
    log = await log_of(service, known)
    metadata = dict(log.state.metadata)
    state = computed(service, log, known.record.id)
    if state is None:
        return metadata
    state = state if secrets else without_secrets(state)
    stored = _stored(metadata)
    return {**metadata, PENDING_EXECUTIONS: {state.task_id: _shown(state, log), **stored}}


def computed(service: Service, log: Log, session_id: str) -> ExecutionState | None:
    """The state of the run that is paused in a log, with its secrets."""
    agent = service.agents.find(log.state.agent)
    settings = None
    if agent is not None:
        names = tuple(getattr(one, "name", one) for one in agent.agent.sub_agents)
        settings = Settings(names, agent.agent.show_thinking)
    return state_in(log.events, log.state, session_id, settings)


def _hidden(service: Service, log: Log, name: str) -> Hidden:
    """What calls do not show: as their session recorded it, and as the agent's tools say."""
    calls = [one.event for one in log.events if isinstance(one.event, ToolCall)]
    recorded = {call.id: call.redact for call in calls}
    agent = service.agents.find(name or log.state.agent)

    def hidden(call_id: str, tool_name: str) -> Collection[str]:
        tool = None if agent is None else agent.tool(tool_name)
        return {*recorded.get(call_id, ()), *(() if tool is None else tool.hidden)}

    return hidden


def stored_state(state: ExecutionState, **checkpoint: Any) -> Metadata:
    """A state as session metadata keeps it."""
    said = msgspec.json.decode(serialize_execution_state(state))
    return {
        "execution_state": said,
        "pending_tool_call": said["pending_tool_call"],
        "checkpoint_data": {"version": said["version"], **checkpoint},
    }


def _shown(state: ExecutionState, log: Log) -> Metadata:
    return stored_state(state, seq=log.state.head, at=log.state.updated_at)


def state_of(said: Any) -> ExecutionState:
    """The state that an entry of `pending_executions` says; one that is the state itself, too."""
    if isinstance(said, Mapping) and "execution_state" in said:
        inner = said["execution_state"]
        if isinstance(inner, Mapping):
            call = said.get("pending_tool_call")
            return state_from({"pending_tool_call": call, **inner})
    return state_from(said)


def _stored(metadata: Mapping[str, Any]) -> dict[str, Any]:
    found = metadata.get(PENDING_EXECUTIONS, {})
    if not isinstance(found, Mapping):
        raise Refused("invalid pending_executions format", code=_CORRUPT)
    return dict(found)


def _missing(text: str) -> NotFound:
    return NotFound(text, code="STATE_NOT_FOUND", hint="the task is not paused, or has ended")


async def _found(rt: Runtime, session_id: str) -> tuple[Service, SessionEntry]:
    service = service_at(rt)
    return service, await service.desk.outside.known(address_of(rt, session_id))


async def _change(rt: Runtime, session_id: str, change: Callable[[Metadata], Metadata]) -> None:
    await service_at(rt).change_metadata(address_of(rt, session_id), change)
