"""Projections of a run's canonical state to the status words of each public surface."""

from dataclasses import dataclass
from typing import Final, Literal

from perdure.views.literals import RunState

WaitFor = Literal["submitter", "approver"]


@dataclass(frozen=True, slots=True)
class StateDetails:
    """A canonical state with the details that some projections distinguish."""

    state: RunState
    follow_up: bool = False  # not the first run of its session
    waits_for: WaitFor | None = None
    backing_off: bool = False


@dataclass(frozen=True, slots=True)
class Projection:
    """One row of the table: the status word of each surface."""

    task: str
    background: str
    a2a: str
    session: str
    pending: tuple[str, ...]


def _projection(task: str, background: str, a2a: str, session: str, *pending: str) -> Projection:
    return Projection(task, background, a2a, session, pending)


_BUSY = "busy"
_WAIT = "waiting_async"

TABLE: Final[dict[StateDetails, Projection]] = {
    StateDetails("pending"): _projection("pending", "running", "SUBMITTED", _BUSY),
    StateDetails("pending", follow_up=True): _projection("pending", "resumed", "SUBMITTED", _BUSY),
    StateDetails("running"): _projection("running", "running", "WORKING", _BUSY),
    StateDetails("running", follow_up=True): _projection("running", "resumed", "WORKING", _BUSY),
    StateDetails("running", backing_off=True): _projection(
        "running", "running", "WORKING", "retry"
    ),
    StateDetails("running", follow_up=True, backing_off=True): _projection(
        "running", "resumed", "WORKING", "retry"
    ),
    StateDetails("waiting", waits_for="submitter"): _projection(
        "running", "running", "WORKING", _WAIT, "waiting", "processing"
    ),
    StateDetails("waiting", follow_up=True, waits_for="submitter"): _projection(
        "running", "resumed", "WORKING", _WAIT, "waiting", "processing"
    ),
    StateDetails("waiting", waits_for="approver"): _projection(
        "running", "running", "INPUT_REQUIRED", _WAIT, "waiting"
    ),
    StateDetails("waiting", follow_up=True, waits_for="approver"): _projection(
        "running", "resumed", "INPUT_REQUIRED", _WAIT, "waiting"
    ),
    StateDetails("completed"): _projection(
        "completed", "completed", "COMPLETED", "idle", "completed"
    ),
    StateDetails("failed"): _projection("failed", "error", "FAILED", "idle", "failed", "expired"),
    StateDetails("cancelled"): _projection(
        "cancelled", "cancelled", "CANCELED", "idle", "cancelled"
    ),
}


def project(details: StateDetails) -> Projection:
    """Return the row of the table; defined for every possible combination of details."""
    state = details.state
    if state in ("completed", "failed", "cancelled"):
        return TABLE[StateDetails(state)]
    if state == "waiting":
        waits_for = details.waits_for or "submitter"
        return TABLE[StateDetails(state, follow_up=details.follow_up, waits_for=waits_for)]
    backing_off = details.backing_off and state == "running"
    return TABLE[StateDetails(state, follow_up=details.follow_up, backing_off=backing_off)]
