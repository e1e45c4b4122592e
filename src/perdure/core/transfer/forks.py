"""Where a log can be cut, and what of it a fork begins with."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.events import Event, Stamped
from perdure.errors import Refused

Rename = Callable[[str], str]

# Facts of one life only: which worker did what under which id, and what waited meanwhile.
LEFT: Final[frozenset[type]] = frozenset(
    {
        events.ToolStarted,
        events.Pending,
        events.Progress,
        events.Settled,
        events.Retry,
        events.CompactionRequested,
        events.CompactionFailed,
        events.Restored,
        events.Delegation,
        events.DelegationComplete,
    }
)


def settled_point(log: Sequence[Stamped], at: int | None = None) -> int:
    """The last seq, not after `at`, where every call that was asked for had its result.

    An answer and its calls are one: there is no point between them. Raises Refused if there is
    none.
    """
    waiting: set[str] = set()
    found = 0
    next_events = [*(one.event for one in log[1:]), None]
    for (seq, _, event), after in zip(log, next_events, strict=True):
        if at is not None and seq > at:
            break
        match event:
            case events.Assistant():
                waiting.clear()
            case events.ToolCall():
                waiting.add(event.id)
            case events.ToolResult():
                waiting.discard(event.tool_call_id)
            case _:
                pass
        if not waiting and not isinstance(after, events.ToolCall):
            found = seq
    if not found:
        raise Refused(
            f"there is no point at or before event {at} where every call was settled",
            code="AT_INVALID",
            hint="name a later event, or none: then it is the last such point",
        )
    return found


def copied(log: Iterable[Stamped], at: int, rename: Rename) -> list[Stamped]:
    """What a fork begins with: the conversation up to `at`, with results, numbered anew.

    No id under which the original can still be reached goes with it: runs get the names that
    `rename` gives, pending calls and effects none.
    """
    places: dict[int, int] = {0: 0}
    kept: list[Stamped] = []
    for seq, when, event in log:
        if seq > at:
            break
        if _is_kept(event):
            renamed = _renamed(event, rename)
            if isinstance(renamed, events.Assistant):
                renamed = replace(renamed, request_head=places.get(renamed.request_head, 0))
            elif isinstance(renamed, events.Compacted):
                renamed = replace(renamed, up_to=places.get(renamed.up_to, 0))
            kept.append(Stamped(len(kept) + 1, when, renamed))
        places[seq] = len(kept)
    return kept


def _is_kept(event: Event) -> bool:
    if isinstance(event, events.AgentStart):
        return not event.worker  # somebody asked for a new run
    return type(event) not in LEFT


def _renamed(event: Event, rename: Rename) -> Event:
    changes: dict[str, Any] = {}
    match event:
        case events.AgentStart() | events.AgentComplete() | events.AgentError():
            changes["run"] = rename(event.run)
        case events.Decision():
            changes["pending_id"] = ""
        case _:
            pass
    task: str | None = getattr(event, "task_id", None)
    if task is not None:
        changes["task_id"] = rename(task)
    return replace(event, **changes) if changes else event
