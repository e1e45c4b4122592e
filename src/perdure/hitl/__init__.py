"""API of the specification; new programs use Runtime.

Human-in-the-loop: states of paused runs, and tasks that wait.

Its functions work on the sessions of an open Runtime. The state of a paused run is read from its
log; nothing is stored for it:

    state = await load_execution_state_from_session(rt, "order-991", result.task_id)
    elsewhere = deserialize_execution_state(serialize_execution_state(state))
    session = await restore_reasoning_state(other_rt, elsewhere)
"""

from perdure.core.execution_states.state import (
    ExecutionState,
    ReasoningStateSnapshot,
    ToolCall,
    capture_execution_state,
    deserialize_execution_state,
    serialize_execution_state,
)
from perdure.hitl.metadata import (
    clear_execution_state_from_session,
    get_session_metadata,
    load_execution_state_from_session,
    save_execution_state_to_session,
    update_session_metadata,
)
from perdure.hitl.restore import restore_reasoning_state
from perdure.hitl.tasks import (
    TaskStatus,
    approval_request,
    get_tasks_by_state,
    recover_waiting_tasks,
)
from perdure.runtime.requests import InputRequired

__all__ = [
    "ExecutionState",
    "InputRequired",
    "ReasoningStateSnapshot",
    "TaskStatus",
    "ToolCall",
    "approval_request",
    "capture_execution_state",
    "clear_execution_state_from_session",
    "deserialize_execution_state",
    "get_session_metadata",
    "get_tasks_by_state",
    "load_execution_state_from_session",
    "recover_waiting_tasks",
    "restore_reasoning_state",
    "save_execution_state_to_session",
    "serialize_execution_state",
    "update_session_metadata",
]
