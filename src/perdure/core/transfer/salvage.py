"""What can be kept of a log that has lost events: those that can be read, numbered anew."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.events import Stamped
from perdure.core.pending.settlement import INTERRUPTED


def salvaged(log: Sequence[Stamped], told: Sequence[Any], now: int) -> list[Stamped]:
    """The readable events of a log, and one that says what was lost.

    A call of an earlier turn whose result is gone gets one that says so. Answers name the event
    up to which they had seen the log: that moves with it.
    """
    whole = list(_with_results(log))
    places = [one.seq for one in whole]
    kept = [
        Stamped(number, one.at, _moved(one.event, places)) for number, one in enumerate(whole, 1)
    ]
    at = max(now, kept[-1].at) if kept else now
    return [*kept, Stamped(len(kept) + 1, at, events.SessionRecovery(issues=list(told)))]


def _with_results(log: Sequence[Stamped]) -> Iterator[Stamped]:
    """The log, where no answer follows on a call without a result."""
    answered = {e.tool_call_id for _, _, e in log if isinstance(e, events.ToolResult)}
    asked: list[events.ToolCall] = []
    before = 0
    for one in log:
        if isinstance(one.event, events.Assistant):
            for call in asked:
                if call.id not in answered:
                    yield Stamped(before, one.at, _lost(call))
            asked.clear()
        elif isinstance(one.event, events.ToolCall):
            asked.append(one.event)
        yield one
        before = one.seq


def _lost(call: events.ToolCall) -> events.ToolResult:
    return events.ToolResult(
        tool_call_id=call.id,
        result=INTERRUPTED,
        is_error=True,
        interrupted=True,
        task_id=call.task_id,
    )


def _moved(event: events.Event, places: Sequence[int]) -> events.Event:
    if not isinstance(event, events.Assistant) or not event.request_head:
        return event
    return replace(event, request_head=bisect_right(places, event.request_head))
