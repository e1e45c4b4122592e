"""Life of a task: its statuses, and the moves between them as a table."""

from enum import StrEnum
from typing import Final

from perdure.errors import Conflict


class Status(StrEnum):
    """Status of a task; the last three are final."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """True if no move leads out of it."""
        return self in FINAL


class TaskMove(StrEnum):
    """Move of a task: a verb of the lifecycle, or a mark that a caller of the registry sets."""

    START = "start"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    MARK_RUNNING = "mark as running"
    MARK_COMPLETED = "mark as completed"
    MARK_FAILED = "mark as failed"
    MARK_CANCELLED = "mark as cancelled"


FINAL: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})

MOVES: Final[dict[tuple[Status, TaskMove], Status]] = {
    (Status.PENDING, TaskMove.START): Status.RUNNING,
    (Status.RUNNING, TaskMove.COMPLETE): Status.COMPLETED,
    (Status.RUNNING, TaskMove.FAIL): Status.FAILED,
    (Status.PENDING, TaskMove.CANCEL): Status.CANCELLED,
    (Status.RUNNING, TaskMove.CANCEL): Status.CANCELLED,
    # A caller of the registry records work that was done elsewhere, also if it was never started.
    (Status.PENDING, TaskMove.MARK_RUNNING): Status.RUNNING,
    (Status.RUNNING, TaskMove.MARK_RUNNING): Status.RUNNING,
    (Status.PENDING, TaskMove.MARK_COMPLETED): Status.COMPLETED,
    (Status.RUNNING, TaskMove.MARK_COMPLETED): Status.COMPLETED,
    (Status.PENDING, TaskMove.MARK_FAILED): Status.FAILED,
    (Status.RUNNING, TaskMove.MARK_FAILED): Status.FAILED,
    (Status.PENDING, TaskMove.MARK_CANCELLED): Status.CANCELLED,
    (Status.RUNNING, TaskMove.MARK_CANCELLED): Status.CANCELLED,
}

MARKS: Final[dict[Status, TaskMove]] = {
    Status.RUNNING: TaskMove.MARK_RUNNING,
    Status.COMPLETED: TaskMove.MARK_COMPLETED,
    Status.FAILED: TaskMove.MARK_FAILED,
    Status.CANCELLED: TaskMove.MARK_CANCELLED,
}


def moved(status: Status, move: TaskMove) -> Status:
    """Return the status after a move. Raises Conflict if the task is in another status."""
    after = MOVES.get((status, move))
    if after is None:
        starts = [str(before) for before, verb in MOVES if verb is move]
        raise Conflict(
            f"Cannot {move} task with status: {status}",
            code="TASK_STATUS_CONFLICT",
            hint=f"this needs a task that is {' or '.join(starts)}",
            details={"status": str(status), "move": str(move)},
        )
    return after
