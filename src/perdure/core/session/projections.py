"""What every door calls a run's state: pure projections of the canonical one."""

from dataclasses import dataclass
from typing import Final, Literal

from perdure.core.session.state import RunState

WaitFor = Literal["machine", "person"]


@dataclass(frozen=True, slots=True)
class Standing:
    """A canonical state with the two or three things that projections tell apart."""

    state: RunState
    follow_up: bool = False  # not the first run of its session
    waits_for: WaitFor | None = None
    backing_off: bool = False


@dataclass(frozen=True, slots=True)
class Projection:
    """One row of the table: the words of each surface for one standing."""

    task: str
    background: str
    a2a: str
    session: str
    pending: tuple[str, ...]


def _row(task: str, background: str, a2a: str, session: str, *pending: str) -> Projection:
    return Projection(task, background, a2a, session, pending)


_BUSY = "busy"
_WAIT = "waiting_async"

TABLE: Final[dict[Standing, Projection]] = {
    Standing("pending"): _row("pending", "running", "SUBMITTED", _BUSY),
    Standing("pending", follow_up=True): _row("pending", "resumed", "SUBMITTED", _BUSY),
    Standing("running"): _row("running", "running", "WORKING", _BUSY),
    Standing("running", follow_up=True): _row("running", "resumed", "WORKING", _BUSY),
    Standing("running", backing_off=True): _row("running", "running", "WORKING", "retry"),
    Standing("running", follow_up=True, backing_off=True): _row(
        "running", "resumed", "WORKING", "retry"
    ),
    Standing("waiting", waits_for="machine"): _row(
        "running", "running", "WORKING", _WAIT, "waiting", "processing"
    ),
    Standing("waiting", follow_up=True, waits_for="machine"): _row(
        "running", "resumed", "WORKING", _WAIT, "waiting", "processing"
    ),
    Standing("waiting", waits_for="person"): _row(
        "running", "running", "INPUT_REQUIRED", _WAIT, "waiting"
    ),
    Standing("waiting", follow_up=True, waits_for="person"): _row(
        "running", "resumed", "INPUT_REQUIRED", _WAIT, "waiting"
    ),
    Standing("completed"): _row("completed", "completed", "COMPLETED", "idle", "completed"),
    Standing("failed"): _row("failed", "error", "FAILED", "idle", "failed", "expired"),
    Standing("cancelled"): _row("cancelled", "cancelled", "CANCELED", "idle", "cancelled"),
}


def project(standing: Standing) -> Projection:
    """The row of a standing; total over every standing that can be."""
    state = standing.state
    if state in ("completed", "failed", "cancelled"):
        return TABLE[Standing(state)]
    if state == "waiting":
        waits_for = standing.waits_for or "machine"
        return TABLE[Standing(state, follow_up=standing.follow_up, waits_for=waits_for)]
    backing_off = standing.backing_off and state == "running"
    return TABLE[Standing(state, follow_up=standing.follow_up, backing_off=backing_off)]
