"""What somebody asks for, about one pending call."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from perdure.core.pending.record import Verb


@dataclass(frozen=True, slots=True)
class Approve:
    """Run the call; `args` are changes over the stored arguments."""

    by: str
    via: str
    args: Mapping[str, Any] | None = None
    note: str | None = None
    remember: bool | str = False  # for the rest of the session: this call again, or a rule
    verb = Verb.APPROVE


@dataclass(frozen=True, slots=True)
class Deny:
    """Do not run the call (or: decline to answer)."""

    by: str
    via: str
    reason: str | None = None
    verb = Verb.DENY


@dataclass(frozen=True, slots=True)
class Respond:
    """Give this output instead of running the call (or: answer the question)."""

    by: str
    via: str
    output: str
    verb = Verb.RESPOND


@dataclass(frozen=True, slots=True)
class SubmitResult:
    """The outcome of a deferred call."""

    output: str
    title: str | None = None
    metadata: Mapping[str, Any] | None = None
    by: str | None = None
    via: str = "python"
    verb = Verb.RESULT


@dataclass(frozen=True, slots=True)
class SubmitError:
    """A deferred call failed."""

    error: str
    by: str | None = None
    via: str = "python"
    verb = Verb.ERROR


@dataclass(frozen=True, slots=True)
class CancelCall:
    """Give a pending call up."""

    by: str | None = None
    via: str = "python"
    verb = Verb.CANCEL


@dataclass(frozen=True, slots=True)
class Expire:
    """The deadline of a pending call has passed."""

    by: str | None = None
    via: str = "expiry"
    verb = Verb.EXPIRE


Command = Approve | Deny | Respond | SubmitResult | SubmitError | CancelCall | Expire


Word = Literal["approve", "deny"]

WORDS: Final[dict[str, Word]] = {
    "approve": "approve",
    "yes": "approve",
    "y": "approve",
    "deny": "deny",
    "no": "deny",
    "n": "deny",
}


def decision_in(text: str) -> Word | None:
    """The decision that the whole text is, in any case, with blanks around it; else None.

    A text that only contains such a word ("do not approve") says something, but decides nothing.
    """
    return WORDS.get(text.strip().casefold())
