"""What happens to calls that wait, as their watchers are told it: made, settled, gone on with."""

from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct, field

from perdure.core.log import events
from perdure.core.log.events import CallKind, Stamped
from perdure.core.session.state import State, fold

AsyncType = Literal[
    "created",
    "completed",
    "failed",
    "expired",
    "cancelled",
    "session-resuming",
    "session-resumed",
]

# What only a driver writes.
_DRIVEN: Final = (
    events.AgentStart,
    events.ToolStarted,
    events.Assistant,
    events.Retry,
    events.AgentComplete,
    events.AgentError,
)


class PendingNotice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of news."""

    type: AsyncType
    timestamp: int
    task_id: str | None = field(default=None, name="taskID")
    pending_id: str | None = field(default=None, name="pendingID")
    call_id: str | None = field(default=None, name="callID")
    kind: CallKind | None = None
    tool: str | None = None
    by: str | None = None
    decision: str | None = None


class Followed(NamedTuple):
    """A session as far as it was followed; `woken`: it should go on, and nobody has yet."""

    state: State = State()
    woken: bool = False


def follow(seen: Followed, stamped: Stamped) -> tuple[Followed, list[PendingNotice]]:
    """The session after one more event, and what that is to those who watch its calls."""
    before, event = seen.state, stamped.event
    after = fold([stamped], before)
    told = _of_call(before, stamped)
    common: dict[str, Any] = {
        "timestamp": stamped.at,
        "task_id": None if after.run is None else after.run.id,
    }
    woken = seen.woken
    if before.status == "waiting" and after.status in ("running", "pending"):
        told.append(PendingNotice(type="session-resuming", **common))
        woken = True
    elif woken and isinstance(event, _DRIVEN):
        told.append(PendingNotice(type="session-resumed", **common))
        woken = False
    return Followed(after, woken and after.status != "cancelled"), told


def _of_call(state: State, stamped: Stamped) -> list[PendingNotice]:
    event = stamped.event
    match event:
        case events.Pending():
            told: dict[str, Any] = {"type": "created", "kind": event.kind}
        case events.Decision():
            told = {"type": "completed", "decision": event.kind, "by": event.by}
        case events.Settled():
            told = {"type": event.status, "by": event.by}
        case _:
            return []
    if not event.pending_id:
        return []  # of the session that this one is a fork of
    call = state.calls.get(event.call_id)
    if call is not None:
        told.setdefault("kind", "approval" if call.gate == event.pending_id else call.kind)
        told["tool"] = call.tool
    return [
        PendingNotice(
            timestamp=stamped.at,
            task_id=event.task_id,
            pending_id=event.pending_id,
            call_id=event.call_id,
            **told,
        )
    ]
