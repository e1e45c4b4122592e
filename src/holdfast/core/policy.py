"""What is to become of a call: the verdicts that the runtime asks tools for and the log keeps."""

from dataclasses import dataclass
from typing import Literal

OnCrash = Literal["tell", "retry", "ask"]


@dataclass(frozen=True, slots=True)
class Start:
    """Run it now."""

    effect_id: str


@dataclass(frozen=True, slots=True)
class Gate:
    """Ask a person first."""

    pending_id: str
    effect_id: str
    prompt: str
    expires_at: int | None = None


@dataclass(frozen=True, slots=True)
class Defer:
    """Start it now; its result comes from outside."""

    pending_id: str
    effect_id: str
    expires_at: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing runs: an answer or an instant settles it."""

    pending_id: str
    effect_id: str
    kind: Literal["question", "timer"]
    prompt: str | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """It cannot run; the model is told why."""

    text: str


Verdict = Start | Gate | Defer | Wait | Reject


@dataclass(frozen=True, slots=True)
class Finish:
    """The answer ends the run with this output (JSON)."""

    output: bytes


@dataclass(frozen=True, slots=True)
class Correct:
    """The answer does not fit the output type; the model is told how."""

    text: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The answer ends the run as failed."""

    error: str
    code: str
    hint: str | None = None


Ending = Finish | Correct | GiveUp
