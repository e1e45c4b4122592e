"""Verdicts on calls that a model requested, and on responses that end a run."""

from typing import Any, Final, Literal

from msgspec import Struct

from perdure.core.log.events import ApprovalPolicy


class Start(Struct, frozen=True, gc=False):
    """Run it now."""

    effect_id: str


class RequireApproval(Struct, frozen=True, gc=False):
    """Require an approver's decision before it runs."""

    pending_id: str
    effect_id: str
    prompt: str
    expires_at: int | None = None
    policy: ApprovalPolicy | None = None
    details: dict[str, Any] | None = None


class Defer(Struct, frozen=True, gc=False):
    """Start it now; its result is submitted later."""

    pending_id: str
    effect_id: str
    expires_at: int | None = None


class Wait(Struct, frozen=True, gc=False):
    """Run nothing more: an answer, a result, an instant or a background agent settles it.

    Kind `tool` is for calls of external tools.
    """

    pending_id: str
    effect_id: str
    kind: Literal["question", "timer", "child", "tool"]
    prompt: str | None = None
    until: int | None = None
    schema: dict[str, Any] | None = None
    choices: list[Any] | None = None
    policy: ApprovalPolicy | None = None
    details: dict[str, Any] | None = None
    mail: str | None = None  # id of the mail of a background agent


class Reject(Struct, frozen=True, gc=False):
    """Do not run it; `text` tells the model why."""

    text: str


Verdict = Start | RequireApproval | Defer | Wait | Reject


class Finish(Struct, frozen=True, gc=False):
    """Complete the run with this output (JSON)."""

    output: bytes


class Correct(Struct, frozen=True, gc=False):
    """Ask the model to correct a response that does not fit the output type."""

    text: str


class GiveUp(Struct, frozen=True, gc=False):
    """End the run as failed."""

    error: str
    code: str
    hint: str | None = None


Ending = Finish | Correct | GiveUp

NOTHING_TO_COMPACT: Final = GiveUp("there is nothing to summarize", "NOTHING_TO_COMPACT")
