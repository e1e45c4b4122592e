"""Views of sessions: as they stand, as lists show them, and what they were."""

from datetime import datetime
from typing import Any, Generic, Literal, Self

from msgspec import Struct, field
from typing_extensions import TypeVar

from perdure.errors import Refused
from perdure.views.base import OUTPUT, Error, View, Word, bound, instant, replace, wire_name
from perdure.views.calls import DecidedCall, PendingCall
from perdure.views.findings import Finding
from perdure.views.literals import CallKind, RunState, StopReason
from perdure.views.usage import Usage

T_co = TypeVar("T_co", covariant=True, default=Any)


class IdleStatus(Struct, frozen=True, tag="idle", tag_field="type"):
    """Status of a session without a run that is under way."""


class BusyStatus(Struct, frozen=True, tag="busy", tag_field="type"):
    """Status of a session that is driven, or will be."""


class RetryStatus(Struct, frozen=True, tag="retry", tag_field="type"):
    """Status of a session whose model request failed and is sent again at `next`."""

    attempt: int
    message: str
    next: int


class WaitingStatus(
    Struct,
    frozen=True,
    tag="waiting_async",
    tag_field="type",
    rename=wire_name,
    omit_defaults=True,
):
    """Status of a session that waits for a call: its oldest open one."""

    pending_id: str
    tool: str
    since: int
    timeout: int | None = None  # its deadline, if it has one


SessionStatus = IdleStatus | BusyStatus | RetryStatus | WaitingStatus


class DrivingWorker(View, frozen=True, kw_only=True):
    """The worker that drives a session."""

    worker: str
    since_ms: int

    @property
    def since(self) -> datetime:
        """The instant of the last event that it wrote."""
        return instant(self.since_ms)


class SummaryRequest(View, frozen=True, kw_only=True):
    """A summary that was requested and is not recorded yet."""

    seq: int
    error: Error | None = None


class Permission(View, frozen=True, kw_only=True):
    """A decision that an approver made for the rest of a session."""

    number: int
    effect: Word[Literal["allow", "deny"]]
    tool: str
    rule: str | None = None
    args: dict[str, Any] | None = None
    text: str
    by: str
    at_ms: int

    @property
    def at(self) -> datetime:
        """The instant of the decision."""
        return instant(self.at_ms)


class LaunchedAgent(View, frozen=True, kw_only=True):
    """A background agent that a session launched."""

    task_id: str
    session_id: str
    agent: str
    description: str
    status: str
    resume_count: int


class Result(View, Generic[T_co], frozen=True, kw_only=True):
    """Snapshot of a session."""

    session_id: str
    tenant: str = ""
    agent: str
    queue: str = "default"
    task_id: str | None = None
    state: Word[RunState]
    status: SessionStatus
    output_json: Any = field(default=None, name="output")
    # Why the last response ended early.
    stop_reason: Word[StopReason] | None = None
    error: Error | None = None
    findings: tuple[Finding, ...] = ()  # where it stands, why it does not move, and steps
    driver: DrivingWorker | None = None
    next_at_ms: int | None = None
    compaction: SummaryRequest | None = None
    pending: tuple[PendingCall, ...] = ()  # its open calls, and those of the agents below it
    todos: tuple[Any, ...] = ()
    usage: Usage = Usage()
    tree_usage: Usage = Usage()  # with its children
    children: tuple[LaunchedAgent, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    permissions: tuple[Permission, ...] = ()
    seq: int = 0
    created_at_ms: int
    updated_at_ms: int
    parent: str | None = None

    @property
    def output(self) -> T_co | None:
        """The output of the last run: a text, or a value of the agent's output type.

        Pickled or read from JSON, it is plain JSON.
        """
        value = bound(self, OUTPUT)
        return self.output_json if value is None else value  # type: ignore[no-any-return]

    def __copy__(self) -> Self:
        """Return the snapshot with its typed output."""
        return replace(self)

    @property
    def created_at(self) -> datetime:
        """The instant of its first event."""
        return instant(self.created_at_ms)

    @property
    def updated_at(self) -> datetime:
        """The instant of its last event."""
        return instant(self.updated_at_ms)

    @property
    def next_at(self) -> datetime | None:
        """The instant from which it is driven again; None while it waits for a call or is over."""
        return None if self.next_at_ms is None else instant(self.next_at_ms)

    def unwrap(self) -> T_co:
        """Return the output. Raises the error of a failed run, else Refused NOT_FINISHED."""
        if self.state == "completed":
            return self.output  # type: ignore[return-value]
        if self.error is not None:
            raise self.error.to_exception()
        raise Refused(
            f"session {self.session_id!r} is {self.state}, not completed",
            code="NOT_FINISHED",
            hint=f"perdure sessions show {self.session_id}",
        )


class SessionPage(View, frozen=True, kw_only=True):
    """Page of a list of sessions by id."""

    sessions: tuple[Result, ...]
    next: str | None = None


class WaitingCall(View, frozen=True, kw_only=True):
    """A call that a session waits for, as a list shows it."""

    pending_id: str
    kind: Word[CallKind]
    tool: str
    prompt: str | None = None
    external_ref: str | None = None
    since_ms: int
    expires_at_ms: int | None = field(default=None, name="timeout")

    @property
    def since(self) -> datetime:
        """The instant from which it waits."""
        return instant(self.since_ms)

    @property
    def expires_at(self) -> datetime | None:
        """Its deadline; None without one."""
        return None if self.expires_at_ms is None else instant(self.expires_at_ms)


class SessionSummary(View, frozen=True, kw_only=True):
    """A session as its index entry has it; no log was read.

    Turns and usage are those of the moment at which it was last parked.
    """

    session_id: str
    tenant: str = ""
    agent: str
    queue: str = "default"
    task_id: str | None = None
    state: Word[RunState]
    findings: tuple[Finding, ...] = ()
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    parent: str | None = None
    turns: int = 0
    usage: Usage = Usage()
    waiting_for: tuple[WaitingCall, ...] = ()
    seq: int = 0
    created_at_ms: int
    updated_at_ms: int

    @property
    def created_at(self) -> datetime:
        """The instant of its first event."""
        return instant(self.created_at_ms)

    @property
    def updated_at(self) -> datetime:
        """The instant of its last event."""
        return instant(self.updated_at_ms)


class SummaryPage(View, frozen=True, kw_only=True):
    """Page of a list of sessions, the last changed first.

    `count` is the number of all, null where a filter would have to read them.
    """

    sessions: tuple[SessionSummary, ...]
    count: int | None = None
    next: str | None = None


class PastCall(View, frozen=True, kw_only=True):
    """A call as it was after an event."""

    call_id: str
    tool: str
    args: dict[str, Any] = field(name="input")
    status: str
    kind: str | None = None
    pending_id: str | None = None


class PastState(View, frozen=True, kw_only=True):
    """A session as it was after an event."""

    session_id: str
    at: int
    timestamp_ms: int
    state: Word[RunState]
    task_id: str | None = None
    turns: int
    text: str
    usage: Usage
    todos: tuple[Any, ...]
    metadata: dict[str, Any]
    calls: tuple[PastCall, ...]
    children: tuple[str, ...]
    permissions: tuple[str, ...]

    @property
    def timestamp(self) -> datetime:
        """The instant of the event."""
        return instant(self.timestamp_ms)


class PausedState(View, frozen=True, kw_only=True):
    """The open calls of a session, and the states of its paused runs by task id."""

    session_id: str
    state: Word[RunState]
    pending: tuple[PendingCall, ...]
    pending_executions: dict[str, Any] = field(name="pending_executions")
    age: int


class PermissionList(View, frozen=True, kw_only=True):
    """The decisions that approvers made for the rest of a session."""

    session_id: str
    permissions: tuple[Permission, ...]


class DeletedSession(View, frozen=True, kw_only=True):
    """A session that was deleted, with the last state of its run."""

    session_id: str
    deleted: bool = True
    state: str


class MessageList(View, frozen=True, kw_only=True):
    """The conversation of a session in parts, each call with its status."""

    session_id: str
    messages: list[dict[str, Any]]


class MessageReceipt(Result, frozen=True, kw_only=True):
    """The session after a message; `decided` says whether it decided about a call."""

    decided: bool = False
    pending_id: str | None = None
    duplicate: bool = False


class DecisionReceipt(DecidedCall, frozen=True, kw_only=True):
    """A call after a decision; `session` is its session if the caller waits for it."""

    session: Result | None = None


class DecidedCalls(View, frozen=True, kw_only=True):
    """Calls about which one request decided."""

    success: bool = True
    decisions: tuple[DecidedCall, ...]


class SubmittedResult(Struct, frozen=True, kw_only=True, rename=wire_name, omit_defaults=True):
    """The session whose call was settled; `session` is its state if the caller waits for it."""

    success: bool
    session_id: str
    duplicate: bool = False
    session: Result | None = None
