"""What is to become of a call: the verdicts that the runtime asks tools for and the log keeps."""

from typing import Literal

from msgspec import Struct

OnCrash = Literal["tell", "retry", "ask"]


class Start(Struct, frozen=True, gc=False):
    """Run it now."""

    effect_id: str


class RequireApproval(Struct, frozen=True, gc=False):
    """Ask a person first."""

    pending_id: str
    effect_id: str
    prompt: str
    expires_at: int | None = None


class Defer(Struct, frozen=True, gc=False):
    """Start it now; its result comes from outside."""

    pending_id: str
    effect_id: str
    expires_at: int | None = None


class Wait(Struct, frozen=True, gc=False):
    """Nothing runs: an answer or an instant settles it."""

    pending_id: str
    effect_id: str
    kind: Literal["question", "timer"]
    prompt: str | None = None
    until: int | None = None


class Reject(Struct, frozen=True, gc=False):
    """It cannot run; the model is told why."""

    text: str


Verdict = Start | RequireApproval | Defer | Wait | Reject


class Finish(Struct, frozen=True, gc=False):
    """The answer ends the run with this output (JSON)."""

    output: bytes


class Correct(Struct, frozen=True, gc=False):
    """The answer does not fit the output type; the model is told how."""

    text: str


class GiveUp(Struct, frozen=True, gc=False):
    """The answer ends the run as failed."""

    error: str
    code: str
    hint: str | None = None


Ending = Finish | Correct | GiveUp
