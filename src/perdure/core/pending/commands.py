"""Commands about one pending call."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perdure.core.pending.record import Verb
from perdure.views.literals import Role


@dataclass(frozen=True, slots=True)
class Approve:
    """Run the call; `args` override stored arguments."""

    by: str
    via: str
    args: Mapping[str, Any] | None = None
    note: str | None = None
    remember: bool | str = False  # for the rest of the session: this call again, or a rule
    all_tools: bool = False  # the rule may cover every tool
    role: Role | None = None  # of the approver, if it is authenticated
    verb = Verb.APPROVE


@dataclass(frozen=True, slots=True)
class Deny:
    """Do not run the call (or: decline to answer)."""

    by: str
    via: str
    reason: str | None = None
    remember: bool | str = False  # for the rest of the session: this call again, or a rule
    all_tools: bool = False  # the rule may cover every tool
    role: Role | None = None
    verb = Verb.DENY


@dataclass(frozen=True, slots=True)
class Respond:
    """Settle the call with this output without running it (or: answer the question)."""

    by: str
    via: str
    output: Any  # JSON
    role: Role | None = None
    verb = Verb.RESPOND


@dataclass(frozen=True, slots=True)
class SubmitResult:
    """Settle a deferred call with its result: text or any other JSON value."""

    output: Any
    title: str | None = None
    metadata: Mapping[str, Any] | None = None
    by: str | None = None
    via: str = "python"
    verb = Verb.RESULT


@dataclass(frozen=True, slots=True)
class SubmitError:
    """Settle a deferred call as failed."""

    error: str
    by: str | None = None
    via: str = "python"
    verb = Verb.ERROR


@dataclass(frozen=True, slots=True)
class CancelCall:
    """Cancel a pending call."""

    by: str | None = None
    via: str = "python"
    verb = Verb.CANCEL


@dataclass(frozen=True, slots=True)
class Expire:
    """Settle a pending call whose deadline has passed."""

    by: str | None = None
    via: str = "expiry"
    verb = Verb.EXPIRE


Decide = Approve | Deny | Respond
Command = Approve | Deny | Respond | SubmitResult | SubmitError | CancelCall | Expire
