"""Views of pending calls, of decisions about them, and of what settling them returns."""

from collections.abc import Awaitable, Generator, Mapping
from datetime import datetime
from typing import Any, Final, Protocol

from msgspec import Struct, field

from perdure.errors import Refused
from perdure.views.base import Number, View, Word, bound, bound_verbs, instant
from perdure.views.findings import Finding
from perdure.views.literals import Act, CallKind, DecisionKind, PendingStatus


class Completed:
    """Awaitable of something that is done already."""

    def __await__(self) -> Generator[Any, None, None]:
        """Return at once."""
        yield from ()


COMPLETED: Final = Completed()


class Decision(View, frozen=True, kw_only=True):
    """An approver's decision about a pending call."""

    kind: Word[DecisionKind]
    by: str
    via: str
    at_ms: int
    args: dict[str, Any] | None = None
    reason: str | None = None
    note: str | None = None
    output: Any = None  # of a response
    remember: bool | str = False  # for the rest of the session

    @property
    def at(self) -> datetime:
        """The instant of the decision."""
        return instant(self.at_ms)


class CallTimes(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Instants of a pending call, in ms since 1970."""

    created: int
    started: int | None = None
    completed: int | None = None


class CallResult(View, frozen=True, kw_only=True):
    """The result of a deferred call, as it was submitted."""

    title: str
    output: Any
    metadata: dict[str, Any] = field(default_factory=dict)


class CallProgress(View, frozen=True, kw_only=True):
    """The last progress that a tool or a submitter reported."""

    percent: Number | None = None
    message: str | None = None
    at_ms: int | None = None

    @property
    def at(self) -> datetime | None:
        """The instant of the report."""
        return None if self.at_ms is None else instant(self.at_ms)


class BudgetLimit(View, frozen=True, kw_only=True):
    """A limit of a budget at which a run waits, and what was spent by then."""

    run: str
    limit: str
    value: Number
    spent: dict[str, Number]


class InputText(Struct, frozen=True, tag="text", tag_field="type"):
    """Part of a message with text."""

    text: str


class InputData(Struct, frozen=True, tag="data", tag_field="type"):
    """Part of a message with data."""

    data: dict[str, Any]


class InputMessage(Struct, frozen=True):
    """The message that asks an approver about a call, as text and as data."""

    role: str
    parts: tuple[InputText | InputData, ...]
    task_id: str | None = None


class PendingCall(View, frozen=True, kw_only=True):
    """A call that waits for a person or a machine, or did.

    A tool parameter with this annotation receives its own call and is not in the schema.
    """

    id: str
    kind: Word[CallKind]
    status: Word[PendingStatus]
    session_id: str
    tenant: str = ""
    agent: str
    tool: str
    args: dict[str, Any] = field(name="input")
    call_id: str
    effect_id: str
    task_id: str = ""
    message_id: str = ""
    part_id: str = ""
    prompt: str | None = None
    reason: str | None = None  # why it waits: interrupted, raised, budget
    details: dict[str, Any] | None = None  # that the tool shows to approvers
    schema: dict[str, Any] | None = None  # of the answer
    choices: tuple[Any, ...] | None = None  # of which the answer must be a member
    external_ref: str | None = None
    estimated_duration: int | None = None
    time: CallTimes
    expires_at_ms: int | None = field(default=None, name="timeout")
    progress: CallProgress | None = None
    budget: BudgetLimit | None = None
    can: tuple[Word[Act], ...] = ()  # what the caller may do about it now
    allowed_decisions: tuple[Word[DecisionKind], ...] = ()  # of anybody
    approvers: tuple[str, ...] = ()  # names and roles; empty: everyone who may decide
    not_by_starter: bool = False
    min_approvals: int = 1
    missing_approvals: int = 0
    votes: tuple[Decision, ...] = ()  # approvals so far, if it needs several
    started_by: tuple[str, ...] = ()  # authors of the run
    decision: Decision | None = None
    result: CallResult | None = None
    error: str | None = None
    output: str | None = None
    by: str | None = None  # who settled it, if not by a decision
    via: str | None = None
    late: bool = False
    blocking: bool = False  # a process waits for it in its memory
    ancestry: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()  # what it waits for, why it cannot run, and steps
    callback_url: str | None = None
    webhook_url: str | None = None  # another name of the same
    request: InputMessage | None = None  # of approvals and questions

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def is_open(self) -> bool:
        """True until it has its outcome."""
        return self.status in ("waiting", "processing")

    @property
    def created_at(self) -> datetime:
        """The instant from which it waits."""
        return instant(self.time.created)

    @property
    def expires_at(self) -> datetime | None:
        """Its deadline; None without one."""
        return None if self.expires_at_ms is None else instant(self.expires_at_ms)

    @property
    def callback_secret(self) -> str:
        """The secret that signs the result. Refused outside the tool of this call."""
        secret = bound(self, "_secret")
        if secret is None:
            raise Refused(
                f"the callback secret of {self.id} is available only inside its tool",
                code="NOT_IN_TOOL",
                hint="read call.callback_secret in the tool, and pass it to the submitter",
            )
        return str(secret())

    def mark_started(self) -> Awaitable[None]:
        """Mark the external work as started (`processing`). No effect outside the tool.

        An async tool awaits it; in a plain function it is done when the call returns.
        """
        mark = bound(self, "_mark_started")
        return COMPLETED if mark is None else mark()

    async def approve(
        self,
        *,
        by: str | None = None,
        args: Mapping[str, Any] | None = None,
        note: str | None = None,
        remember: bool | str = False,
        all_tools: bool = False,
    ) -> "DecidedCall":
        """Approve exactly this call, with `args` merged over its arguments."""
        options: Any = {"note": note, "remember": remember, "all_tools": all_tools}
        return await self._verbs("approve").approve(self, by=by, args=args, **options)

    async def deny(
        self,
        *,
        by: str | None = None,
        reason: str | None = None,
        remember: bool | str = False,
        all_tools: bool = False,
    ) -> "DecidedCall":
        """Deny it; the model gets the reason."""
        options: Any = {"remember": remember, "all_tools": all_tools}
        return await self._verbs("deny").deny(self, by=by, reason=reason, **options)

    async def respond(self, output: Any, *, by: str | None = None) -> "DecidedCall":
        """Answer a question, or give an output instead of running the call."""
        return await self._verbs("respond").respond(self, output, by=by)

    async def submit_result(
        self,
        output: Any,
        *,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> "DecidedCall":
        """Submit the result of a deferred call: text or any other JSON value."""
        verbs = self._verbs("submit_result")
        return await verbs.submit_result(self, output, title=title, metadata=metadata, by=by)

    async def submit_error(self, error: str, *, by: str | None = None) -> "DecidedCall":
        """Submit the error of a deferred call."""
        return await self._verbs("submit_error").submit_error(self, error, by=by)

    async def cancel(self, *, by: str | None = None) -> "DecidedCall":
        """Cancel it; the model gets an error."""
        return await self._verbs("cancel_call").cancel_call(self, by=by)

    def _verbs(self, verb: str) -> "CallOwner":
        hint = (
            f"await rt.{verb}({self.id!r}, …), or first call = await rt.pending_call({self.id!r})"
        )
        verbs: CallOwner = bound_verbs(self, f"call {self.id}", hint)
        return verbs


CallOrID = PendingCall | str


def call_id(call: CallOrID) -> str:
    """Return the id of a call, which may be the id itself."""
    return call.id if isinstance(call, PendingCall) else call


class DecidedCall(PendingCall, frozen=True, kw_only=True):
    """A call after a decision, a result or its cancellation; `duplicate`: it had it before."""

    success: bool = True
    duplicate: bool = False


class CallOwner(Protocol):
    """Runtime or client of which a call came, with the verbs on it."""

    async def approve(
        self,
        call: CallOrID,
        *,
        by: str | None = None,
        args: Mapping[str, Any] | None = None,
        note: str | None = None,
        remember: bool | str = False,
        all_tools: bool = False,
    ) -> DecidedCall:
        """Approve a call."""

    async def deny(
        self,
        call: CallOrID,
        *,
        by: str | None = None,
        reason: str | None = None,
        remember: bool | str = False,
        all_tools: bool = False,
    ) -> DecidedCall:
        """Deny a call."""

    async def respond(self, call: CallOrID, output: Any, *, by: str | None = None) -> DecidedCall:
        """Answer a question."""

    async def submit_result(
        self,
        call: CallOrID,
        output: Any,
        *,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> DecidedCall:
        """Submit a result."""

    async def submit_error(
        self, call: CallOrID, error: str, *, by: str | None = None
    ) -> DecidedCall:
        """Submit an error."""

    async def cancel_call(self, call: CallOrID, *, by: str | None = None) -> DecidedCall:
        """Cancel a call."""


class PendingPage(View, frozen=True, kw_only=True):
    """Page of a list of pending calls; `count` is the number of all that matched at first."""

    pending: tuple[PendingCall, ...]
    count: int
    next: str | None = None
