"""The record of a pending call, its statuses, and the verbs of each kind."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from perdure.core.json_depth import check_readable
from perdure.core.log import events
from perdure.core.log.events import RAISED, ApprovalPolicy, ReachedLimit
from perdure.core.log.redaction import mask_arguments
from perdure.core.text import NO_OUTPUT
from perdure.errors import Corrupt, NotFound
from perdure.views.literals import CallKind, DecisionKind, PendingStatus

APPROVER_KINDS: Final[frozenset[CallKind]] = frozenset({"approval", "question"})
OPEN_STATUSES: Final[frozenset[PendingStatus]] = frozenset({"waiting", "processing"})


class Verb(StrEnum):
    """Transition of a pending call, requested from outside."""

    APPROVE = "approve"
    DENY = "deny"
    RESPOND = "respond"
    RESULT = "result"
    ERROR = "error"
    CANCEL = "cancel"
    START = "start"
    RESET = "reset"
    EXPIRE = "expire"
    REJECT = "reject"


MOVES: Final[dict[tuple[PendingStatus, Verb], PendingStatus]] = {
    ("waiting", Verb.START): "processing",
    ("processing", Verb.START): "processing",
    ("processing", Verb.RESET): "waiting",
    ("waiting", Verb.RESET): "waiting",
    ("waiting", Verb.APPROVE): "completed",
    ("processing", Verb.APPROVE): "completed",
    ("waiting", Verb.DENY): "completed",
    ("processing", Verb.DENY): "completed",
    ("waiting", Verb.RESPOND): "completed",
    ("processing", Verb.RESPOND): "completed",
    ("waiting", Verb.RESULT): "completed",
    ("processing", Verb.RESULT): "completed",
    ("waiting", Verb.ERROR): "failed",
    ("processing", Verb.ERROR): "failed",
    ("completed", Verb.REJECT): "failed",  # its result did not pass the tool's validation later
    ("waiting", Verb.EXPIRE): "expired",
    ("processing", Verb.EXPIRE): "expired",
    ("waiting", Verb.CANCEL): "cancelled",
    ("processing", Verb.CANCEL): "cancelled",
}

ENDS: Final[dict[Verb, PendingStatus]] = {
    verb: status for (_, verb), status in MOVES.items() if status not in OPEN_STATUSES
}

VERBS: Final[dict[CallKind, frozenset[Verb]]] = {
    "approval": frozenset({Verb.APPROVE, Verb.DENY, Verb.RESPOND, Verb.CANCEL}),
    "question": frozenset({Verb.DENY, Verb.RESPOND, Verb.CANCEL}),
    "tool": frozenset({Verb.RESULT, Verb.ERROR, Verb.CANCEL}),
    "child": frozenset({Verb.CANCEL}),
    "timer": frozenset({Verb.CANCEL}),
}


class PendingTime(Struct, frozen=True, omit_defaults=True, gc=False):
    """Instants of a pending call, in ms since 1970."""

    created: int
    started: int | None = None
    completed: int | None = None


class PendingResult(Struct, frozen=True, gc=False):
    """A result as it was submitted: `output` is text or any other JSON value."""

    title: str
    output: Any
    metadata: dict[str, Any]

    @property
    def text(self) -> str:
        """The output as the model sees it, like the return value of a tool."""
        if isinstance(self.output, str):
            return self.output
        return NO_OUTPUT if self.output is None else msgspec.json.encode(self.output).decode()


class PendingDecision(Struct, frozen=True, omit_defaults=True, gc=False):
    """A decision: its kind, approver, instant and channel (`via`)."""

    kind: DecisionKind
    by: str
    via: str
    at: int
    args: dict[str, Any] | None = None
    reason: str | None = None
    note: str | None = None
    output: Any = None  # JSON
    remember: bool | str = False


class PendingVote(Struct, frozen=True, omit_defaults=True, gc=False):
    """An approval of a call that several approvers must approve."""

    by: str
    via: str
    at: int
    args: dict[str, Any] | None = None
    note: str | None = None


NO_POLICY: Final = ApprovalPolicy()
# The decisions that a call accepts by default.
DECISIONS: Final[dict[CallKind, tuple[DecisionKind, ...]]] = {
    "approval": ("approve", "edit", "deny", "respond"),
    "question": ("respond", "deny"),
}


class PendingRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A pending call as it is stored and as JSON shows it. `timeout` is its deadline."""

    id: str
    session_id: str = field(name="sessionID")
    tenant: str = ""
    agent: str
    task_id: str = field(name="taskID")
    message_id: str = field(name="messageID")
    part_id: str = field(name="partID")
    call_id: str = field(name="callID")
    effect_id: str = field(name="effectID")
    tool: str
    input: dict[str, Any]
    kind: CallKind
    status: PendingStatus = "waiting"
    time: PendingTime
    timeout: int | None = None
    external_ref: str | None = field(default=None, name="externalRef")
    output: str | None = None
    estimated_duration: int | None = field(default=None, name="estimatedDuration")
    prompt: str | None = None
    reason: str | None = None
    budget: ReachedLimit | None = None  # at which its run waits: it has no call then
    problem: str | None = None
    progress: dict[str, Any] | None = None
    progress_sequence: int | None = field(default=None, name="progressSequence")
    progress_keys: tuple[str, ...] = field(default=(), name="progressKeys")  # of reports without
    decision: PendingDecision | None = None
    result: PendingResult | None = None
    error: str | None = None
    by: str | None = None  # who settled it, if not by a decision
    via: str | None = None
    late: bool = False
    on_expire: str = field(default="fail", name="onExpire")
    epoch: int | None = None  # of the driver that waits for it in place and expires it
    grace: int = 0  # ms after its deadline in which it can still be settled, marked late
    twin: str | None = None  # the other pending id of the same call
    ancestry: tuple[str, ...] = ()
    details: dict[str, Any] | None = None  # that the tool shows to approvers
    schema: dict[str, Any] | None = None  # of the answer
    choices: list[Any] | None = None  # of which the answer must be a member
    policy: ApprovalPolicy | None = None
    started_by: tuple[str, ...] = field(default=(), name="startedBy")  # authors of the run
    votes: tuple[PendingVote, ...] = ()
    redact: tuple[str, ...] = ()  # names of arguments that are not shown
    hooks: tuple[str, ...] = ()  # keys of the entries of its webhook receivers

    @property
    def is_open(self) -> bool:
        return self.status in OPEN_STATUSES

    @property
    def redacted(self) -> "PendingRecord":
        """The record with its secret arguments masked."""
        if not self.redact:
            return self
        decision = self.decision
        if decision is not None and decision.args is not None:
            decision = replace(decision, args=mask_arguments(decision.args, self.redact))
        votes = tuple(
            vote
            if vote.args is None
            else replace(vote, args=mask_arguments(vote.args, self.redact))
            for vote in self.votes
        )
        shown = mask_arguments(self.input, self.redact)
        return replace(self, input=shown, decision=decision, votes=votes)

    @property
    def is_raised(self) -> bool:
        """True if its tool asked while it ran, and runs again with the decision or the answer."""
        return self.reason == RAISED

    @property
    def allowed_decisions(self) -> tuple[DecisionKind, ...]:
        """The kinds of decisions that it accepts."""
        policy = self.policy
        if policy is not None and policy.allowed_decisions and self.kind == "approval":
            return policy.allowed_decisions
        kinds = DECISIONS.get(self.kind, ())
        # An output instead of running it would be the work of a single approver.
        is_vote = policy is not None and policy.min_approvals > 1
        return tuple(kind for kind in kinds if kind != "respond") if is_vote else kinds

    @property
    def missing_approvals(self) -> int:
        """Number of approvals that it still needs; 0 if it is settled or is not an approval."""
        if self.kind != "approval" or not self.is_open:
            return 0
        policy = self.policy or NO_POLICY
        return max(policy.min_approvals - len(self.votes), 1)

    @property
    def due(self) -> int | None:
        """The instant when a worker expires it, or None: the `due` of its entry."""
        if self.timeout is None or not self.is_open or self.late:
            return None
        is_drivers = self.kind == "timer" or self.epoch is not None  # its driver settles it
        return None if is_drivers else self.timeout + self.grace


def moved(record: PendingRecord, verb: Verb, now: int, **changes: Any) -> PendingRecord:
    """Return the record after a transition of the table. Nothing else sets a status."""
    status = MOVES[record.status, verb]
    time = record.time
    if status not in OPEN_STATUSES:
        time = replace(time, completed=now)
    elif verb is Verb.START:
        time = replace(time, started=time.started or now)
    return replace(record, status=status, time=time, **changes)


_decoder = msgspec.json.Decoder(PendingRecord)


def encode(record: PendingRecord) -> bytes:
    """Return the record as the data of its entry."""
    return msgspec.json.encode(record)


def decode(data: bytes) -> PendingRecord:
    """Return the record of an entry. Raises Corrupt."""
    try:
        check_readable(data)
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, Corrupt) as error:
        raise Corrupt(f"the entry of a pending call cannot be read: {error}") from error


_OUTCOME_TEXTS: Final = {
    "approve": "was approved",
    "edit": "was approved with changes",
    "deny": "was denied",
    "respond": "was answered",
    "failed": "failed",
    "expired": "expired",
}


def outcome_text(record: PendingRecord) -> str:
    """Return the outcome of a settled call as text: `was denied by ana`."""
    return winner_text(winner(record))


def winner_text(winner: Mapping[str, Any]) -> str:
    """Return the same text from the details of a winner."""
    outcome = str(winner.get("kind") or winner["status"])
    by = f" by {winner['by']}" if winner.get("by") else ""
    by = f", told{by}" if by and outcome == "failed" else by
    return _OUTCOME_TEXTS.get(outcome, f"was {outcome}") + by


def winner(record: PendingRecord) -> Mapping[str, Any]:
    """Return what settled a call, when and by whom, for the details of a Conflict."""
    record = record.redacted
    details: dict[str, Any] = {"status": record.status, "at": record.time.completed}
    if record.decision is not None:
        details |= {k: v for k, v in msgspec.to_builtins(record.decision).items() if v is not None}
    else:
        details |= {k: v for k, v in (("by", record.by), ("via", record.via)) if v is not None}
    if record.result is not None:
        details["result"] = msgspec.to_builtins(record.result)
    if record.error is not None:
        details["error"] = record.error
    return details


def pending_not_found(pending_id: str) -> NotFound:
    """Return the error for a pending call that does not exist."""
    return NotFound(
        f"Unknown pending ID: {pending_id}", code="PENDING_NOT_FOUND", hint="perdure pending list"
    )


def pending_event(
    record: PendingRecord, *, mail: str | None = None, external: bool = False
) -> events.Pending:
    """Return the event with which a call became pending, from its record."""
    return events.Pending(
        pending_id=record.id,
        kind=record.kind,
        call_id=record.call_id,
        tool=record.tool,
        input=record.input,
        effect_id=record.effect_id,
        prompt=record.prompt,
        expires_at=record.timeout,
        reason=record.reason,
        epoch=record.epoch,
        details=record.details,
        schema=record.schema,
        choices=record.choices,
        policy=record.policy,
        started_by=record.started_by,
        mail=mail,
        external=external,
        budget=record.budget,
        task_id=record.task_id,
        redact=record.redact,
    )
