"""What a driver must do next, as values."""

from dataclasses import dataclass

from holdfast.core.calls import Call


@dataclass(frozen=True, slots=True)
class AskModel:
    """Request the next turn."""

    turn: int


@dataclass(frozen=True, slots=True)
class StartCalls:
    """Intend and run these calls."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Decide about calls that an earlier driver intended."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class FireTimers:
    """Settle timers whose instant has come."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class CloseCalls:
    """Stop what runs and settle the open calls of a cancelled run."""


@dataclass(frozen=True, slots=True)
class CloseStrays:
    """Close pending records whose call is already settled."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Fail:
    """End the run as failed."""

    error: str
    code: str
    hint: str
    limit: str | None = None
    value: float = 0
    stops: bool = False  # what runs is called off, and what is open closed


@dataclass(frozen=True, slots=True)
class GiveUpLost:
    """End a run as failed whose driver waited in place for a person, and is gone."""


@dataclass(frozen=True, slots=True)
class GiveUpUnanswered:
    """End a run for which these calls were not answered in time."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to decide now: effects in flight will report, or a person; or the instant comes."""

    until: int | None = None
    in_place: bool = False  # only a person is waited for


@dataclass(frozen=True, slots=True)
class Park:
    """Give the lease back; `due` is the next instant at which something happens by itself."""

    due: int | None = None


Effect = (
    AskModel
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
