"""Follow-ups to background tasks: which are accepted, what an agent may allow, and queued ones."""

from typing import Final

from msgspec import Struct

from perdure.core.log import events
from perdure.core.session.child_tasks import CLEARED, DELETED, ChildTask, task_not_found
from perdure.errors import Conflict

ENDED: Final = ("error", "cancelled")  # statuses that are resumed only where it is allowed


class FollowUpRules(Struct, frozen=True):
    """Permission by the agent of a parent for more than follow-ups to completed tasks."""

    resume_ended: bool = False  # tasks in `error` or `cancelled` too
    queue_message: bool = False  # one message to a running task waits for the end of its run


NO_RULES: Final = FollowUpRules()


def check_follow_up(task: ChildTask, rules: FollowUpRules = NO_RULES) -> None:
    """Raise NotFound or Conflict unless a follow-up may be sent to a task, or queued for it."""
    if task.is_cleared:
        raise task_not_found(task.id, DELETED if task.is_deleted else CLEARED)
    if rules.queue_message and (task.is_active or task.is_queued):
        _check_queue(task)
        return
    if task.status == "resumed" or (task.is_queued and not task.is_active):
        raise Conflict(
            "Task is currently being resumed. Wait for completion before sending another message.",
            code="BEING_RESUMED",
            hint=f"perdure tasks output {task.id} --block",
            details={"task_id": task.id, "status": task.status},
        )
    if task.status != "completed" and not (rules.resume_ended and task.status in ENDED):
        raise Conflict(
            f"Cannot resume task: status is '{task.status}'. Only completed tasks can be resumed.",
            code="NOT_COMPLETED",
            hint=f"perdure tasks show {task.id}",
            details={"task_id": task.id, "status": task.status},
        )


def _check_queue(task: ChildTask) -> None:
    if task.is_queued:
        raise Conflict(
            f"Cannot queue message: queue full. Task {task.id} already has a queued message.",
            code="QUEUE_FULL",
            hint=f"perdure tasks output {task.id} --block",
            details={"task_id": task.id, "status": task.status},
        )


def queued_message(message: events.FollowUpQueued, run: str) -> events.User:
    """Return the message that starts a run, from one that was queued until the last run ended."""
    return events.User(
        role="user",
        content=message.content,
        task_id=run,
        key=message.key,
        by=message.by,
        bounds=message.bounds,
        queued=True,
    )
