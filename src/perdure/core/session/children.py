"""Background agents of a session, as its log has them: children, and mail to be delivered."""

from collections.abc import Iterable, Mapping
from typing import Final, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.log import events

TaskStatus = Literal["running", "completed", "error", "cancelled", "resumed"]
TASK_STATUSES: Final[tuple[TaskStatus, ...]] = get_args(TaskStatus)
BACKGROUND_AUTHOR: Final = "perdure:background"  # `by` of notifications and of a parent's cancels
CALLER_CHECK_MS: Final = 500  # how often a parent checks that a caller with a reservation is alive
ACTIVE: Final = ("running", "resumed")  # statuses of a task whose child has not ended its run


class Reservation(Struct, frozen=True, gc=False):
    """Right of a caller that waits for an outcome to take it before the parent is notified."""

    until: int
    holder: str | None = None  # the caller's process in the store: without it, nobody waits


class Child(Struct, frozen=True, gc=False):
    """A background agent that the session launched."""

    task_id: str
    session_id: str
    agent: str
    run: str = ""  # id of its present or last run
    status: TaskStatus = "running"
    number: int = 1  # of that run
    resume_count: int = 0
    description: str = ""
    is_cleared: bool = False
    is_ending: bool = False  # the session's run was cancelled, and the child with it
    is_queued: bool = False  # a queued follow-up starts its next run

    @property
    def is_active(self) -> bool:
        return self.status in ACTIVE


class Children(dict[str, Child]):
    """Children by task id; the active ones, queued ones and undelivered mail are kept apart.

    A fold changes the table that it has copied until it closes it: n children cost n, not n².
    """

    __slots__ = ("active", "is_closed", "mail", "queued")

    def __init__(self, table: "Children | None" = None) -> None:
        super().__init__(table or {})
        self.active: dict[str, Child] = {} if table is None else dict(table.active)
        self.queued: dict[str, Child] = {} if table is None else dict(table.queued)
        # Undelivered mail by id, reserved or not for a caller that waits for it.
        self.mail: dict[str, Reservation | None] = {} if table is None else dict(table.mail)
        self.is_closed = True

    def put(self, child: Child) -> None:
        """Add or replace a child."""
        self[child.task_id] = child
        self.active.pop(child.task_id, None)
        self.queued.pop(child.task_id, None)
        if child.is_queued:
            self.queued[child.task_id] = child
        if child.is_active:
            self.active[child.task_id] = child

    def opened(self) -> "Children":
        """Return a table that a fold may change: this one, unless it is closed."""
        if not self.is_closed:
            return self
        table = Children(self)
        table.is_closed = False
        return table

    @property
    def ending(self) -> list[Child]:
        """Children that must be cancelled because the run that they belong to was."""
        queued = [child for child in self.queued.values() if not child.is_active]
        return [child for child in (*self.active.values(), *queued) if child.is_ending]

    def is_settled(self, mail: str) -> bool:
        """Return whether the run that a mail reports is over, delivered or not."""
        task_id, _, text = mail.rpartition(".")
        child, number = self.get(task_id), int(text or 0)
        if mail in self.mail or child is None or child.number > number:
            return True
        if child.number == number or child.is_cleared:
            return not child.is_active
        return child.status == "cancelled"  # the queued message that starts the run was dropped

    def due_mail(self, now: int, callers: Mapping[str, bool]) -> list[str]:
        """Return the ids of mail that is not reserved for a waiting caller.

        `callers` says of holders whether they are alive.
        """
        return [
            mail
            for mail, item in self.mail.items()
            if item is None or item.until <= now or not callers.get(item.holder or "", True)
        ]

    def holders(self, now: int) -> set[str]:
        """Return the holders that mail is reserved for."""
        items = self.mail.values()
        return {item.holder for item in items if item and item.until > now and item.holder}

    def next_due(self, now: int) -> int | None:
        """Return when reservations end, or may have ended; None if there are none."""
        ends = [
            min(item.until, now + CALLER_CHECK_MS) if item.holder else item.until
            for item in self.mail.values()
            if item is not None and item.until > now
        ]
        return min(ends, default=None)


def mail_id(task_id: str, number: int) -> str:
    """Return the id of the mail that reports the end of a run of a background agent."""
    return f"{task_id}.{number}"


ChildEvent = (
    events.Delegation
    | events.DelegationQueued
    | events.DelegationResumed
    | events.DelegationComplete
    | events.DelegationCleared
    | events.MailTaken
    | events.ReservationEnded
)


def apply_event(children: Children, event: ChildEvent) -> Children:
    """Return the children after an event of their parent's log."""
    if isinstance(event, events.MailTaken | events.ReservationEnded):
        return _apply_mail(children, event)
    table = children.opened()
    match event:
        case events.Delegation():
            if event.task_id not in table:
                names = (event.task_id, event.session_id, event.agent, event.run)
                table.put(Child(*names, description=event.description))
        case events.DelegationQueued():
            _change(table, event.task_id, is_queued=True)
        case events.DelegationResumed():
            _apply_resumed(table, event)
        case events.DelegationComplete():
            _apply_complete(table, event)
        case events.DelegationCleared():
            _apply_cleared(table, event)
    return table


def _apply_resumed(table: Children, event: events.DelegationResumed) -> None:
    child = table.get(event.task_id)
    is_follow_up = child is not None and event.resume_count > child.resume_count
    _change(
        table,
        event.task_id,
        status="resumed" if is_follow_up else "running",
        run=event.run,
        number=event.number,
        resume_count=event.resume_count,
        # Accepted before the parent's run was cancelled, a queued follow-up ends with it.
        is_ending=child is not None and child.is_ending and child.is_queued,
        is_queued=False,
    )


def _apply_complete(table: Children, event: events.DelegationComplete) -> None:
    child = table.get(event.task_id)
    if child is None:
        return
    # A queued follow-up that was accepted before the parent's run was cancelled ends with it.
    is_ending = child.is_ending and event.queued
    ended = {"status": event.status, "is_ending": is_ending, "is_queued": event.queued}
    _change(table, event.task_id, **ended)
    if not event.quiet:
        until, holder = event.reserved_until, event.reserved_by
        item = None if until is None else Reservation(until, holder)
        table.mail[mail_id(event.task_id, event.number)] = item


def _apply_cleared(table: Children, event: events.DelegationCleared) -> None:
    for task_id in event.task_ids:
        _change(table, task_id, is_cleared=True, is_queued=False)
        for mail in [item for item in table.mail if item.rpartition(".")[0] == task_id]:
            del table.mail[mail]


def take_mail(children: Children, mail: Iterable[str]) -> Children:
    """Return the children after mail was delivered."""
    ids = [item for item in mail if item in children.mail]
    if not ids:
        return children
    table = children.opened()
    for item in ids:
        del table.mail[item]
    return table


def _apply_mail(children: Children, event: events.MailTaken | events.ReservationEnded) -> Children:
    if isinstance(event, events.MailTaken):
        return take_mail(children, event.mail)
    table = children.opened()
    table.mail |= dict.fromkeys([item for item in event.mail if item in table.mail])
    return table


def end_active(children: Children) -> Children:
    """Return the children after the run of their parent was cancelled.

    The active ones end too, and those that a queued follow-up would start again.
    """
    if not children.active and not children.queued:
        return children
    table = children.opened()
    for child in [*{**table.active, **table.queued}.values()]:
        table.put(replace(child, is_ending=True))
    return table


def _change(table: Children, task_id: str, **changes: object) -> None:
    child = table.get(task_id)
    if child is not None:
        table.put(replace(child, **changes))
