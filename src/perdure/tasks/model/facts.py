"""Records of a task's stream: facts, each with the log lines that it adds."""

from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, field

from perdure.errors import Corrupt
from perdure.tasks.model.executions import ExecutionFact

LogLevel = Literal["info", "warn", "error", "debug"]

FactType = Literal[
    "task_created",
    "task_started",
    "task_completed",
    "task_failed",
    "task_cancelled",
    "task_updated",
    "agent_attached",
    "agent_detached",
    "task_log",
    "task_decision",
    "checkpoint_created",
    "checkpoint_deleted",
    "task_restored",
    "exec_started",
    "exec_finished",
]
MESSAGES: Final[dict[FactType, str]] = {
    "task_created": "Task created",
    "task_started": "Task started",
    "task_completed": "Task completed",
    "task_failed": "Task failed",
    "task_cancelled": "Task cancelled",
    "task_updated": "Task updated",
    "agent_attached": "Agent attached",
    "agent_detached": "Agent detached",
    "checkpoint_created": "Checkpoint created",
    "checkpoint_deleted": "Checkpoint deleted",
    "task_restored": "Checkpoint restored",
    "exec_started": "Command started",
    "exec_finished": "Command finished",
}


class LogEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a task's log; `timestamp` is ISO 8601."""

    timestamp: str = ""
    level: LogLevel = "info"
    message: str
    data: dict[str, Any] | None = None


class AgentDecision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision of an agent, with its reasoning; `timestamp` is ISO 8601."""

    timestamp: str = ""
    agent_id: str = field(name="agentId")
    decision: str
    reasoning: str = ""
    metadata: dict[str, Any] | None = None


class Restoration(Struct, frozen=True, omit_defaults=True):
    """A restore that was decided: the tree to swap in, by name and inode."""

    folder: str
    inode: int
    is_kept: bool = field(default=False, name="kept")  # the old tree: no checkpoint has it


class TaskFact(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Data of one record of a task's stream."""

    lines: tuple[LogEntry, ...] = ()
    decision: AgentDecision | None = None
    status: str | None = None  # after a move
    by: str | None = None
    checkpoint: str | None = None  # id of the checkpoint that was created, deleted or restored
    restoration: Restoration | None = None
    execution: ExecutionFact | None = None


_decoder = msgspec.json.Decoder(TaskFact)


def encode(fact: TaskFact) -> bytes:
    """Return the fact as the data of its record."""
    return msgspec.json.encode(fact)


def decode(data: bytes) -> TaskFact:
    """Return the fact of a record. Raises Corrupt."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"a record of a task cannot be read: {error}") from error
