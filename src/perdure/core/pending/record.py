"""The record of a call that waits, its states, and which verb fits which kind."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from perdure.core.log.events import CallKind, DecisionKind
from perdure.core.log.redaction import masked
from perdure.errors import Corrupt


class PendingStatus(StrEnum):
    """Where a pending call stands; the last four are ends."""

    WAITING = "waiting"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


PEOPLE: Final[frozenset[CallKind]] = frozenset({"approval", "question"})  # kinds that they settle
OPEN: Final = frozenset({PendingStatus.WAITING, PendingStatus.PROCESSING})


class Verb(StrEnum):
    """What can be done to a pending call from outside."""

    APPROVE = "approve"
    DENY = "deny"
    RESPOND = "respond"
    RESULT = "result"
    ERROR = "error"
    CANCEL = "cancel"
    START = "start"
    RESET = "reset"
    EXPIRE = "expire"


_W, _P = PendingStatus.WAITING, PendingStatus.PROCESSING
_DONE, _FAILED = PendingStatus.COMPLETED, PendingStatus.FAILED
_EXPIRED, _CANCELLED = PendingStatus.EXPIRED, PendingStatus.CANCELLED

MOVES: Final[dict[tuple[PendingStatus, Verb], PendingStatus]] = {
    (_W, Verb.START): _P,
    (_P, Verb.START): _P,
    (_P, Verb.RESET): _W,
    (_W, Verb.RESET): _W,
    (_W, Verb.APPROVE): _DONE,
    (_P, Verb.APPROVE): _DONE,
    (_W, Verb.DENY): _DONE,
    (_P, Verb.DENY): _DONE,
    (_W, Verb.RESPOND): _DONE,
    (_P, Verb.RESPOND): _DONE,
    (_W, Verb.RESULT): _DONE,
    (_P, Verb.RESULT): _DONE,
    (_W, Verb.ERROR): _FAILED,
    (_P, Verb.ERROR): _FAILED,
    (_W, Verb.EXPIRE): _EXPIRED,
    (_P, Verb.EXPIRE): _EXPIRED,
    (_W, Verb.CANCEL): _CANCELLED,
    (_P, Verb.CANCEL): _CANCELLED,
}

ENDS: Final[dict[Verb, PendingStatus]] = {
    verb: status for (_, verb), status in MOVES.items() if status not in OPEN
}

VERBS: Final[dict[CallKind, frozenset[Verb]]] = {
    "approval": frozenset({Verb.APPROVE, Verb.DENY, Verb.RESPOND, Verb.CANCEL}),
    "question": frozenset({Verb.DENY, Verb.RESPOND, Verb.CANCEL}),
    "tool": frozenset({Verb.RESULT, Verb.ERROR, Verb.CANCEL}),
    "child": frozenset({Verb.CANCEL}),
    "timer": frozenset({Verb.CANCEL}),
}


class PendingTime(Struct, frozen=True, omit_defaults=True, gc=False):
    """Instants of a pending call, in ms."""

    created: int
    started: int | None = None
    completed: int | None = None


class PendingResult(Struct, frozen=True, gc=False):
    """A result as it was submitted."""

    title: str
    output: str
    metadata: dict[str, Any]


class PendingDecision(Struct, frozen=True, omit_defaults=True, gc=False):
    """Who decided what, when and through which door."""

    kind: DecisionKind
    by: str
    via: str
    at: int
    args: dict[str, Any] | None = None
    reason: str | None = None
    note: str | None = None
    output: str | None = None
    remember: bool | str = False


class PendingRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A pending call as it is stored and as JSON shows it. `timeout` is the instant of expiry."""

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
    status: PendingStatus = PendingStatus.WAITING
    time: PendingTime
    timeout: int | None = None
    external_ref: str | None = field(default=None, name="externalRef")
    output: str | None = None
    estimated_duration: int | None = field(default=None, name="estimatedDuration")
    prompt: str | None = None
    reason: str | None = None
    problem: str | None = None
    progress: dict[str, Any] | None = None
    decision: PendingDecision | None = None
    result: PendingResult | None = None
    error: str | None = None
    by: str | None = None  # who settled it, where that was no decision
    via: str | None = None
    late: bool = False
    on_expire: str = field(default="fail", name="onExpire")
    epoch: int | None = None  # of the driver that waits for it in place, and expires it
    grace: int = 0  # ms after its deadline in which an answer is still taken, marked late
    twin: str | None = None  # another id under which the same call waits
    ancestry: tuple[str, ...] = ()
    redact: tuple[str, ...] = ()  # names of arguments that are not shown
    hooks: tuple[str, ...] = ()  # who is told what becomes of it, by the names of their entries

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    @property
    def shown(self) -> "PendingRecord":
        """The record as people and programs see it."""
        if not self.redact:
            return self
        decision = self.decision
        if decision is not None and decision.args is not None:
            decision = replace(decision, args=masked(decision.args, self.redact))
        return replace(self, input=masked(self.input, self.redact), decision=decision)

    @property
    def due(self) -> int | None:
        """When it expires, or None: the `due` of its entry."""
        if self.timeout is None or not self.is_open or self.late:
            return None
        is_anothers = self.kind == "timer" or self.epoch is not None  # its driver sees to it
        return None if is_anothers else self.timeout + self.grace


def moved(record: PendingRecord, verb: Verb, now: int, **changes: Any) -> PendingRecord:
    """The record after a verb, as the table says; the only thing that sets a status."""
    status = MOVES[record.status, verb]
    time = record.time
    if status not in OPEN:
        time = replace(time, completed=now)
    elif verb is Verb.START:
        time = replace(time, started=time.started or now)
    return replace(record, status=status, time=time, **changes)


_decoder = msgspec.json.Decoder(PendingRecord)


def encode(record: PendingRecord) -> bytes:
    """The record as the data of its entry."""
    return msgspec.json.encode(record)


def decode(data: bytes) -> PendingRecord:
    """The record of an entry. Raises Corrupt."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"the entry of a pending call cannot be read: {error}") from error


_BECAME: Final = {
    "approve": "was approved",
    "edit": "was approved with changes",
    "deny": "was denied",
    "respond": "was answered",
    "failed": "failed",
    "expired": "expired",
}


def became(record: PendingRecord) -> str:
    """What became of a settled call, as people say it: `was denied by ana`."""
    return became_of(winner(record))


def became_of(told: Mapping[str, Any]) -> str:
    """The same from what losers are told."""
    done = str(told.get("kind") or told["status"])
    by = f" by {told['by']}" if told.get("by") else ""
    by = f", told{by}" if by and done == "failed" else by
    return _BECAME.get(done, f"was {done}") + by


def winner(record: PendingRecord) -> Mapping[str, Any]:
    """What settled a call, when and by whom: what losers are told."""
    record = record.shown
    told: dict[str, Any] = {"status": str(record.status), "at": record.time.completed}
    if record.decision is not None:
        told |= {k: v for k, v in msgspec.to_builtins(record.decision).items() if v is not None}
    else:
        told |= {k: v for k, v in (("by", record.by), ("via", record.via)) if v is not None}
    if record.result is not None:
        told["result"] = msgspec.to_builtins(record.result)
    if record.error is not None:
        told["error"] = record.error
    return told
