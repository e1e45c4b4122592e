"""Forks: the points at which a log can be cut, and the events that a fork starts with."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.events import Event, StampedEvent
from perdure.errors import Refused

Rename = Callable[[str], str]

# Events that belong to the original only: its effects, pending calls, retries and children.
DROPPED: Final[frozenset[type]] = frozenset(
    {
        events.ToolStarted,
        events.Pending,
        events.Progress,
        events.Settled,
        events.Retry,
        events.CompactionRequested,
        events.CompactionFailed,
        events.Restored,
        events.Launched,
        events.FollowUpQueued,
        events.FollowUpDropped,
        events.Delegation,
        events.DelegationQueued,
        events.DelegationResumed,
        events.DelegationComplete,
        events.DelegationCleared,
        events.MailTaken,
        events.ReservationEnded,
    }
)


def settled_point(log: Sequence[StampedEvent], at: int | None = None) -> int:
    """Return the last seq, not after `at`, at which every requested call has its result.

    There is no such point between a response and its calls. Raises Refused if there is none.
    """
    open_calls: set[str] = set()
    point = 0
    next_events = [*(stamped.event for stamped in log[1:]), None]
    for stamped, next_event in zip(log, next_events, strict=True):
        seq, event = stamped.seq, stamped.event
        if at is not None and seq > at:
            break
        match event:
            case events.Assistant():
                open_calls.clear()
            case events.ToolCall():
                open_calls.add(event.id)
            case events.ToolResult():
                open_calls.discard(event.tool_call_id)
            case _:
                pass
        if not open_calls and not isinstance(next_event, events.ToolCall):
            point = seq
    if not point:
        raise Refused(
            f"there is no point at or before event {at} where every call was settled",
            code="AT_INVALID",
            hint="name a later event, or none for the last such point",
        )
    return point


def copy_events(log: Iterable[StampedEvent], at: int, rename: Rename) -> list[StampedEvent]:
    """Return the events of a fork: the conversation up to `at`, with results, renumbered.

    Ids that reach the original are not copied: runs get the ids that `rename` returns, pending
    calls and effects none.
    """
    new_seqs: dict[int, int] = {0: 0}
    copies: list[StampedEvent] = []
    for stamped in log:
        if stamped.seq > at:
            break
        if _is_kept(stamped.event):
            renamed = _rename_ids(stamped.event, rename)
            if isinstance(renamed, events.Assistant):
                renamed = replace(renamed, request_head=new_seqs.get(renamed.request_head, 0))
            elif isinstance(renamed, events.Compacted):
                renamed = replace(renamed, up_to=new_seqs.get(renamed.up_to, 0))
            copies.append(StampedEvent(len(copies) + 1, stamped.at, renamed))
        new_seqs[stamped.seq] = len(copies)
    return copies


def _is_kept(event: Event) -> bool:
    if isinstance(event, events.AgentStart):
        return not event.worker  # a caller requested a new run
    return type(event) not in DROPPED


def _rename_ids(event: Event, rename: Rename) -> Event:
    changes: dict[str, Any] = {}
    match event:
        case events.AgentStart() | events.AgentComplete() | events.AgentError():
            changes["run"] = rename(event.run)
        case events.Decision() | events.Vote():
            changes["pending_id"] = ""
        case _:
            pass
    task: str | None = getattr(event, "task_id", None)
    if task is not None:
        changes["task_id"] = rename(task)
    return replace(event, **changes) if changes else event
