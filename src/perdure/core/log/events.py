"""The events of a session: the closed list of facts that a log can hold.

Field names on the wire are part of the public surface: add, never rename. Everything public
about a session can be rebuilt from these alone.
"""

from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

Part = dict[str, Any]
Content = str | list[Part]
CallKind = Literal["tool", "approval", "question", "child", "timer"]
DecisionKind = Literal["approve", "edit", "deny", "respond"]
PENDING_EXECUTIONS: Final = "pending_executions"  # the metadata that holds saved states of runs


class User(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Somebody said something to the session."""

    role: str
    content: Content
    task_id: str | None = field(default=None, name="taskID")
    key: str | None = None
    by: str | None = None
    redact: bool = False  # it holds arguments that are not shown


class Assistant(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One model answer. `native` is what the provider sent, byte for byte."""

    role: str
    content: str
    agent: str
    turn: int = 0  # 0, as in a log that is not ours: the next one
    task_id: str | None = field(default=None, name="taskID")
    request_head: int = field(default=0, name="requestHead")  # 0: all that stands before it
    model: str | None = None
    provider: str | None = None
    thinking: str | None = None
    output: Raw | UnsetType = UNSET  # not None: msgspec reads no `Raw | None`
    stop: str | None = None
    usage: dict[str, float] | None = None
    native: Raw | UnsetType = UNSET
    redact: bool = False  # what the provider sent holds arguments that are not shown


class ToolCall(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The model asked for a tool."""

    id: str
    tool: str
    params: dict[str, Any]
    agent: str
    turn: int = 0  # 0: that of the answer before it
    task_id: str | None = field(default=None, name="taskID")
    redact: tuple[str, ...] = ()  # names of arguments that are not shown


class ToolStarted(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The intent to run a call, recorded before the deed."""

    id: str
    effect_id: str = field(name="effectID")
    attempt: int
    epoch: int
    task_id: str | None = field(default=None, name="taskID")


class ToolResult(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What the model is told about a call; there is one for each."""

    tool_call_id: str = field(name="toolCallId")
    result: Content | dict[str, Any]  # an object only in logs that are not ours
    is_error: bool = field(default=False, name="isError")
    interrupted: bool = False
    title: str | None = None
    metadata: dict[str, Any] | None = None
    task_id: str | None = field(default=None, name="taskID")


class Pending(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A call now waits for somebody or something outside."""

    pending_id: str = field(name="pendingID")
    kind: CallKind
    call_id: str = field(name="callID")
    tool: str
    input: dict[str, Any]
    effect_id: str = field(name="effectID")
    prompt: str | None = None
    expires_at: int | None = field(default=None, name="expiresAt")
    reason: str | None = None
    epoch: int | None = None  # of the driver that waits for it in place; None: nobody needs to
    task_id: str | None = field(default=None, name="taskID")
    redact: tuple[str, ...] = ()  # names of arguments that are not shown


class Progress(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """News of a call that still waits."""

    pending_id: str = field(name="pendingID")
    call_id: str = field(name="callID")
    percent: float | None = None
    message: str | None = None
    returned: bool = False
    started: bool = False
    external_ref: str | None = field(default=None, name="externalRef")
    output: str | None = None
    estimated_duration: int | None = field(default=None, name="estimatedDuration")
    expires_at: int | None = field(default=None, name="expiresAt")  # 0: no deadline any more
    problem: str | None = None
    task_id: str | None = field(default=None, name="taskID")


class Decision(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Somebody decided about one call, with exactly these arguments."""

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
    late: bool = False
    task_id: str | None = field(default=None, name="taskID")
    redact: tuple[str, ...] = ()  # names of arguments that are not shown


class Revoked(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a decision had allowed for the rest of the session is asked about again."""

    decision: int  # the number of its event
    by: str
    via: str


class Settled(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A waiting call got its outcome without a decision."""

    pending_id: str = field(name="pendingID")
    status: str
    call_id: str = field(name="callID")
    by: str | None = None
    late: bool = False
    task_id: str | None = field(default=None, name="taskID")


class AgentStart(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A worker began a stretch of work on a run, with this version of the agent."""

    run: str
    agent: str
    digest: str = ""
    worker: str = ""
    tools: dict[str, str] | None = None
    since: int = 0  # when the drive began, where its time is limited
    trace: str = ""  # of the drive, where somebody collects traces


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
    """The model could not be asked; it will be again at `next`, or another one in its place."""

    attempt: int  # which one failed, of this turn and model
    message: str
    next: int
    task_id: str | None = field(default=None, name="taskID")
    model: str | None = None  # the one that the rest of the run is asked of; None: as before


class Compacted(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """From here on the model is told a summary in place of what was said up to an event."""

    up_to: int = field(name="upTo")  # answers up to it, their results, and what they had seen
    summary: str
    first: bool = False  # the first message stays beside it, as it was
    turn: int = 0  # the one that was to be asked for
    tokens: int = 0  # what the next request would have had, as far as we could know
    model: str | None = None
    provider: str | None = None
    usage: dict[str, float] | None = None
    task_id: str | None = field(default=None, name="taskID")
    redact: bool = False  # it may tell arguments that are not shown


class CompactionRequested(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Somebody wants what was said so far to be summarised, without waiting for its length."""

    keep: int | None = None  # turns at the end that stay as they are; None: as the agent says
    instructions: str | None = None  # what the model is asked besides what the agent says
    by: str | None = None


class CompactionFailed(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The summary that somebody wanted is not to be had; the conversation stays as it is."""

    error: str
    code: str = "ERROR"
    hint: str | None = None


class AgentChanged(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The agent's code is not what it was when the session last ran."""

    added: list[str]
    removed: list[str]
    changed: list[str]


class Cancelled(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Somebody cancelled the run: from here on no effect of it is intended."""

    by: str | None = None
    reason: str | None = None
    task_id: str | None = field(default=None, name="taskID")


class Forked(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The session is a copy of another one up to an event."""

    source: str = field(name="from")
    at: int


class Metadata(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Changed metadata; None removes a key."""

    changes: dict[str, Any]


class Restored(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The run goes on from a state that was saved elsewhere: what it had used and said there."""

    task_id: str = field(default="", name="taskID")
    turns: int
    tokens: float = 0
    response: str = ""
    final: bool = False
    first_calls: list[dict[str, Any]] | None = field(default=None, name="firstCalls")
    sub_agents: list[str] = field(default_factory=list, name="subAgents")
    show_thinking: bool = field(default=False, name="showThinking")


class Delegation(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A background agent was started."""

    task_id: str = field(name="taskID")
    session_id: str = field(name="sessionID")
    agent: str


class DelegationComplete(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A background agent ended."""

    task_id: str = field(name="taskID")
    status: str


class SessionRecovery(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What was repaired when the session was read."""

    issues: list[Any]


class SafetyLimit(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A limit of the agent was reached."""

    limit: str
    value: float
    task_id: str | None = field(default=None, name="taskID")


class AgentIteration(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Display only."""

    iteration: int = 0


class TodoUpdate(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Display only."""

    todos: list[Any]


class Unknown(Struct, frozen=True, gc=False):
    """An event of a type (or version) that this perdure does not know: kept and ignored."""

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
    | Delegation
    | DelegationComplete
    | SessionRecovery
    | SafetyLimit
    | AgentIteration
    | TodoUpdate
    | Unknown
)


class Stamped(NamedTuple):
    """An event with its place in the log."""

    seq: int
    at: int
    event: Event


def raw(value: Any) -> Raw:
    """A JSON value as it will stand in the log."""
    return Raw(msgspec.json.encode(value))
