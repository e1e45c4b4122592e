"""The life of a tool call, as a table: from the model's request to its one result."""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.redaction import mask_arguments
from perdure.views.literals import CallKind

APPROVAL_MISMATCH: Final = (
    "APPROVAL_MISMATCH"  # code of the problem: the approval was for other arguments
)


class CallStatus(StrEnum):
    """Status of a call of the current turn."""

    NEW = "new"  # requested by the model; not yet judged
    GATED = "gated"  # requires a decision by an approver
    APPROVED = "approved"  # approved; may start
    RUNNING = "running"  # its intent is committed; its outcome is not known
    WAITING = "waiting"  # its outcome comes from outside
    SETTLED = "settled"  # has its result


class Move(StrEnum):
    """Transition of a call."""

    GATE = "gate"
    APPROVE = "approve"
    START = "start"
    WAIT = "wait"
    INTERRUPT = "interrupt"  # records of it were lost: it may have run
    SETTLE = "settle"


_NEW, _GATED, _APPROVED = CallStatus.NEW, CallStatus.GATED, CallStatus.APPROVED
_RUNNING, _WAITING, _SETTLED = CallStatus.RUNNING, CallStatus.WAITING, CallStatus.SETTLED

MOVES: Final[dict[tuple[CallStatus, Move], CallStatus]] = {
    (_NEW, Move.GATE): _GATED,
    (_NEW, Move.START): _RUNNING,
    (_NEW, Move.WAIT): _WAITING,
    (_NEW, Move.SETTLE): _SETTLED,
    (_GATED, Move.APPROVE): _APPROVED,
    (_GATED, Move.SETTLE): _SETTLED,
    (_APPROVED, Move.START): _RUNNING,
    (_APPROVED, Move.WAIT): _WAITING,
    (_APPROVED, Move.SETTLE): _SETTLED,
    (_RUNNING, Move.START): _RUNNING,  # the next attempt after a crash, with the same effect id
    (_RUNNING, Move.GATE): _GATED,  # after a crash, an approver decides whether to repeat it
    (_RUNNING, Move.WAIT): _WAITING,  # its tool waits for a background agent
    (_RUNNING, Move.SETTLE): _SETTLED,
    (_WAITING, Move.START): _WAITING,  # a deferred call starts outside and keeps waiting
    (_WAITING, Move.GATE): _GATED,
    (_WAITING, Move.SETTLE): _SETTLED,
    **{(s, Move.INTERRUPT): _RUNNING for s in (_NEW, _GATED, _APPROVED, _RUNNING, _WAITING)},
}


class Call(Struct, frozen=True, gc=False):
    """One call of a turn, folded from the log."""

    id: str
    tool: str
    params: Mapping[str, Any]
    turn: int
    index: int
    status: CallStatus = CallStatus.NEW
    effect_id: str = ""
    attempt: int = 0
    epoch: int | None = None  # of the last intent
    returned: bool = False  # the function of a deferred tool has returned
    parked_attempts: int = 0  # attempts up to the last time that the tool itself asked a person
    approval_id: str | None = None  # pending id of the open approval, or of the tool's question
    gate_kind: CallKind = "approval"  # of that pending id
    is_raised: bool = False  # the tool itself asked, while it ran
    pending_id: str | None = None  # pending id under which the outcome is submitted
    kind: CallKind | None = None
    expires_at: int | None = None
    blocking_epoch: int | None = None  # of the driver that waits in place for an approver
    mail: str | None = None  # id of the mail of a background agent that settles it
    problem: str | None = None
    decision: events.Decision | None = None
    decided_at: int = 0
    raised_decisions: tuple[tuple[events.Decision, int], ...] = ()  # that the tool asked for
    answers: tuple[Any, ...] = ()  # to the questions that the tool asked
    unchecked: str | None = None  # pending id of a submitted result that was not yet validated
    redact: tuple[str, ...] = ()  # names of arguments that are not shown
    has_lost_records: bool = False  # whether it was gated, decided or started is not known

    @property
    def redacted_params(self) -> dict[str, Any]:
        """The arguments with the secret ones masked."""
        return mask_arguments(self.params, self.redact)

    @property
    def is_open(self) -> bool:
        return self.status is not CallStatus.SETTLED

    @property
    def is_started(self) -> bool:
        """True if its intent is committed, and whether it ran is known only to its driver."""
        return self.status is CallStatus.RUNNING or (
            self.status is CallStatus.WAITING and self.epoch is not None and not self.returned
        )

    @property
    def may_have_run(self) -> bool:
        """True if it was intended, or the record that says so may be lost."""
        return self.epoch is not None or self.has_lost_records

    @property
    def is_pending(self) -> bool:
        """True if its outcome or decision comes from outside."""
        return self.status is CallStatus.GATED or (
            self.status is CallStatus.WAITING and (self.epoch is None or self.returned)
        )

    @property
    def open_blocking_epoch(self) -> int | None:
        """Epoch of the driver that still waits in place for an approver to settle it."""
        is_waiting = self.status is CallStatus.GATED or (
            self.status is CallStatus.WAITING and self.kind == "question"
        )
        return self.blocking_epoch if is_waiting else None

    def moved(self, move: Move, **changes: Any) -> "Call":
        """Return the call after a move; unchanged if the table has no such move.

        An earlier event of the log has then settled it.
        """
        status = MOVES.get((self.status, move))
        return self if status is None else replace(self, status=status, **changes)


def apply_pending(call: Call, event: events.Pending) -> Call:
    """Return the call, which now waits for a decision or for its outcome."""
    is_raised = event.reason == events.RAISED
    if event.kind == "approval" or is_raised:
        deadline = None if event.epoch is None else event.expires_at
        # A tool that asks has stopped by itself: its intent is over, and was not interrupted.
        parked = {"epoch": None, "parked_attempts": call.attempt} if is_raised else {}
        return call.moved(
            Move.GATE,
            approval_id=event.pending_id,
            gate_kind=event.kind,
            is_raised=is_raised,
            effect_id=event.effect_id,
            expires_at=deadline,
            blocking_epoch=event.epoch,
            **parked,
        )
    return call.moved(
        Move.WAIT,
        pending_id=event.pending_id,
        kind=event.kind,
        effect_id=event.effect_id,
        # An earlier intent is over: a tool that waits for a background agent has returned, and a
        # deferred call is intended after this event, an external one not at all.
        epoch=None,
        expires_at=event.expires_at,
        blocking_epoch=event.epoch,
        mail=event.mail,
    )


def apply_started(call: Call, event: events.ToolStarted) -> Call:
    """Return the call, which the driver of the event's epoch intends to run."""
    is_deferred = call.status is CallStatus.APPROVED and call.pending_id is not None
    return call.moved(
        Move.WAIT if is_deferred else Move.START,
        effect_id=event.effect_id,
        attempt=event.attempt,
        epoch=event.epoch,
        returned=False,
        problem=None,
        has_lost_records=False,
    )


def apply_decision(call: Call, event: events.Decision, at: int) -> Call:
    """Return the call after a decision; a denied one is settled by the result that follows."""
    was_gate = call.approval_id == event.pending_id
    # The pending id is used up, even if the call was settled under its other id.
    call = replace(
        call,
        approval_id=None if was_gate else call.approval_id,
        pending_id=None if call.pending_id == event.pending_id else call.pending_id,
    )
    if was_gate and call.gate_kind == "question" and event.kind == "respond":
        return call.moved(Move.APPROVE, answers=(*call.answers, event.output))
    if event.kind not in ("approve", "edit"):
        return replace(call, decision=event, decided_at=at)
    if not was_gate:
        return call
    if call.is_raised:
        call = replace(call, raised_decisions=(*call.raised_decisions, (event, at)))
    params = {**call.params, **(event.args or {})}
    is_same_call = not event.digest or event.digest == params_digest(call.params)
    problem = None if is_same_call else APPROVAL_MISMATCH
    return call.moved(Move.APPROVE, params=params, decision=event, decided_at=at, problem=problem)


def apply_loss(call: Call) -> Call:
    """Return the call, which may have run: no process has its intent, and nobody waits for it."""
    return call.moved(
        Move.INTERRUPT,
        has_lost_records=True,
        epoch=None,
        approval_id=None,
        pending_id=None,
        kind=None,
        mail=None,
        expires_at=None,
        blocking_epoch=None,
    )


def apply_progress(call: Call, event: events.Progress) -> Call:
    """Return the pending call with its progress."""
    return replace(
        call,
        returned=call.returned or event.returned,
        problem=event.problem if event.returned else event.problem or call.problem,
        expires_at=event.expires_at if event.expires_at is not None else call.expires_at,
    )


def params_digest(params: Mapping[str, Any]) -> str:
    """Return the hash of the stored JSON arguments, to which an approval is bound."""
    return hashlib.sha256(msgspec.json.encode(params, order="deterministic")).hexdigest()[:32]
