"""What a driver must do next, as values."""

from msgspec import Struct

from perdure.core.session.calls import Call


class AskModel(Struct, frozen=True, gc=False):
    """Request the next turn."""

    turn: int


class Summarise(Struct, frozen=True, gc=False):
    """Request the summary that somebody asked for."""


class StartCalls(Struct, frozen=True, gc=False):
    """Intend and run these calls."""

    calls: tuple[Call, ...]


class Interrupted(Struct, frozen=True, gc=False):
    """Decide about calls that an earlier driver intended."""

    calls: tuple[Call, ...]


class FireTimers(Struct, frozen=True, gc=False):
    """Settle timers whose instant has come."""

    calls: tuple[Call, ...]


class CloseCalls(Struct, frozen=True, gc=False):
    """Stop what runs and settle the open calls of a cancelled run."""


class CloseStrays(Struct, frozen=True, gc=False):
    """Close pending records whose call is already settled."""

    calls: tuple[Call, ...]


class Fail(Struct, frozen=True, gc=False):
    """End the run as failed."""

    error: str
    code: str
    hint: str
    limit: str | None = None
    value: float = 0
    stops: bool = False  # what runs is called off, and what is open closed


class GiveUpLost(Struct, frozen=True, gc=False):
    """End a run as failed whose driver waited in place for a person, and is gone."""


class GiveUpUnanswered(Struct, frozen=True, gc=False):
    """End a run for which these calls were not answered in time."""

    calls: tuple[Call, ...]


class Idle(Struct, frozen=True, gc=False):
    """Nothing to decide now: effects in flight will report, or a person; or the instant comes."""

    until: int | None = None
    in_place: bool = False  # only a person is waited for


class Park(Struct, frozen=True, gc=False):
    """Give the lease back; `due` is the next instant at which something happens by itself."""

    due: int | None = None


Effect = (
    AskModel
    | Summarise
    | StartCalls
    | Interrupted
    | FireTimers
    | CloseCalls
    | CloseStrays
    | GiveUpLost
    | GiveUpUnanswered
    | Fail
    | Idle
    | Park
)
