"""Tasks by their state, and the requests that approvers get."""

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from perdure.app import Runtime, tenant_of
from perdure.core.pending.record import APPROVER_KINDS, PendingRecord
from perdure.errors import Refused
from perdure.hitl.access import open_service
from perdure.runtime.sessions.service import Service

logger = logging.getLogger("perdure")

INPUT_REQUIRED: Final = "INPUT_REQUIRED"
_PREFIX: Final = "TASK_STATE_"
_STATES: Final = {  # A2A names of states, and ours
    "SUBMITTED": "pending",
    "WORKING": "running",
    "COMPLETED": "completed",
    "FAILED": "failed",
    "CANCELED": "cancelled",
    "CANCELLED": "cancelled",
}


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

    Reads only the index. The task of a session is its last run.
    """
    service = open_service(rt)
    name = state.upper().removeprefix(_PREFIX)
    if name == INPUT_REQUIRED:
        return [task async for task in _waiting_tasks(service, tenant_of(rt))]
    own = _STATES.get(name, name.lower())
    if own not in {*_STATES.values(), "waiting"}:
        raise Refused(f"{state!r} is not a state of a task", code="STATE_INVALID")
    return [
        TaskStatus(
            entry.record.task_id or "",
            entry.record.id,
            entry.record.agent,
            state,
            entry.record.tenant,
        )
        async for entry in service.sessions(tenant_of(rt), own)
    ]


async def _waiting_tasks(service: Service, tenant: str | None) -> AsyncIterator[TaskStatus]:
    task_ids: set[str] = set()
    async for record in service.calls.list(tenant):
        if record.kind in APPROVER_KINDS and record.task_id not in task_ids:
            task_ids.add(record.task_id)
            names = (record.task_id, record.session_id, record.agent)
            yield TaskStatus(*names, INPUT_REQUIRED, record.tenant)


async def recover_waiting_tasks(rt: Runtime) -> list[TaskStatus]:
    """List the tasks that wait for approvers and log their number; only a decision resumes one."""
    waiting = await get_tasks_by_state(rt, INPUT_REQUIRED)
    logger.info("Found %d tasks waiting for input", len(waiting))
    return waiting


def approval_request(record: PendingRecord) -> dict[str, Any]:
    """Return the message that asks an approver about a call: a text, and the same as data."""
    data: dict[str, Any] = {
        "interaction_type": "tool_approval",
        "tool_name": record.tool,
        "tool_input": record.redacted.input,
        "options": ["approve", "deny"],
        "tool_call_id": record.call_id,
        "task_id": record.task_id,
        "pending_id": record.id,
        "expires_at": record.timeout,
    }
    if record.kind == "question":
        data |= {"interaction_type": "question", "options": []}
    parts = [{"type": "text", "text": record.prompt or ""}, {"type": "data", "data": data}]
    return {"role": "agent", "parts": parts, "task_id": record.task_id}
