"""Background tasks: the records of their entries and mail, and how a task follows its child.

A task's status is a function of its child's session. Both are written in the same commit, so a
task never says something else than its child's log.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.session.children import (
    ACTIVE,
    BACKGROUND_AUTHOR,
    Child,
    Reservation,
    TaskStatus,
    mail_id,
)
from perdure.core.session.naming import SessionRecord, session_key, session_stream
from perdure.core.text import NO_OUTPUT
from perdure.errors import Corrupt, NotFound

TASK: Final = "child"  # kinds of entries
MAIL: Final = "mail"
CLEARED: Final = "cleared"  # entry state of a task that was removed from lists


class ChildMove(StrEnum):
    """Transition of a background task."""

    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    RESUME = "resume"  # a message starts another run
    RESTART = "restart"  # another run starts without a new message


MOVES: Final[dict[tuple[TaskStatus, ChildMove], TaskStatus]] = {
    ("running", ChildMove.COMPLETE): "completed",
    ("running", ChildMove.FAIL): "error",
    ("running", ChildMove.CANCEL): "cancelled",
    ("resumed", ChildMove.COMPLETE): "completed",
    ("resumed", ChildMove.FAIL): "error",
    ("resumed", ChildMove.CANCEL): "cancelled",
    ("completed", ChildMove.RESUME): "resumed",
    ("error", ChildMove.RESUME): "resumed",
    ("cancelled", ChildMove.RESUME): "resumed",
    ("completed", ChildMove.RESTART): "running",
    ("error", ChildMove.RESTART): "running",
    ("cancelled", ChildMove.RESTART): "running",
}
_ENDS: Final[dict[str, ChildMove]] = {
    "completed": ChildMove.COMPLETE,
    "failed": ChildMove.FAIL,
    "cancelled": ChildMove.CANCEL,
}
END_STATUSES: Final[dict[str, TaskStatus]] = {  # by the end of the child's run
    end: MOVES["running", move] for end, move in _ENDS.items()
}


class ChildTask(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Data of a task's entry, which belongs to the parent's stream, or to the child's own."""

    id: str
    session_id: str = field(name="sessionID")
    stream: str  # of the child
    tenant: str = ""
    agent: str
    description: str = ""
    parent: str | None = None
    ancestry: tuple[str, ...] = ()
    status: TaskStatus = "running"
    run: str = ""  # id of the child's present or last run
    number: int = 1  # of that run
    resume_count: int = field(default=0, name="resumeCount")
    created_at: int = field(default=0, name="createdAt")
    updated_at: int = field(default=0, name="updatedAt")
    digest: str = ""  # of its prompt, if it was launched under a key
    reserved: Reservation | None = None  # the outcome of the run, for a waiting caller
    is_queued: bool = field(default=False, name="queued")  # a message waits for the run's end
    queued_reserved: Reservation | None = field(default=None, name="queuedReserved")  # of its run
    is_cleared: bool = field(default=False, name="cleared")
    is_deleted: bool = field(default=False, name="deleted")  # with its session

    @property
    def key(self) -> str:
        return task_key(self.tenant, self.id)

    @property
    def is_active(self) -> bool:
        return self.status in ACTIVE

    @property
    def may_move(self) -> bool:
        """True if its run has not ended, or a queued message starts the next one by itself."""
        return self.is_active or self.is_queued

    @property
    def entry_state(self) -> str:
        """State of the entry, by which lists find it: also what a queued message starts again."""
        if self.is_cleared:
            return CLEARED
        return self.status if self.is_active or not self.is_queued else "resumed"

    @property
    def mail_id(self) -> str:
        return mail_id(self.id, self.number)

    @property
    def answer_number(self) -> int:
        """Number of the run that answers the last message: the next one, if that is queued."""
        return self.number + self.is_queued

    @property
    def reservation(self) -> Reservation | None:
        """That of the answer to the last message, for a caller that waits for it."""
        return self.queued_reserved if self.is_queued else self.reserved

    def moved(self, move: ChildMove, **changes: Any) -> "ChildTask":
        """Return the task after a move; unchanged if the table has no such move."""
        status = MOVES.get((self.status, move))
        if move is ChildMove.CANCEL:  # and what was queued is dropped
            changes |= {"is_queued": False, "queued_reserved": None}
        return self if status is None else replace(self, status=status, **changes)


class ChildMail(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Outcome of a run of a background agent, kept until its parent has it."""

    id: str
    task_id: str = field(name="taskID")
    session_id: str = field(name="sessionID")
    agent: str
    description: str = ""
    status: TaskStatus
    resume_count: int = field(default=0, name="resumeCount")
    output: Raw | UnsetType = UNSET
    error: str | None = None

    @property
    def text(self) -> str:
        """The output as a model reads it, or the error."""
        if self.error is not None:
            return self.error
        return NO_TEXT if self.output is UNSET else output_text(msgspec.json.decode(self.output))


NO_TEXT: Final = "(no text output)"
STILL_RUNNING: Final = "The task is still running. You will be notified when it has completed."


def output_text(output: Any) -> str:
    """Return the output of a run as text; one without text says so."""
    if isinstance(output, str):
        return output if output.strip() and output != NO_OUTPUT else NO_TEXT
    return NO_TEXT if output is None else msgspec.json.encode(output).decode()


class TaskChange(Struct, frozen=True):
    """Change by a message that is queued, or by a start or an end of a child's run."""

    task: ChildTask
    facts: tuple[
        events.DelegationQueued | events.DelegationResumed | events.DelegationComplete, ...
    ]
    mail: ChildMail | None = None
    wakes: bool = True  # the parent


def follow_session(
    task: ChildTask, session: SessionRecord, facts: list[events.Event], now: int
) -> TaskChange | None:
    """Return what a commit to the child changes; None if no run starts, ends or is queued in it.

    `session` is the child's record after the commit, `facts` are the events of the commit.
    """
    is_new_run = session.task_id is not None and session.task_id != task.run
    queued = next((fact for fact in facts if isinstance(fact, events.FollowUpQueued)), None)
    if queued is not None:
        fact = events.DelegationQueued(task_id=task.id, by=queued.by)
        return TaskChange(replace(task, is_queued=True, updated_at=now), (fact,), wakes=False)
    if not session.is_over:
        # A run that was given up on, because its log could not be read, may continue after all.
        is_start = is_new_run or not task.is_active
        return _started(task, session, facts, now) if is_start else None
    if is_new_run and any(isinstance(fact, events.User) and fact.queued for fact in facts):
        started = _started(task, session, facts, now)  # and cancelled at once
        ended = _ended(started.task, session, facts, now)
        return TaskChange(ended.task, (*started.facts, *ended.facts), ended.mail)
    if is_new_run or not task.is_active:
        return None
    return _ended(task, session, facts, now)


def _started(
    task: ChildTask, session: SessionRecord, facts: list[events.Event], now: int
) -> TaskChange:
    message = next((f for f in facts if isinstance(f, events.User)), None)
    # A notification of its own child is not a follow-up that somebody sent.
    is_follow_up = message is not None and message.by != BACKGROUND_AUTHOR
    if message is not None and message.queued:
        item, changes = task.queued_reserved, {"is_queued": False, "queued_reserved": None}
    else:
        item, changes = None, {}
    after = task.moved(
        ChildMove.RESUME if is_follow_up else ChildMove.RESTART,
        run=session.task_id or "",
        number=task.number + 1,
        resume_count=task.resume_count + is_follow_up,
        updated_at=now,
        reserved=item,
        **changes,
    )
    fact = events.DelegationResumed(
        task_id=task.id,
        run=after.run,
        number=after.number,
        resume_count=after.resume_count,
        by=None if message is None else message.by,
    )
    return TaskChange(after, (fact,))


def _ended(
    task: ChildTask, session: SessionRecord, facts: list[events.Event], now: int
) -> TaskChange:
    after = task.moved(_ENDS[session.state], updated_at=now, reserved=None)
    cancelled = next((f for f in facts if isinstance(f, events.Cancelled)), None)
    is_quiet = cancelled is not None and cancelled.by == BACKGROUND_AUTHOR
    item = None if is_quiet else task.reserved
    fact = events.DelegationComplete(
        task_id=task.id,
        status=after.status,
        number=after.number,
        quiet=is_quiet,
        queued=after.is_queued,
        reserved_until=None if item is None else item.until,
        reserved_by=None if item is None else item.holder,
    )
    error = None if after.status == "completed" else _error_text(after, session, facts)
    return TaskChange(after, (fact,), None if is_quiet else _mail(after, facts, error))


def _error_text(task: ChildTask, session: SessionRecord, facts: list[events.Event]) -> str:
    for fact in facts:
        if isinstance(fact, events.AgentError):
            return f"Task {task.id} failed: {fact.error}"
        if isinstance(fact, events.Cancelled) and fact.reason:
            return f"Task {task.id} was cancelled: {fact.reason}"
    if task.status == "cancelled":
        return f"Task {task.id} was cancelled"
    return f"Task {task.id} failed: {session.problem_text or 'its log does not say why'}"


def _mail(task: ChildTask, facts: list[events.Event], error: str | None) -> ChildMail:
    completed = next((f for f in facts if isinstance(f, events.AgentComplete)), None)
    return ChildMail(
        id=task.mail_id,
        task_id=task.id,
        session_id=task.session_id,
        agent=task.agent,
        description=task.description,
        status=task.status,
        resume_count=task.resume_count,
        output=UNSET if completed is None else completed.output,
        error=error,
    )


UNKNOWN: Final = "unknown"  # reasons why a task was not found: nothing is known of it,
DELETED: Final = "deleted"  # or its session was deleted; or it is CLEARED


def task_not_found(task_id: str, reason: str = UNKNOWN) -> NotFound:
    """Return the error for a task that does not exist, or that the caller may not see."""
    hints = {
        CLEARED: "it was cleared; its session is still there: "
        f"perdure sessions show {session_of(task_id)}",
        DELETED: "it was deleted with its session",
    }
    return NotFound(
        f"Task not found: {task_id}",
        code="TASK_NOT_FOUND",
        hint=hints.get(reason, "perdure tasks list"),
        details={"reason": reason},
    )


def reserved(task: ChildTask, item: Reservation | None) -> ChildTask:
    """Return the task with the answer to its last message reserved for a waiting caller."""
    if task.is_queued:
        return replace(task, queued_reserved=item)
    return replace(task, reserved=item)


def unreserved(task: ChildTask, number: int) -> ChildTask | None:
    """Return the task without the reservation of a run; None if that run has ended."""
    if task.is_active and task.number == number:
        return replace(task, reserved=None)
    if task.is_queued and task.number + 1 == number:
        return replace(task, queued_reserved=None)
    return None


def task_key(tenant: str, task_id: str) -> str:
    """Return the key of a task's entry."""
    return session_key(tenant, task_id)


def session_of(task_id: str) -> str:
    """Return the id of the session that a launch makes for a task."""
    return "s_" + task_id.removeprefix("bg_")


def task_stream(tenant: str, task_id: str) -> str:
    """Return the stream that a launch makes for the session of a task."""
    return session_stream(tenant, session_of(task_id))


def mail_key(tenant: str, mail: str) -> str:
    """Return the key of the entry of a mail."""
    return session_key(tenant, mail)


def rebuilt_task(
    child: Child, parent: SessionRecord, created_at: int, updated_at: int
) -> ChildTask:
    """Return the record of a task from its parent's log."""
    return ChildTask(
        id=child.task_id,
        session_id=child.session_id,
        stream=session_stream(parent.tenant, child.session_id),
        tenant=parent.tenant,
        agent=child.agent,
        description=child.description,
        parent=parent.id,
        ancestry=(*parent.ancestry, parent.id),
        status=child.status,
        run=child.run,
        number=child.number,
        resume_count=child.resume_count,
        created_at=created_at,
        updated_at=updated_at,
        is_queued=child.is_queued,
        is_cleared=child.is_cleared,
    )


def notification_text(mails: Sequence[ChildMail]) -> str:
    """Return the message that delivers mail to the model of the parent."""
    return "\n\n".join(_notice(mail) for mail in mails)


def _notice(mail: ChildMail) -> str:
    mark = " (resumed)" if mail.resume_count else ""
    name = f"{mail.task_id} ({mail.description or mail.agent}){mark}"
    return f"[Background task {name} {_END_WORDS.get(mail.status, mail.status)}]\n{mail.text}"


def deleted_output(task: ChildTask) -> str:
    """Return the sentence about a task that has ended and whose session was deleted."""
    ended = _END_WORDS.get(task.status, f"is {task.status}")
    return f"Task {task.id} {ended}, and its output was deleted with its session."


_END_WORDS: Final = {
    "completed": "has completed",
    "error": "has failed",
    "cancelled": "was cancelled",
}


def marked_description(task: ChildTask) -> str:
    """Return what a list calls a task: one that got follow-ups is marked."""
    return f"{task.description} (resumed)" if task.resume_count else task.description


def task_answer(task: ChildTask | ChildMail, **values: Any) -> dict[str, Any]:
    """Return the answer of a background tool: every one has these values."""
    task_id = task.id if isinstance(task, ChildTask) else task.task_id
    answer = {"task_id": task_id, "status": task.status, "resumeCount": task.resume_count}
    queued = {"queued": True} if isinstance(task, ChildTask) and task.is_queued else {}
    return {**answer, **queued, **values}


def mail_answer(mail: ChildMail) -> dict[str, Any]:
    """Return the answer that delivers the outcome of a background agent."""
    return task_answer(mail, **{"output" if mail.error is None else "error": mail.text})


def still_running(details: Mapping[str, Any]) -> str:
    """Return the result, for the model, of a call that stopped waiting for a background agent."""
    return msgspec.json.encode({**details, "message": STILL_RUNNING}).decode()


_task_decoder = msgspec.json.Decoder(ChildTask)
_mail_decoder = msgspec.json.Decoder(ChildMail)


def encode(record: ChildTask | ChildMail) -> bytes:
    """Return a record as the data of its entry."""
    return msgspec.json.encode(record)


def decode_task(data: bytes) -> ChildTask:
    """Return the record of a task's entry. Raises Corrupt."""
    try:
        return _task_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"the entry of a task cannot be read: {error}") from error


def decode_mail(data: bytes) -> ChildMail:
    """Return the record of a mail's entry. Raises Corrupt."""
    try:
        return _mail_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"the mail of a task cannot be read: {error}") from error
