"""Settlement of a pending call: a command and a record become a new record and events."""

from collections.abc import Sequence
from typing import Any, Final, assert_never

from msgspec import UNSET, Struct
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.redaction import mask_arguments
from perdure.core.pending.answers import answer_text, check_answer
from perdure.core.pending.commands import (
    Approve,
    CancelCall,
    Command,
    Decide,
    Deny,
    Expire,
    Respond,
    SubmitError,
    SubmitResult,
)
from perdure.core.pending.outcome_texts import denial_text, expiry_text
from perdure.core.pending.policy import (
    add_vote,
    check_decision,
    decision_kind,
    is_repeated_vote,
)
from perdure.core.pending.record import (
    APPROVER_KINDS,
    NO_POLICY,
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
from perdure.core.session.child_tasks import still_running
from perdure.core.session.permissions import check_remembered_rule
from perdure.errors import Conflict, Refused

RESULT_INVALID: Final = "Result validation failed"
CANCELLED: Final = "Cancelled by user"
INTERRUPTED: Final = (
    "Interrupted: the process stopped while this call was running. Its outcome is unknown; it may "
    "or may not have taken effect, and it was not repeated. Check before you try again."
)
RECORDS_LOST: Final = (
    "Interrupted: records of this call were lost. Whether it ran is unknown; it may or may not "
    "have taken effect, and it was not repeated. Check before you try again."
)
NOT_STARTED: Final = "Cancelled before it was started."
LOST: Final = "lost at restart: the process that waited in place for a decision is gone"
LOST_CODE: Final = "LOST_AT_RESTART"
LOST_HINT: Final = "hitl mode async with a durable session_store keeps what a run waits for"


class Settlement(Struct, frozen=True, gc=False):
    """Record and events to commit, if the entry still has the version that was read."""

    record: PendingRecord
    facts: Sequence[events.Event] = ()
    duplicate: bool = False  # the same command was accepted before: write nothing, report success
    expired: bool = False  # the command came too late: this is the expiry of the call
    voted: bool = False  # an approval was recorded, and others are still missing


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
    if isinstance(command, Approve | Deny | Respond):
        return _settle_by_decision(record, command, now)
    return _settle_now(record, command, now)


def _settle_now(record: PendingRecord, command: Command, now: int) -> Settlement:
    return _settle_open(moved(record, command.verb, now, late=is_late(record, now)), command, now)


def _settle_by_decision(record: PendingRecord, command: Decide, now: int) -> Settlement:
    """Settle a call if its policy allows the decision, and no other approval is missing."""
    if is_repeated_vote(record, command):
        return Settlement(record, duplicate=True)
    check_decision(record, command)
    if not isinstance(command, Approve) or (record.policy or NO_POLICY).min_approvals == 1:
        return _settle_now(record, command, now)
    record, fact = _vote(record, command, now)
    if fact.missing:
        return Settlement(record, (fact,), voted=True)
    settlement = _settle_now(record, command, now)
    return Settlement(settlement.record, (fact, *settlement.facts))


def _vote(record: PendingRecord, command: Approve, now: int) -> tuple[PendingRecord, events.Vote]:
    missing = record.missing_approvals - 1
    record = add_vote(record, command, now)
    vote = record.votes[-1]
    fact = events.Vote(
        pending_id=record.id,
        by=vote.by,
        via=vote.via,
        call_id=record.call_id,
        digest=params_digest(record.input),
        args=vote.args,
        note=vote.note,
        missing=missing,
        redact=record.redact if vote.args else (),
        task_id=record.task_id,
    )
    return record, fact


def as_unchecked(settlement: Settlement) -> Settlement:
    """Return the settlement of a result that could not be validated where it was submitted.

    The driver, which has the tool's code, validates it before the model sees it.
    """
    facts = [
        replace(fact, unchecked=True) if isinstance(fact, events.Settled) else fact
        for fact in settlement.facts
    ]
    return replace(settlement, facts=facts)


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
            result = submitted_result(record, command)
            record = replace(record, result=result, by=command.by, via=command.via)
            return _with_result(record, result.text, title=result.title, metadata=result.metadata)
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
    if record.budget is not None:  # the run waits, and no call
        return Settlement(record, (fact,))
    return Settlement(record, (fact, tool_result(record, text, **result)))


def tool_result(record: PendingRecord, text: str, **result: Any) -> events.ToolResult:
    """Return the result event of a pending call, for the model."""
    if record.reason == "interrupted" and result.get("is_error"):
        text, result = f"{text.removesuffix('.')}. {INTERRUPTED}", {**result, "interrupted": True}
    return events.ToolResult(
        tool_call_id=record.call_id, result=text, task_id=record.task_id, **result
    )


def submitted_result(record: PendingRecord, command: SubmitResult) -> PendingResult:
    """Return a result as it is stored, and as the tool's validator gets it."""
    title = record.tool if command.title is None else command.title
    return PendingResult(title, command.output, dict(command.metadata or {}))


def _decide(record: PendingRecord, command: Decide, now: int) -> Settlement:
    decision = _decision(command, now)
    record = replace(record, decision=decision)
    is_reply = record.is_raised or record.budget is not None
    is_answer = is_reply and record.kind == "question" and isinstance(command, Respond)
    _check_remember(record, command)
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
        output=decision.output if is_answer else UNSET,
        late=record.late,
        redact=record.redact if decision.args else (),
        task_id=record.task_id,
    )
    match command:
        case Approve():
            return Settlement(record, (fact,))
        case Respond():
            check_answer(record, command.output)
            if is_answer:
                return Settlement(record, (fact,))
            return Settlement(record, (fact, tool_result(record, answer_text(command.output))))
        case Deny() if record.budget is not None:
            return Settlement(record, (fact,))
        case Deny():
            text = denial_text(record.kind, record.tool, record.reason, command.reason)
            return Settlement(record, (fact, tool_result(record, text, is_error=True)))
        case _:
            assert_never(command)


def _check_remember(record: PendingRecord, command: Decide) -> None:
    """Raise Refused for a decision that cannot be remembered as the command says."""
    if isinstance(command, Respond) or not command.remember:
        return
    if record.kind != "approval" or record.is_raised:
        raise Refused(
            f"a decision about a question of {record.tool} cannot be remembered",
            code="PERMISSION_INVALID",
            hint="decide without remember",
        )
    if isinstance(command.remember, str):
        changes = command.args if isinstance(command, Approve) else None
        changed = {**record.input, **(changes or {})}
        visible = mask_arguments(changed, record.redact)  # rules must not probe secrets
        check_remembered_rule(command.remember, record.tool, visible, all_tools=command.all_tools)


def _decision(command: Decide, at: int) -> PendingDecision:
    start = (decision_kind(command), command.by, command.via, at)
    match command:
        case Approve():
            changes = dict(command.args) if command.args else None
            note, remember = command.note, command.remember
            return PendingDecision(*start, args=changes, note=note, remember=remember)
        case Deny():
            return PendingDecision(*start, reason=command.reason, remember=command.remember)
        case Respond():
            return PendingDecision(*start, output=command.output)
        case _:
            assert_never(command)


def _expire(record: PendingRecord, now: int, *, came_late: bool) -> Settlement:
    if record.on_expire == "keep":
        late = replace(record, late=True)
        return Settlement(late)
    if record.kind == "child":  # it is not an error that the background agent takes longer
        text = still_running(record.details or {})
        expired = moved(record, Verb.EXPIRE, now)
        settlement = _with_result(expired, text)
    else:
        text = expiry_text(record.kind, record.tool, record.reason)
        expired = moved(record, Verb.EXPIRE, now, error=text)
        settlement = _with_result(expired, text, is_error=True)
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
            if is_repeated_vote(record, command):
                return True
            repeated = _decision(command, 0)
            return record.decision is not None and repeated == replace(
                record.decision, at=0, via=repeated.via, note=repeated.note
            )
        case SubmitResult():
            return record.result == submitted_result(record, command)
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
    return Conflict(
        _already_settled_text(record),
        code="ALREADY_DECIDED",
        hint=f"perdure pending show {record.id}",
        details={"status": str(record.status), "winner": dict(winner(record))},
    )


def _already_settled_text(record: PendingRecord) -> str:
    call = f"{record.tool} ({record.id})"
    if record.kind not in APPROVER_KINDS:
        return f"Not waiting: {call} {outcome_text(record)}"
    if record.status != "expired":
        return f"already answered: {call} {outcome_text(record)}"
    verb = "answered" if record.kind == "question" else "decided"
    return f"expired: {call} was not {verb} before its deadline; your answer was not recorded"


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
