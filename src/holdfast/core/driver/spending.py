"""How long a run has been running, as its log tells: what it waited for is not counted."""

from collections.abc import Iterable
from typing import Final

from holdfast.core.log import events
from holdfast.core.log.events import Stamped
from holdfast.core.session.state import Run

# What somebody else writes, whether the run is driven at that moment or not.
_OUTSIDE: Final = (events.User, events.Metadata, events.Cancelled, events.Revoked, events.Restored)
# After these it goes on, perhaps in the same drive: the time before was spent waiting.
_ANSWERS: Final = (events.Decision, events.Settled)


def running_ms(log: Iterable[Stamped], run: Run) -> int:
    """The time in which it was driven, up to the last event that a driver wrote."""
    total, mark = 0, None
    for seq, at, event in log:
        if seq < run.since or isinstance(event, _OUTSIDE):
            continue
        if isinstance(event, events.AgentStart) and event.worker:
            mark = event.since or at
        if mark is not None:
            total += 0 if isinstance(event, _ANSWERS) else max(0, at - mark)
            mark = at
    return total
