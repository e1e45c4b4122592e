"""Replies: messages that name a waiting run, and may decide its pending call."""

from dataclasses import dataclass

from msgspec import UNSET

from perdure.core.log.events import Decision, StampedEvent
from perdure.core.pending.answers import parse_answer, parse_decision
from perdure.core.pending.commands import Approve, Command, Deny, Respond
from perdure.core.pending.record import PendingRecord
from perdure.core.pending.settlement import LOST_CODE, Settlement
from perdure.errors import Conflict, Corrupt, NotFound, Refused
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.records.log import Log
from perdure.runtime.sessions.service import Service
from perdure.views.bodies import DecisionIn
from perdure.views.literals import Role


@dataclass(frozen=True, slots=True)
class Reply:
    """A message to a run; `text` is None if it has more parts than text."""

    task_id: str
    text: str | None
    decision: DecisionIn | None
    by: str
    via: str
    role: Role | None = None


def check_context(entry: SessionEntry, context_id: str | None) -> None:
    """Raise Refused if the context id is not that of the session."""
    if context_id is not None and context_id != entry.record.id:
        raise Refused(
            "context ID mismatch",
            code="CONTEXT_MISMATCH",
            hint="the context id of a task is the id of its session",
        )


async def settle_by_reply(service: Service, entry: SessionEntry, reply: Reply) -> Settlement | None:
    """Settle the call for which the run waits; returns None if the reply is only a message.

    Raises NotFound if the session never had this run, Conflict if several calls wait and none is
    named, or if the call was decided otherwise.
    """
    log = await _read_log(service, entry, reply.task_id)
    waiting = await _waiting_calls(service, entry, reply.task_id)
    if not waiting:
        return await _repeat_decision(service, log, reply)
    call = _choose_call(waiting, reply.decision)
    if call is None and _command(waiting[0], reply) is None:
        return None
    if call is None:
        raise _ambiguous(waiting)
    command = _command(call, reply)
    if command is None:
        return None
    return await service.calls.settle(call.id, command, entry.record.tenant)


async def _read_log(service: Service, entry: SessionEntry, task_id: str) -> Log:
    """Return the log, which must contain the run. Raises NotFound, Corrupt."""
    try:
        log = await service.log(entry)
    except Corrupt as error:
        raise await service.fail_corrupt(entry, error) from error
    if not any(_task_id(item) == task_id for item in log.events):
        raise NotFound(
            f"failed to load execution state: execution state not found for task {task_id}",
            code="TASK_NOT_FOUND",
            hint="send the message without a task id to start a new run",
        )
    return log


def _task_id(item: StampedEvent) -> str | None:
    return getattr(item.event, "task_id", None) or getattr(item.event, "run", None)


async def _waiting_calls(
    service: Service, entry: SessionEntry, task_id: str
) -> list[PendingRecord]:
    """Return the open calls of a run that wait for an approver."""
    records = await service.calls.of_session(entry)
    return [
        record
        for record in records
        if record.task_id == task_id and record.kind in ("approval", "question")
    ]


async def _repeat_decision(service: Service, log: Log, reply: Reply) -> Settlement | None:
    """Settle a call again that was decided before; returns None if the reply is only a message.

    A decision that comes too late must not become a message that says "approve".
    """
    record = await _last_decided(service, log, reply)
    if record is None:
        if reply.decision is not None or parse_decision(reply.text or "") is not None:
            raise _not_waiting(reply, log)
        return None
    command = _command(record, reply)
    if command is None:
        return None
    return await service.calls.settle(record.id, command, record.tenant)


async def _last_decided(service: Service, log: Log, reply: Reply) -> PendingRecord | None:
    """Return the call that the reply names, else the call of this run that was decided last.

    A text that answered an earlier question of the run repeats that answer.
    """
    decision = DecisionIn(kind="approve") if reply.decision is None else reply.decision
    decided = [
        item.event.pending_id
        for item in log.events
        if isinstance(item.event, Decision)
        and item.event.task_id == reply.task_id
        and decision.call_id in (None, item.event.call_id)
    ]
    pending_ids = [decision.pending_id] if decision.pending_id else decided[::-1]
    records = [await service.calls.find_in(log.stream, item) for item in pending_ids]
    for record in records:
        if record is not None and _is_same_answer(record, reply):
            return record
    if records and records[0] is not None:
        return records[0]
    if name := decision.pending_id or decision.call_id:
        raise _call_not_found(name)
    return None


def _is_same_answer(record: PendingRecord, reply: Reply) -> bool:
    """Return whether a text without a decision is what answered this question."""
    if reply.decision is not None or record.kind != "question" or record.decision is None:
        return False
    answer = parse_answer(reply.text or "", record.schema, record.choices)
    return bool(record.decision.output == answer)


def _choose_call(waiting: list[PendingRecord], decision: DecisionIn | None) -> PendingRecord | None:
    """Return the call that the decision names, else the only one."""
    name = decision is not None and (decision.pending_id or decision.call_id)
    if decision is None or not name:
        return waiting[0] if len(waiting) == 1 else None
    for call in waiting:
        if decision.pending_id in (None, call.id) and decision.call_id in (None, call.call_id):
            return call
    raise _call_not_found(str(name))


def _call_not_found(name: str) -> NotFound:
    return NotFound(
        f"no call {name} of this task waits for a decision",
        code="PENDING_NOT_FOUND",
        hint="perdure pending list",
    )


def _command(record: PendingRecord, reply: Reply) -> Command | None:
    """Return the command that a reply means for this call; None if it decides nothing."""
    if reply.decision is not None:
        return _decision_command(reply.decision, reply)
    if reply.text is None:
        return None
    if record.kind == "question":
        answer = parse_answer(reply.text, record.schema, record.choices)
        return Respond(reply.by, reply.via, answer, reply.role)
    match parse_decision(reply.text):
        case "approve":
            return Approve(reply.by, reply.via, role=reply.role)
        case "deny":
            return Deny(reply.by, reply.via, role=reply.role)
        case None:
            return None


def _decision_command(decision: DecisionIn, reply: Reply) -> Command:
    match decision.kind:
        case "edit" if not decision.args:
            raise Refused(
                "an edit decision needs the arguments that it changes",
                code="VALUE_INVALID",
                hint='add "args": {…}, or decide "approve" to run the call unchanged',
            )
        case "approve" | "edit":
            remember = (decision.remember, decision.all_tools, reply.role)
            return Approve(reply.by, reply.via, decision.args, decision.note, *remember)
        case "deny":
            remember = (decision.remember, decision.all_tools, reply.role)
            return Deny(reply.by, reply.via, decision.reason or reply.text or None, *remember)
        case "respond":
            output = reply.text if decision.output is UNSET else decision.output
            if output is None and decision.output is UNSET:
                raise Refused(
                    "a respond decision needs an output",
                    code="VALUE_INVALID",
                    hint='write the answer as "output" of the decision, or as "content"',
                )
            return Respond(reply.by, reply.via, output, reply.role)


def _not_waiting(reply: Reply, log: Log) -> Conflict:
    run = log.state.run
    error = None if run is None or run.id != reply.task_id else run.error
    text = f"task {reply.task_id} is not waiting for a decision"
    if error is None:
        text = f"{text}: the session is {log.state.status}"
        return Conflict(text, code="NOT_WAITING", hint="perdure pending list")
    code = LOST_CODE if error.code == LOST_CODE else "NOT_WAITING"
    return Conflict(f"{text}: it failed: {error.error}", code=code, hint=error.hint)


def _ambiguous(waiting: list[PendingRecord]) -> Conflict:
    calls = [{"pendingID": call.id, "callID": call.call_id, "tool": call.tool} for call in waiting]
    return Conflict(
        f"{len(waiting)} calls of this task wait for a decision, and none was named",
        code="WHICH_CALL",
        hint='name one: "decision": {"kind": "approve", "pendingID": "…"}',
        details={"pending": calls},
    )
