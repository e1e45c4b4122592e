"""Tasks by their state, what waits for people, and what they are asked."""

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from perdure.app import Runtime, tenant_of
from perdure.core.pending.record import PEOPLE, PendingRecord
from perdure.errors import PerdureError, Refused
from perdure.hitl.behind import service_at
from perdure.runtime.sessions.service import Service
from perdure.runtime.views import Result

logger = logging.getLogger("perdure")

INPUT_REQUIRED: Final = "INPUT_REQUIRED"
PAUSED: Final = "input required - task paused for user approval"
_PREFIX: Final = "TASK_STATE_"
_STATES: Final = {  # the names of states elsewhere, and ours
    "SUBMITTED": "pending",
    "WORKING": "running",
    "COMPLETED": "completed",
    "FAILED": "failed",
    "CANCELED": "cancelled",
    "CANCELLED": "cancelled",
}


class InputRequired(PerdureError):
    """A run is paused until somebody decides or answers; not an error of the run."""

    code = "INPUT_REQUIRED"
    exit_code = 8

    def __init__(self, result: Result[Any]) -> None:
        super().__init__(
            PAUSED,
            hint=f"perdure sessions state {result.session_id}",
            details={"taskID": result.task_id, "pending": [one.id for one in result.pending]},
        )
        self.result = result

    @classmethod
    def check(cls, result: Result[Any]) -> Result[Any]:
        """The result; raises InputRequired if it waits for a person."""
        if result.state == "waiting" and any(one.kind in PEOPLE for one in result.pending):
            raise cls(result)
        return result


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A run and the session that it is in."""

    task_id: str
    context_id: str
    agent: str
    state: str
    tenant: str = ""


async def get_tasks_by_state(rt: Runtime, state: str) -> list[TaskStatus]:
    """The tasks in a state, all of them: INPUT_REQUIRED, WORKING …, or a state of a session.

    Read from the index alone. Of a session that is its last run.
    """
    service = service_at(rt)
    wanted = state.upper().removeprefix(_PREFIX)
    if wanted == INPUT_REQUIRED:
        return [one async for one in _asking(service, tenant_of(rt))]
    own = _STATES.get(wanted, wanted.lower())
    if own not in {*_STATES.values(), "waiting"}:
        raise Refused(f"{state!r} is no state of a task", code="STATE_INVALID")
    return [
        TaskStatus(
            one.record.task_id or "", one.record.id, one.record.agent, state, one.record.tenant
        )
        async for one in service.sessions(tenant_of(rt), own)
    ]


async def _asking(service: Service, tenant: str | None) -> AsyncIterator[TaskStatus]:
    seen: set[str] = set()
    async for record in service.pending(tenant):
        if record.kind in PEOPLE and record.task_id not in seen:
            seen.add(record.task_id)
            names = (record.task_id, record.session_id, record.agent)
            yield TaskStatus(*names, INPUT_REQUIRED, record.tenant)


async def recover_waiting_tasks(rt: Runtime) -> list[TaskStatus]:
    """List what waits for people and log the count; nothing is resumed, an answer does that."""
    waiting = await get_tasks_by_state(rt, INPUT_REQUIRED)
    logger.info("Found %d tasks waiting for input", len(waiting))
    return waiting


def approval_request(record: PendingRecord) -> dict[str, Any]:
    """What a person is asked about a call, as a message: a text and the same as data."""
    data: dict[str, Any] = {
        "interaction_type": "tool_approval",
        "tool_name": record.tool,
        "tool_input": record.shown.input,
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
