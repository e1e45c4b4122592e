"""The life of a call, as a table: from what the model asked for to the one result it gets."""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.redaction import masked

NOT_THIS_CALL: Final = "APPROVAL_MISMATCH"  # the approval was for other arguments


class CallStatus(StrEnum):
    """Where a call of the current turn stands."""

    NEW = "new"  # asked for; nothing was done about it
    GATED = "gated"  # a person must decide
    APPROVED = "approved"  # decided; may start
    RUNNING = "running"  # intended; its outcome is not known
    WAITING = "waiting"  # its outcome comes from outside
    SETTLED = "settled"  # has its result


class Move(StrEnum):
    """What can happen to a call."""

    GATE = "gate"
    APPROVE = "approve"
    START = "start"
    WAIT = "wait"
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
    (_RUNNING, Move.START): _RUNNING,  # once more after a crash, with the same effect id
    (_RUNNING, Move.GATE): _GATED,  # after a crash, put to a person
    (_RUNNING, Move.SETTLE): _SETTLED,
    (_WAITING, Move.START): _WAITING,  # a deferred call starts outside and goes on waiting
    (_WAITING, Move.GATE): _GATED,
    (_WAITING, Move.SETTLE): _SETTLED,
}


class Call(Struct, frozen=True, gc=False):
    """One call of a turn, as far as the log tells."""

    id: str
    tool: str
    params: Mapping[str, Any]
    turn: int
    index: int
    status: CallStatus = CallStatus.NEW
    effect_id: str = ""
    attempt: int = 0
    epoch: int | None = None  # of the last intent
    returned: bool = False  # the start of a deferred call came back
    gate: str | None = None  # pending id of the approval that is open
    wait: str | None = None  # pending id under which the outcome comes
    kind: events.CallKind | None = None
    expires_at: int | None = None
    held: int | None = None  # the epoch of the driver that waits in place for a person
    problem: str | None = None
    decision: events.Decision | None = None
    decided_at: int = 0
    redact: tuple[str, ...] = ()  # names of arguments that are not shown

    @property
    def shown(self) -> dict[str, Any]:
        """The arguments as people and programs see them."""
        return masked(self.params, self.redact)

    @property
    def is_open(self) -> bool:
        return self.status is not CallStatus.SETTLED

    @property
    def is_outside(self) -> bool:
        """Whether only somebody else can move it now."""
        return self.status is CallStatus.GATED or (
            self.status is CallStatus.WAITING and (self.epoch is None or self.returned)
        )

    @property
    def holder(self) -> int | None:
        """The epoch of the driver that waits in place for a person to settle it."""
        waits = self.status is CallStatus.GATED or (
            self.status is CallStatus.WAITING and self.kind == "question"
        )
        return self.held if waits else None

    def moved(self, move: Move, **changes: Any) -> "Call":
        """The call after a move. An impossible one leaves it alone: the log was first."""
        status = MOVES.get((self.status, move))
        return self if status is None else replace(self, status=status, **changes)


def opened(call: Call, event: events.Pending) -> Call:
    """A call that now waits for a decision or for its outcome."""
    if event.kind == "approval":
        until = None if event.epoch is None else event.expires_at
        return call.moved(
            Move.GATE,
            gate=event.pending_id,
            effect_id=event.effect_id,
            expires_at=until,
            held=event.epoch,
        )
    return call.moved(
        Move.WAIT,
        wait=event.pending_id,
        kind=event.kind,
        effect_id=event.effect_id,
        expires_at=event.expires_at,
        held=event.epoch,
    )


def started(call: Call, event: events.ToolStarted) -> Call:
    """A call that somebody with that epoch intends to run."""
    waits = call.status is CallStatus.APPROVED and call.wait is not None
    return call.moved(
        Move.WAIT if waits else Move.START,
        effect_id=event.effect_id,
        attempt=event.attempt,
        epoch=event.epoch,
        returned=False,
        problem=None,
    )


def decided(call: Call, event: events.Decision) -> Call:
    """A call whose approval was given; a denial settles it with the result that follows."""
    was_gate = call.gate == event.pending_id
    # The id is consumed in any case, also where the call got its result under the other one.
    call = replace(
        call,
        gate=None if was_gate else call.gate,
        wait=None if call.wait == event.pending_id else call.wait,
    )
    if event.kind not in ("approve", "edit"):
        return replace(call, decision=event)
    if not was_gate:
        return call
    params = {**call.params, **(event.args or {})}
    fits = not event.digest or event.digest == digest(call.params)
    problem = None if fits else NOT_THIS_CALL
    return call.moved(Move.APPROVE, params=params, decision=event, problem=problem)


def progressed(call: Call, event: events.Progress) -> Call:
    """A waiting call of which we heard."""
    return replace(
        call,
        returned=call.returned or event.returned,
        problem=event.problem if event.returned else event.problem or call.problem,
        expires_at=event.expires_at if event.expires_at is not None else call.expires_at,
    )


def digest(params: Mapping[str, Any]) -> str:
    """What an approval is bound to: a hash over the stored JSON arguments."""
    return hashlib.sha256(msgspec.json.encode(params, order="deterministic")).hexdigest()[:32]
