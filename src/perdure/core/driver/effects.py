"""Effects: what a driver must do next, as values."""

from msgspec import Struct

from perdure.core.log.events import ReachedLimit
from perdure.core.session.calls import Call
from perdure.core.session.children import Child


class AskModel(Struct, frozen=True, gc=False):
    """Request the next turn."""

    turn: int


class Summarize(Struct, frozen=True, gc=False):
    """Request the summary of a compaction that a caller requested."""


class StartCalls(Struct, frozen=True, gc=False):
    """Commit the intents of these calls and run them."""

    calls: tuple[Call, ...]


class HandleInterrupted(Struct, frozen=True, gc=False):
    """Apply the crash policy to calls that an earlier driver intended."""

    calls: tuple[Call, ...]


class FireTimers(Struct, frozen=True, gc=False):
    """Settle timers that are due."""

    calls: tuple[Call, ...]


class CloseCalls(Struct, frozen=True, gc=False):
    """Stop running calls and settle the open calls of a cancelled run."""


class CloseStrays(Struct, frozen=True, gc=False):
    """Close pending records whose call is already settled."""

    calls: tuple[Call, ...]


class CheckResults(Struct, frozen=True, gc=False):
    """Validate results that were submitted where the validators of their tools are not known."""

    calls: tuple[Call, ...]


class CheckCallers(Struct, frozen=True, gc=False):
    """Check whether the processes are alive whose callers have reserved outcomes."""

    holders: tuple[str, ...]


class DeliverMail(Struct, frozen=True, gc=False):
    """Tell the model the outcomes of background agents, in this run or in a new one."""

    mail: tuple[str, ...]


class StartQueued(Struct, frozen=True, gc=False):
    """Start a new run with the follow-up that was queued during the run before."""


class SettleChildCalls(Struct, frozen=True, gc=False):
    """Settle calls whose background agents have ended."""

    calls: tuple[Call, ...]


class CancelChildren(Struct, frozen=True, gc=False):
    """Cancel the background agents of a cancelled run."""

    children: tuple[Child, ...]


class AskForBudget(Struct, frozen=True, gc=False):
    """Let the run wait at a limit of its budget, with a question to an approver."""

    reached: ReachedLimit


class FailRun(Struct, frozen=True, gc=False):
    """End the run as failed."""

    error: str
    code: str
    hint: str
    limit: str | None = None
    value: float = 0
    closes_calls: bool = False  # running calls are cancelled and open calls closed


class FailLostRun(Struct, frozen=True, gc=False):
    """Fail a run whose driver waited in place for an approver and stopped."""


class EndUnansweredRun(Struct, frozen=True, gc=False):
    """End a run because these calls were not settled in time."""

    calls: tuple[Call, ...]


class Idle(Struct, frozen=True, gc=False):
    """Wait in place for effects in flight, for an approver, or until an instant."""

    until: int | None = None
    in_place: bool = False  # only an approver is waited for


class Park(Struct, frozen=True, gc=False):
    """Release the lease; `due` is the next instant at which the session can continue on its own."""

    due: int | None = None


Effect = (
    AskModel
    | Summarize
    | StartCalls
    | HandleInterrupted
    | FireTimers
    | CloseCalls
    | CloseStrays
    | CheckResults
    | CheckCallers
    | DeliverMail
    | StartQueued
    | SettleChildCalls
    | CancelChildren
    | FailLostRun
    | EndUnansweredRun
    | AskForBudget
    | FailRun
    | Idle
    | Park
)
