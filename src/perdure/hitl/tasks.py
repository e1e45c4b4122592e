"""Tasks by their state, and the requests that approvers get."""

import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from perdure.app import Runtime, tenant_of
from perdure.core.pending.record import APPROVER_KINDS
from perdure.core.session.naming import SessionRecord
from perdure.core.session.projections import TABLE, StateDetails, project
from perdure.errors import Refused
from perdure.hitl.access import open_service
from perdure.runtime.records.entries import STUCK
from perdure.runtime.sessions.service import Service
from perdure.views.calls import PendingCall
from perdure.views.literals import RunState

logger = logging.getLogger("perdure")

INPUT_REQUIRED: Final = "INPUT_REQUIRED"
_PREFIX: Final = "TASK_STATE_"
_PROJECTED: Final = {row.a2a for row in TABLE.values()}


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A run and its session."""

    task_id: str
    context_id: str
    agent: str
    state: str
    tenant: str = ""


async def get_tasks_by_state(rt: Runtime, state: str) -> list[TaskStatus]:
    """Return all tasks in a state: INPUT_REQUIRED, WORKING …, or a state of a session.

    Reads only the index. The task of a session is its last run; a session that has had no message
    has none.
    """
    service, tenant = open_service(rt), tenant_of(rt)
    name = state.upper().removeprefix(_PREFIX)
    name = "CANCELED" if name == "CANCELLED" else name
    if name not in _PROJECTED and name.lower() not in get_args(RunState):
        raise Refused(
            f"{state!r} is not a state of a task",
            code="STATE_INVALID",
            hint=f"one of {', '.join(sorted(_PROJECTED))}, or a state of a session",
        )
    for_approver = {
        (record.tenant, record.session_id, record.task_id)
        async for record in service.calls.list(tenant)
        if record.kind in APPROVER_KINDS
    }
    shown = state if state.islower() and name != INPUT_REQUIRED else name
    tasks = [
        TaskStatus(record.task_id, record.id, record.agent, shown, record.tenant)
        async for record in _records(service, tenant, _stored_states(name))
        if record.task_id is not None and name in _names(record, for_approver)
    ]
    return sorted(tasks, key=lambda task: (task.tenant, task.context_id))


def _stored_states(name: str) -> set[str]:
    """Return the states of session entries that may have a task in this state."""
    if name not in _PROJECTED:
        return {name.lower(), STUCK}
    return {STUCK, *(details.state for details, row in TABLE.items() if row.a2a == name)} | (
        {"pending", "running"} if name == INPUT_REQUIRED else set()
    )


async def _records(
    service: Service, tenant: str | None, states: set[str]
) -> AsyncIterator[SessionRecord]:
    for state in sorted(states):
        async for entry in service.sessions(tenant, state):
            yield entry.record


def _names(record: SessionRecord, for_approver: set[tuple[str, str, str]]) -> set[str]:
    """Return the names of a task's state: ours, and that of A2A."""
    is_for_approver = (record.tenant, record.id, record.task_id) in for_approver
    details = StateDetails(record.state)
    if not record.is_over and is_for_approver:  # its driver may run other calls of the turn
        details = StateDetails("waiting", waits_for="approver")
    elif record.state == "waiting":
        details = StateDetails("waiting", waits_for="submitter")
    return {record.state.upper(), project(details).a2a}


async def recover_waiting_tasks(rt: Runtime) -> list[TaskStatus]:
    """List the tasks that wait for approvers and log their number; only a decision resumes one."""
    waiting = await get_tasks_by_state(rt, INPUT_REQUIRED)
    logger.info("Found %d tasks waiting for input", len(waiting))
    return waiting


def approval_request(call: PendingCall | Mapping[str, Any]) -> dict[str, Any]:
    """Return the message that asks an approver about a call: a text, and the same as data.

    `call` is a pending call, or its JSON, as lists and routes return it: it has the message as
    `request`. Raises Refused for other values.
    """
    request = _request_in(call.to_json() if isinstance(call, PendingCall) else call)
    if request is None:
        raise Refused(
            "no approver is asked about this call, or it is not a pending call",
            code="VALUE_INVALID",
            hint="pass a call of the kind approval or question, as rt.pending() returns it",
        )
    return request


def _request_in(call: object) -> dict[str, Any] | None:
    request = call.get("request") if isinstance(call, Mapping) else None
    return request if isinstance(request, dict) else None
