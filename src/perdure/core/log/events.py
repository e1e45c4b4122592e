"""The events of a session: the closed list of facts that a log can hold.

Field names on the wire are part of the public surface: add, never rename. Everything public
about a session can be rebuilt from these alone.
"""

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from perdure.core.text import is_visible
from perdure.views.literals import CallKind, DecisionKind

Part = dict[str, Any]
Content = str | list[Part]
PENDING_EXECUTIONS: Final = "pending_executions"  # the metadata that holds saved states of runs
RAISED: Final = "raised"  # reason of a pending call: its own tool asked a person while it ran
BUDGET: Final = "budget"  # reason of a question without a call: the run has reached a limit


class ApprovalPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Conditions of a decision about a call: its kinds, its approvers and their number."""

    allowed_decisions: tuple[DecisionKind, ...] = field(default=(), name="allowedDecisions")
    approvers: tuple[str, ...] = ()  # names and roles; empty: everyone who may decide
    min_approvals: int = field(default=1, name="minApprovals")
    not_by_starter: bool = field(default=False, name="notByStarter")


class Bound(Struct, frozen=True, omit_defaults=True, gc=False):
    """A budget that bounds a run: its own, or that of a run that launched it."""

    run: str  # id of the run whose budget it is
    stream: str  # of that run's session
    limits: dict[str, float]


class ReachedLimit(Struct, frozen=True, gc=False):
    """A limit of a budget at which a run waits, and everything that was spent by then."""

    run: str  # id of the run whose budget it is
    limit: str
    value: float
    spent: dict[str, float]


class User(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message was sent to the session."""

    role: str
    content: Content
    task_id: str | None = field(default=None, name="taskID")
    key: str | None = None
    by: str | None = None
    redact: bool = False  # it contains arguments that are not shown
    mail: tuple[str, ...] = ()  # ids of the mail that it delivers
    bounds: tuple[Bound, ...] = ()  # of the run that it starts, if another session's run sent it
    queued: bool = False  # it was queued until the run before it ended


class Assistant(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One model response. `native` is the provider's response, byte for byte."""

    role: str
    content: str
    agent: str
    turn: int = 0  # 0, as in logs of other programs: the next turn
    task_id: str | None = field(default=None, name="taskID")
    request_head: int = field(default=0, name="requestHead")  # 0: everything before it
    model: str | None = None
    provider: str | None = None
    thinking: str | None = None
    output: Raw | UnsetType = UNSET  # not None: msgspec cannot decode `Raw | None`
    stop: str | None = None
    usage: dict[str, float] | None = None
    native: Raw | UnsetType = UNSET
    redact: bool = False  # `native` contains arguments that are not shown


class ToolCall(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The model requested a tool call."""

    id: str
    tool: str
    params: dict[str, Any]
    agent: str
    turn: int = 0  # 0: the turn of the response before it
    task_id: str | None = field(default=None, name="taskID")
    redact: tuple[str, ...] = ()  # names of arguments that are not shown


class ToolStarted(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The intent to run a call, committed before its effect starts."""

    id: str
    effect_id: str = field(name="effectID")
    attempt: int
    epoch: int
    task_id: str | None = field(default=None, name="taskID")


class ToolResult(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The outcome of a call as the model sees it; each call has exactly one.

    A second one is recorded only if a submitted result turns out to be invalid: `replaces`.
    """

    tool_call_id: str = field(name="toolCallId")
    result: Content | dict[str, Any]  # an object only in logs of other programs
    is_error: bool = field(default=False, name="isError")
    interrupted: bool = False
    title: str | None = None
    metadata: dict[str, Any] | None = None
    replaces: bool = False
    mail: tuple[str, ...] = ()  # ids of the mail that it delivers
    task_id: str | None = field(default=None, name="taskID")


class Pending(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A call became pending: its outcome comes from outside.

    A run that has reached a limit of its budget waits without a call: `callID` is empty.
    """

    pending_id: str = field(name="pendingID")
    kind: CallKind
    call_id: str = field(name="callID")
    tool: str
    input: dict[str, Any]
    effect_id: str = field(name="effectID")
    prompt: str | None = None
    expires_at: int | None = field(default=None, name="expiresAt")
    reason: str | None = None
    epoch: int | None = None  # of the driver that waits for it in place; None: no driver does
    details: dict[str, Any] | None = None  # that the tool shows to approvers
    schema: dict[str, Any] | None = None  # of the answer to a question
    choices: list[Any] | None = None  # of which the answer must be a member
    policy: ApprovalPolicy | None = None
    started_by: tuple[str, ...] = field(default=(), name="startedBy")  # authors of the run
    mail: str | None = None  # of a call of kind `child`: id of the mail that settles it
    external: bool = (
        False  # of a call of kind `tool`: perdure starts nothing, and no `tool_started` follows
    )
    budget: ReachedLimit | None = None  # of a question without a call
    task_id: str | None = field(default=None, name="taskID")
    redact: tuple[str, ...] = ()  # names of arguments that are not shown


class Progress(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Progress of a pending call."""

    pending_id: str = field(name="pendingID")
    call_id: str = field(name="callID")
    percent: float | None = None
    message: str | None = None
    sequence: int | None = None  # as the submitter counts its reports
    returned: bool = False
    started: bool = False
    external_ref: str | None = field(default=None, name="externalRef")
    output: str | None = None
    estimated_duration: int | None = field(default=None, name="estimatedDuration")
    expires_at: int | None = field(default=None, name="expiresAt")  # 0: the deadline was removed
    problem: str | None = None
    task_id: str | None = field(default=None, name="taskID")


class Decision(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An approver decided about one call, with exactly these arguments."""

    pending_id: str = field(name="pendingID")
    kind: DecisionKind
    by: str
    via: str
    call_id: str = field(name="callID")
    digest: str = ""
    args: dict[str, Any] | None = None
    reason: str | None = None
    note: str | None = None
    remember: bool | str = False  # for the rest of the session: exactly this call, or a rule
    output: Any = UNSET  # the answer that the tool gets which asked for it
    late: bool = False
    task_id: str | None = field(default=None, name="taskID")
    redact: tuple[str, ...] = ()  # names of arguments that are not shown


class Vote(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An approver approved a call that several approvers must approve."""

    pending_id: str = field(name="pendingID")
    by: str
    via: str
    call_id: str = field(name="callID")
    digest: str = ""
    args: dict[str, Any] | None = None
    note: str | None = None
    missing: int = 0  # approvals that are still missing
    task_id: str | None = field(default=None, name="taskID")
    redact: tuple[str, ...] = ()  # names of arguments that are not shown


class Revoked(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A remembered permission was revoked: such calls are judged by the rules again."""

    decision: int  # the seq of the decision event
    by: str
    via: str


class Settled(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A pending call was settled without a decision."""

    pending_id: str = field(name="pendingID")
    status: str
    call_id: str = field(name="callID")
    by: str | None = None
    late: bool = False
    unchecked: bool = False  # its result was submitted where the tool's validator is not known
    task_id: str | None = field(default=None, name="taskID")


class AgentStart(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A worker started to drive a run, with this version of the agent."""

    run: str
    agent: str
    digest: str = ""
    worker: str = ""
    tools: dict[str, str] | None = None
    since: int = 0  # start of the drive, if its running time is limited
    trace: str = ""  # trace id of the drive, if tracing is on


class AgentComplete(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The run ended with this output."""

    run: str
    output: Raw
    duration: int


class AgentError(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The run failed."""

    run: str
    error: str
    code: str = "ERROR"
    hint: str | None = None


class Retry(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A model request failed; it is retried at `next`, by the same model or by a fallback."""

    attempt: int  # the attempt that failed, counted per turn and model
    message: str
    next: int
    task_id: str | None = field(default=None, name="taskID")
    model: str | None = None  # the fallback for the rest of the run; None: no change


class Compacted(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """From here on a summary replaces everything up to an event in model requests."""

    up_to: int = field(name="upTo")  # responses up to it, their results and their input
    summary: str
    first: bool = False  # the first message is sent unchanged before the summary
    turn: int = 0  # the turn that was about to be requested
    tokens: int = 0  # estimated tokens of the request without the summary
    model: str | None = None
    provider: str | None = None
    usage: dict[str, float] | None = None
    task_id: str | None = field(default=None, name="taskID")
    redact: bool = False  # the summary may contain arguments that are not shown


class CompactionRequested(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A caller requested a compaction, regardless of the length of the conversation."""

    keep: int | None = None  # turns at the end that are kept unchanged; None: the agent's setting
    instructions: str | None = None  # in addition to the agent's instructions for summaries
    by: str | None = None


class CompactionFailed(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A requested compaction failed; the conversation is unchanged."""

    error: str
    code: str = "ERROR"
    hint: str | None = None


class AgentChanged(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The agent's tools changed since the session was last driven."""

    added: list[str]
    removed: list[str]
    changed: list[str]


class Cancelled(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A caller cancelled the run: after this event it starts no more effects."""

    by: str | None = None
    reason: str | None = None
    keep_children: bool = field(default=False, name="keepChildren")
    task_id: str | None = field(default=None, name="taskID")


class Forked(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The session is a copy of another session up to an event."""

    source: str = field(name="from")
    at: int


class Metadata(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Changed metadata; None removes a key."""

    changes: dict[str, Any]


class Restored(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The run continues from a saved execution state: its usage and its response so far."""

    task_id: str = field(default="", name="taskID")
    turns: int
    tokens: float = 0
    response: str = ""
    final: bool = False
    first_calls: list[dict[str, Any]] | None = field(default=None, name="firstCalls")
    sub_agents: list[str] = field(default_factory=list, name="subAgents")
    show_thinking: bool = field(default=False, name="showThinking")
    started_by: tuple[str, ...] = field(default=(), name="startedBy")  # authors of the run


class Launched(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The session is a background agent: the first event of a child's log."""

    task_id: str = field(name="taskID")
    run: str  # id of its first run
    parent: str | None = None
    ancestry: tuple[str, ...] = ()  # session ids from the root to the parent
    tools: tuple[str, ...] | None = None  # the tools it may use; None: those of its agent
    max_depth: int = field(default=0, name="maxDepth")  # of the tree, as the root's agent sets it
    description: str = ""


class FollowUpQueued(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A follow-up waits until the run of this background agent ends, and then starts another."""

    content: Content
    key: str | None = None
    by: str | None = None
    bounds: tuple[Bound, ...] = ()  # of the run that it starts, if another session's run sent it


class FollowUpDropped(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The task of this background agent was cleared before a queued follow-up started a run."""

    by: str | None = None


class Delegation(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A background agent was launched."""

    task_id: str = field(name="taskID")
    session_id: str = field(name="sessionID")
    agent: str
    run: str = ""  # id of the child's first run
    description: str = ""


class DelegationQueued(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A follow-up to a background agent waits until its run ends, and then starts another."""

    task_id: str = field(name="taskID")
    by: str | None = None


class DelegationResumed(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A background agent started another run: `number` counts all its runs."""

    task_id: str = field(name="taskID")
    run: str = ""  # id of that run
    number: int
    resume_count: int = field(default=0, name="resumeCount")
    by: str | None = None


class DelegationComplete(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A run of a background agent ended."""

    task_id: str = field(name="taskID")
    status: str
    number: int = 1  # of the run that ended
    quiet: bool = False  # the parent itself ended it: there is no mail
    queued: bool = False  # a queued follow-up starts the next run
    reserved_until: int | None = field(default=None, name="reservedUntil")  # for a waiting caller
    reserved_by: str | None = field(default=None, name="reservedBy")  # holder of its process


class DelegationCleared(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Background agents were removed from the list; their sessions remain."""

    task_ids: tuple[str, ...] = field(name="taskIDs")
    by: str | None = None


class MailTaken(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A caller outside the session took the outcome of a background agent."""

    mail: tuple[str, ...]
    by: str | None = None


class ReservationEnded(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A caller does not wait any more for an outcome that was reserved for it."""

    mail: tuple[str, ...]


class SessionRecovery(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The problems that were found when the session was read, and how a rebuilt one continues."""

    issues: list[Any]
    lost: int = 0  # records: remembered permissions are void, since a revocation may be among them
    interrupted: tuple[str, ...] = ()  # ids of open calls that may have run: nobody starts them
    incomplete: bool = False  # a call of which nothing is left may have run: the run fails


class SafetyLimit(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A limit of the agent was reached."""

    limit: str
    value: float
    task_id: str | None = field(default=None, name="taskID")


class AgentIteration(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Iteration count of an agent; for display only."""

    iteration: int = 0


class TodoUpdate(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The to-do list of an agent; for display only."""

    todos: list[Any]


class Unknown(Struct, frozen=True, gc=False):
    """An event of a type or version that this code does not know: kept and ignored."""

    type: str
    data: bytes


Event = (
    User
    | Assistant
    | ToolCall
    | ToolStarted
    | ToolResult
    | Pending
    | Progress
    | Decision
    | Vote
    | Revoked
    | Settled
    | AgentStart
    | AgentComplete
    | AgentError
    | Retry
    | Compacted
    | CompactionRequested
    | CompactionFailed
    | AgentChanged
    | Cancelled
    | Forked
    | Metadata
    | Restored
    | Launched
    | FollowUpQueued
    | FollowUpDropped
    | Delegation
    | DelegationQueued
    | DelegationResumed
    | DelegationComplete
    | DelegationCleared
    | MailTaken
    | ReservationEnded
    | SessionRecovery
    | SafetyLimit
    | AgentIteration
    | TodoUpdate
    | Unknown
)


class StampedEvent(Struct, frozen=True, gc=False):
    """An event with its seq and instant in the log.

    Not a tuple: the garbage collector would visit each of a long log in every full collection.
    """

    seq: int
    at: int
    event: Event


def is_blank(content: Content) -> bool:
    """Return True if a message has neither a visible character nor a file."""
    parts = [{"text": content}] if isinstance(content, str) else content
    return all("text" in part and not is_visible(str(part["text"])) for part in parts)


def raw_json(value: Any) -> Raw:
    """Return a JSON value encoded as it is written to the log."""
    return Raw(msgspec.json.encode(value))
