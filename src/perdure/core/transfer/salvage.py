"""Salvage of a log that has lost events: its readable events, renumbered."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.events import StampedEvent
from perdure.core.pending.settlement import INTERRUPTED


def salvage(log: Sequence[StampedEvent], issues: Sequence[Any], now: int) -> list[StampedEvent]:
    """Return the readable events of a log, and a last one that lists `issues`.

    A call of an earlier turn whose result is lost gets the result `interrupted`. The
    `request_head` of responses is renumbered too.
    """
    complete = list(_with_results(log))
    seqs = [stamped.seq for stamped in complete]
    salvaged = [
        StampedEvent(seq, stamped.at, _renumber(stamped.event, seqs))
        for seq, stamped in enumerate(complete, 1)
    ]
    at = max(now, salvaged[-1].at) if salvaged else now
    report = events.SessionRecovery(issues=list(issues))
    return [*salvaged, StampedEvent(len(salvaged) + 1, at, report)]


def _with_results(log: Sequence[StampedEvent]) -> Iterator[StampedEvent]:
    """Yield the log with a result for every call that is followed by another response."""
    results = [item.event for item in log if isinstance(item.event, events.ToolResult)]
    settled_ids = {result.tool_call_id for result in results}
    calls: list[events.ToolCall] = []
    previous_seq = 0
    for stamped in log:
        if isinstance(stamped.event, events.Assistant):
            for call in calls:
                if call.id not in settled_ids:
                    yield StampedEvent(previous_seq, stamped.at, _interrupted_result(call))
            calls.clear()
        elif isinstance(stamped.event, events.ToolCall):
            calls.append(stamped.event)
        yield stamped
        previous_seq = stamped.seq


def _interrupted_result(call: events.ToolCall) -> events.ToolResult:
    return events.ToolResult(
        tool_call_id=call.id,
        result=INTERRUPTED,
        is_error=True,
        interrupted=True,
        task_id=call.task_id,
    )


def _renumber(event: events.Event, seqs: Sequence[int]) -> events.Event:
    if not isinstance(event, events.Assistant) or not event.request_head:
        return event
    return replace(event, request_head=bisect_right(seqs, event.request_head))
