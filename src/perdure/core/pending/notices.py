"""Notices about pending calls, for readers: created, settled, session resumed."""

from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct, field

from perdure.core.log import events
from perdure.core.log.events import StampedEvent
from perdure.core.session.state import State, fold
from perdure.views.literals import CallKind

NoticeType = Literal[
    "created",
    "completed",
    "failed",
    "expired",
    "cancelled",
    "session-resuming",
    "session-resumed",
]

# Events that only a driver writes.
_DRIVER_EVENTS: Final = (
    events.AgentStart,
    events.ToolStarted,
    events.Assistant,
    events.Retry,
    events.AgentComplete,
    events.AgentError,
)
# Events that end a run; the calls that it closes for this are settled just before.
_RUN_ENDS: Final = (events.Cancelled, events.AgentError)


class PendingNotice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One notice, as readers receive it."""

    type: NoticeType
    timestamp: int
    task_id: str | None = field(default=None, name="taskID")
    pending_id: str | None = field(default=None, name="pendingID")
    call_id: str | None = field(default=None, name="callID")
    kind: CallKind | None = None
    tool: str | None = None
    by: str | None = None
    decision: str | None = None


class NoticeState(NamedTuple):
    """A followed session; `is_resuming`: it was woken, and no driver has continued it yet."""

    state: State = State()
    is_resuming: bool = False


def is_run_end(event: events.Event) -> bool:
    """Return whether the event ends a run whose calls may have been open until then."""
    return isinstance(event, _RUN_ENDS)


def follow_event(
    previous: NoticeState, stamped: StampedEvent, *, ends_next: bool = False
) -> tuple[NoticeState, list[PendingNotice]]:
    """Return the session after one more event, and the notices of that event.

    `ends_next`: the run ends with the next event, so that the session does not resume.
    """
    before, event = previous.state, stamped.event
    after = fold([stamped], before)
    notices = _call_notices(before, stamped)
    common: dict[str, Any] = {
        "timestamp": stamped.at,
        "task_id": None if after.run is None else after.run.id,
    }
    is_resuming = previous.is_resuming
    is_driver = isinstance(event, _DRIVER_EVENTS)  # it starts the calls of a turn one by one
    was_woken = before.status == "waiting" and after.status in ("running", "pending")
    if was_woken and not is_driver and not ends_next:
        notices.append(PendingNotice(type="session-resuming", **common))
        is_resuming = True
    elif is_resuming and is_driver:
        notices.append(PendingNotice(type="session-resumed", **common))
        is_resuming = False
    return NoticeState(after, is_resuming and after.status != "cancelled"), notices


def _call_notices(state: State, stamped: StampedEvent) -> list[PendingNotice]:
    event = stamped.event
    match event:
        case events.Pending():
            fields: dict[str, Any] = {"type": "created", "kind": event.kind}
        case events.Decision():
            fields = {"type": "completed", "decision": event.kind, "by": event.by}
        case events.Settled():
            fields = {"type": event.status, "by": event.by}
        case _:
            return []
    if not event.pending_id:
        return []  # a call of the session that this one was forked from
    call = state.calls.get(event.call_id)
    if call is not None:
        fields.setdefault(
            "kind", call.gate_kind if call.approval_id == event.pending_id else call.kind
        )
        fields["tool"] = call.tool
    elif not event.call_id:  # the run itself asks, at a limit of its budget
        fields |= {"kind": "question", "tool": events.BUDGET}
    return [
        PendingNotice(
            timestamp=stamped.at,
            task_id=event.task_id,
            pending_id=event.pending_id,
            call_id=event.call_id,
            **fields,
        )
    ]
