"""Settlement of a pending call: a command and a record become a new record and events."""

from collections.abc import Sequence
from typing import Any, Final, assert_never

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.literals import DecisionKind
from perdure.core.log import events
from perdure.core.log.redaction import mask_arguments
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
    moved,
    outcome_text,
    winner,
)
from perdure.core.session.calls import params_digest
from perdure.core.session.permissions import check_remembered_rule
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
    """Record and events to commit, if the entry still has the version that was read."""

    record: PendingRecord
    facts: Sequence[events.Event] = ()
    duplicate: bool = False  # the same command was accepted before: write nothing, report success
    expired: bool = False  # the command came too late: this is the expiry of the call


def settle(record: PendingRecord, command: Command, now: int) -> Settlement:
    """Settle a pending call.

    Raises Conflict if the verb does not fit the kind or the call is already settled.
    """
    if command.verb is not Verb.EXPIRE and command.verb not in VERBS[record.kind]:
        raise _wrong_kind(record, command.verb)
    if not record.is_open:
        if _is_duplicate(record, command):
            return Settlement(record, duplicate=True)
        raise already_settled(record)
    if is_overdue(record, now):
        return _expire(record, now, came_late=command.verb is not Verb.EXPIRE)
    if isinstance(command, Expire):
        return Settlement(record, duplicate=True)
    return _settle_open(moved(record, command.verb, now, late=is_late(record, now)), command, now)


def check_verb(record: PendingRecord, verb: Verb) -> None:
    """Raise Conflict unless the call is open and of a kind that takes the verb."""
    if verb not in VERBS[record.kind]:
        raise _wrong_kind(record, verb)
    if not record.is_open:
        raise already_settled(record)


def cancel_open(record: PendingRecord, command: CancelCall, now: int) -> Settlement:
    """Cancel an open call with its run, overdue or not."""
    return _settle_open(moved(record, Verb.CANCEL, now), command, now)


def close_twin(record: PendingRecord, now: int) -> Settlement:
    """Close a pending id whose call was settled under its other id."""
    closed = moved(record, Verb.CANCEL, now, error=CANCELLED)
    return Settlement(closed, _with_result(closed, CANCELLED).facts[:1])


def cancel_all_open(
    records: Sequence[PendingRecord], command: CancelCall, now: int
) -> list[Settlement]:
    """Cancel the open calls of a run; a call with two pending ids gets one result."""
    outcomes, settled_calls = [], set()
    for record in sorted(records, key=lambda record: record.reason != "interrupted"):
        outcome = cancel_open(record, command, now)
        if record.call_id in settled_calls:
            facts = [fact for fact in outcome.facts if not isinstance(fact, events.ToolResult)]
            outcome = Settlement(outcome.record, facts)
        settled_calls.add(record.call_id)
        outcomes.append(outcome)
    return outcomes


def is_overdue(record: PendingRecord, now: int) -> bool:
    """Return True if its deadline and grace have passed and it is not kept open."""
    return record.due is not None and record.due <= now


def is_late(record: PendingRecord, now: int) -> bool:
    """Return True if its deadline has passed; while it is open it can still be settled."""
    has_passed = record.timeout is not None and record.timeout <= now
    return record.late or (has_passed and record.kind != "timer")


def _settle_open(record: PendingRecord, command: Command, now: int) -> Settlement:
    match command:
        case Approve() | Deny() | Respond():
            return _decide(record, command, now)
        case SubmitResult():
            result = _result(record, command)
            record = replace(record, result=result, by=command.by, via=command.via)
            return _with_result(record, result.output, title=result.title, metadata=result.metadata)
        case SubmitError():
            record = replace(record, error=command.error, by=command.by, via=command.via)
            return _with_result(record, command.error, is_error=True)
        case CancelCall():
            record = replace(record, error=CANCELLED, by=command.by, via=command.via)
            return _with_result(record, CANCELLED, is_error=True)
        case Expire():
            return Settlement(record)
        case _:
            assert_never(command)


def _with_result(record: PendingRecord, text: str, **result: Any) -> Settlement:
    fact = events.Settled(
        pending_id=record.id,
        status=record.status,
        call_id=record.call_id,
        by=record.by,
        late=record.late,
        task_id=record.task_id,
    )
    return Settlement(record, (fact, tool_result(record, text, **result)))


def tool_result(record: PendingRecord, text: str, **result: Any) -> events.ToolResult:
    """Return the result event of a pending call, for the model."""
    if record.reason == "interrupted" and result.get("is_error"):
        text, result = f"{text.removesuffix('.')}. {INTERRUPTED}", {**result, "interrupted": True}
    return events.ToolResult(
        tool_call_id=record.call_id, result=text, task_id=record.task_id, **result
    )


def _result(record: PendingRecord, command: SubmitResult) -> PendingResult:
    title = record.tool if command.title is None else command.title
    return PendingResult(title, command.output, dict(command.metadata or {}))


def _decide(record: PendingRecord, command: Approve | Deny | Respond, now: int) -> Settlement:
    decision = _decision(command, now)
    record = replace(record, decision=decision)
    fact = events.Decision(
        pending_id=record.id,
        kind=decision.kind,
        by=decision.by,
        via=decision.via,
        call_id=record.call_id,
        digest=params_digest(record.input),
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
                visible = mask_arguments(changed, record.redact)  # rules must not probe secrets
                check_remembered_rule(command.remember, record.tool, visible)
            return Settlement(record, (fact,))
        case Respond():
            return Settlement(record, (fact, tool_result(record, command.output)))
        case Deny():
            text = denial_text(record, command.reason)
            return Settlement(record, (fact, tool_result(record, text, is_error=True)))
        case _:
            assert_never(command)


def _decision(command: Approve | Deny | Respond, at: int) -> PendingDecision:
    match command:
        case Approve():
            changes = dict(command.args) if command.args else None
            kind: DecisionKind = "edit" if changes else "approve"
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


def denial_text(record: PendingRecord, reason: str | None) -> str:
    """Return the result text, for the model, of a denied call."""
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
    expired = moved(record, Verb.EXPIRE, now, error=TIMED_OUT)
    settlement = _with_result(expired, TIMED_OUT, is_error=True)
    facts = list(settlement.facts)
    if record.on_expire == "cancel":
        reason = not_answered_in_time(record.tool)
        facts.append(events.Cancelled(reason=reason, task_id=record.task_id))
    return Settlement(expired, facts, expired=came_late)


def not_answered_in_time(tool: str) -> str:
    """Return the reason why a run ended that waited for a decision or a result."""
    return f"{tool} was not answered in time"


def _is_duplicate(record: PendingRecord, command: Command) -> bool:
    match command:
        case Approve() | Deny() | Respond():
            repeated = _decision(command, 0)
            return record.decision is not None and repeated == replace(
                record.decision, at=0, via=repeated.via, note=repeated.note
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
    """Return the Conflict that names the winner."""
    if record.error == LOST:
        return lost_at_restart(record)
    text = "already answered" if record.kind in ("approval", "question") else "Not waiting"
    return Conflict(
        f"{text}: {record.tool} ({record.id}) {outcome_text(record)}",
        code="ALREADY_DECIDED",
        hint=f"perdure pending show {record.id}",
        details={"status": str(record.status), "winner": dict(winner(record))},
    )


def lost_at_restart(record: PendingRecord) -> Conflict:
    """Return the Conflict for a call whose run was lost with its process."""
    return Conflict(
        f"{record.tool} ({record.id}): {LOST}",
        code=LOST_CODE,
        hint=LOST_HINT,
        details={"status": str(record.status), "taskID": record.task_id},
    )


def _wrong_kind(record: PendingRecord, verb: Verb) -> Conflict:
    verbs = sorted(str(v) for v in VERBS[record.kind])
    return Conflict(
        f"a call of kind '{record.kind}' cannot take '{verb}'; it takes {', '.join(verbs)}",
        code="WRONG_KIND",
        hint=f"perdure pending show {record.id}",
        details={"kind": record.kind, "verbs": verbs},
    )
