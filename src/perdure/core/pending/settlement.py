"""What a command makes of a pending call: its new record and the facts to append, or a refusal."""

from collections.abc import Sequence
from typing import Any, Final, assert_never

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.redaction import masked
from perdure.core.pending.commands import (
    Approve,
    CancelCall,
    Command,
    Deny,
    Expire,
    Respond,
    SubmitError,
    SubmitResult,
)
from perdure.core.pending.record import (
    VERBS,
    PendingDecision,
    PendingRecord,
    PendingResult,
    Verb,
    became,
    moved,
    winner,
)
from perdure.core.session.calls import digest
from perdure.core.session.permissions import check_remembered
from perdure.errors import Conflict

TIMED_OUT: Final = "Tool execution timed out"
CANCELLED: Final = "Cancelled by user"
DECLINED: Final = "The user declined to answer."
INTERRUPTED: Final = (
    "Interrupted: the process stopped while this call was running. Its outcome is unknown; it may "
    "or may not have taken effect, and it was not repeated. Check before you try again."
)
NOT_STARTED: Final = "Cancelled before it was started."
LOST: Final = "lost at restart: the process that waited in place for a decision is gone"
LOST_CODE: Final = "LOST_AT_RESTART"
LOST_HINT: Final = "give the agent a session_store, and what it waits for outlives the process"


class Settlement(Struct, frozen=True, gc=False):
    """What to write, if the record is still the one that was looked at."""

    record: PendingRecord
    facts: Sequence[events.Event] = ()
    duplicate: bool = False  # the same thing was accepted before: write nothing, answer success
    expired: bool = False  # the call was overdue: this is its expiry, the command came too late


def settle(record: PendingRecord, command: Command, now: int) -> Settlement:
    """Decide about a pending call.

    Raises Conflict if the verb does not fit the kind or something else was first.
    """
    if command.verb is not Verb.EXPIRE and command.verb not in VERBS[record.kind]:
        raise _wrong_kind(record, command.verb)
    if not record.is_open:
        if _is_repeated(record, command):
            return Settlement(record, duplicate=True)
        raise already_settled(record)
    if is_overdue(record, now):
        return _expire(record, now, came_late=command.verb is not Verb.EXPIRE)
    if isinstance(command, Expire):
        return Settlement(record, duplicate=True)
    return _settled(moved(record, command.verb, now, late=is_late(record, now)), command, now)


def check_takes(record: PendingRecord, verb: Verb) -> None:
    """Raises Conflict unless the call is open and of a kind that takes the verb."""
    if verb not in VERBS[record.kind]:
        raise _wrong_kind(record, verb)
    if not record.is_open:
        raise already_settled(record)


def give_up(record: PendingRecord, command: CancelCall, now: int) -> Settlement:
    """Cancel an open call with its run, overdue or not."""
    return _settled(moved(record, Verb.CANCEL, now), command, now)


def close_twin(record: PendingRecord, now: int) -> Settlement:
    """A call was settled under its other id: nobody can answer it under this one any more."""
    closed = moved(record, Verb.CANCEL, now, error=CANCELLED)
    return Settlement(closed, _told(closed, CANCELLED).facts[:1])


def give_up_all(
    records: Sequence[PendingRecord], command: CancelCall, now: int
) -> list[Settlement]:
    """Cancel the open calls of a run; one that waits under two ids is told once."""
    outcomes, told = [], set()
    for record in sorted(records, key=lambda one: one.reason != "interrupted"):
        outcome = give_up(record, command, now)
        if record.call_id in told:
            facts = [fact for fact in outcome.facts if not isinstance(fact, events.ToolResult)]
            outcome = Settlement(outcome.record, facts)
        told.add(record.call_id)
        outcomes.append(outcome)
    return outcomes


def is_overdue(record: PendingRecord, now: int) -> bool:
    """Whether its deadline has passed and nobody said to keep it open."""
    return record.due is not None and record.due <= now


def is_late(record: PendingRecord, now: int) -> bool:
    """Whether its deadline has passed, and an answer is taken all the same."""
    has_passed = record.timeout is not None and record.timeout <= now
    return record.late or (has_passed and record.kind != "timer")


def _settled(record: PendingRecord, command: Command, now: int) -> Settlement:
    match command:
        case Approve() | Deny() | Respond():
            return _decided(record, command, now)
        case SubmitResult():
            result = _result(record, command)
            record = replace(record, result=result, by=command.by, via=command.via)
            return _told(record, result.output, title=result.title, metadata=result.metadata)
        case SubmitError():
            record = replace(record, error=command.error, by=command.by, via=command.via)
            return _told(record, command.error, is_error=True)
        case CancelCall():
            record = replace(record, error=CANCELLED, by=command.by, via=command.via)
            return _told(record, CANCELLED, is_error=True)
        case Expire():
            return Settlement(record)
        case _:
            assert_never(command)


def _told(record: PendingRecord, text: str, **result: Any) -> Settlement:
    fact = events.Settled(
        pending_id=record.id,
        status=str(record.status),
        call_id=record.call_id,
        by=record.by,
        late=record.late,
        task_id=record.task_id,
    )
    return Settlement(record, (fact, tool_result(record, text, **result)))


def tool_result(record: PendingRecord, text: str, **result: Any) -> events.ToolResult:
    """The result of a waiting call, for the model."""
    if record.reason == "interrupted" and result.get("is_error"):
        text, result = f"{text.removesuffix('.')}. {INTERRUPTED}", {**result, "interrupted": True}
    return events.ToolResult(
        tool_call_id=record.call_id, result=text, task_id=record.task_id, **result
    )


def _result(record: PendingRecord, command: SubmitResult) -> PendingResult:
    title = record.tool if command.title is None else command.title
    return PendingResult(title, command.output, dict(command.metadata or {}))


def _decided(record: PendingRecord, command: Approve | Deny | Respond, now: int) -> Settlement:
    decision = _decision(command, now)
    record = replace(record, decision=decision)
    fact = events.Decision(
        pending_id=record.id,
        kind=decision.kind,
        by=decision.by,
        via=decision.via,
        call_id=record.call_id,
        digest=digest(record.input),
        args=decision.args,
        reason=decision.reason,
        note=decision.note,
        remember=decision.remember,
        late=record.late,
        redact=record.redact if decision.args else (),
        task_id=record.task_id,
    )
    match command:
        case Approve():
            if isinstance(command.remember, str):
                changed = {**record.input, **(decision.args or {})}
                seen = masked(changed, record.redact)  # else rules could find out what is hidden
                check_remembered(command.remember, record.tool, seen)
            return Settlement(record, (fact,))
        case Respond():
            return Settlement(record, (fact, tool_result(record, command.output)))
        case Deny():
            text = denial(record, command.reason)
            return Settlement(record, (fact, tool_result(record, text, is_error=True)))
        case _:
            assert_never(command)


def _decision(command: Approve | Deny | Respond, at: int) -> PendingDecision:
    match command:
        case Approve():
            changes = dict(command.args) if command.args else None
            kind: events.DecisionKind = "edit" if changes else "approve"
            return PendingDecision(
                kind,
                command.by,
                command.via,
                at,
                args=changes,
                note=command.note,
                remember=command.remember,
            )
        case Deny():
            return PendingDecision("deny", command.by, command.via, at, reason=command.reason)
        case Respond():
            return PendingDecision("respond", command.by, command.via, at, output=command.output)
        case _:
            assert_never(command)


def denial(record: PendingRecord, reason: str | None) -> str:
    """What the model is told of a denied call."""
    if record.kind == "question":
        return f"{DECLINED} {reason}" if reason else DECLINED
    because = f" Reason: {reason.rstrip('.')}." if reason else ""
    happened = (
        f"The user decided that this call to {record.tool} is not run again."
        if record.reason == "interrupted"
        else f"The user denied this call to {record.tool}; it was not run."
    )
    return f"{happened}{because} Do not proceed as if it had run, and do not invent its result."


def _expire(record: PendingRecord, now: int, *, came_late: bool) -> Settlement:
    if record.on_expire == "keep":
        late = replace(record, late=True)
        return Settlement(late)
    gone = moved(record, Verb.EXPIRE, now, error=TIMED_OUT)
    told = _told(gone, TIMED_OUT, is_error=True)
    facts = list(told.facts)
    if record.on_expire == "cancel":
        why = f"{record.tool} was not answered in time"
        facts.append(events.Cancelled(reason=why, task_id=record.task_id))
    return Settlement(gone, facts, expired=came_late)


def _is_repeated(record: PendingRecord, command: Command) -> bool:
    match command:
        case Approve() | Deny() | Respond():
            same = _decision(command, 0)
            return record.decision is not None and same == replace(
                record.decision, at=0, via=same.via, note=same.note
            )
        case SubmitResult():
            return record.result == _result(record, command)
        case SubmitError():
            return record.status == "failed" and record.error == command.error
        case CancelCall():
            return False
        case Expire():
            return True
        case _:
            assert_never(command)


def already_settled(record: PendingRecord) -> Conflict:
    """The refusal that tells a loser who won."""
    if record.error == LOST:
        return lost(record)
    text = "already answered" if record.kind in ("approval", "question") else "Not waiting"
    return Conflict(
        f"{text}: {record.tool} ({record.id}) {became(record)}",
        code="ALREADY_DECIDED",
        hint=f"perdure pending show {record.id}",
        details={"status": str(record.status), "winner": dict(winner(record))},
    )


def lost(record: PendingRecord) -> Conflict:
    """The refusal of an answer for which nobody waits any more."""
    return Conflict(
        f"{record.tool} ({record.id}): {LOST}",
        code=LOST_CODE,
        hint=LOST_HINT,
        details={"status": str(record.status), "taskID": record.task_id},
    )


def _wrong_kind(record: PendingRecord, verb: Verb) -> Conflict:
    right = sorted(str(v) for v in VERBS[record.kind])
    return Conflict(
        f"a call of kind '{record.kind}' cannot take '{verb}'; it takes {', '.join(right)}",
        code="WRONG_KIND",
        hint=f"perdure pending show {record.id}",
        details={"kind": record.kind, "verbs": right},
    )
