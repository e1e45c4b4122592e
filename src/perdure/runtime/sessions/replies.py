"""A message that names the run which waits for it: the answer to what was asked, or a message."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from perdure.core.log.events import Decision, Stamped
from perdure.core.pending import record as pending
from perdure.core.pending.commands import Approve, Command, Deny, Respond, decision_in
from perdure.core.pending.record import PendingRecord
from perdure.core.pending.settlement import Settlement
from perdure.errors import Conflict, Corrupt, NotFound, Refused
from perdure.runtime.records.entries import SessionEntry, erased_as_not_found, open_calls
from perdure.runtime.records.log import Log
from perdure.runtime.sessions.service import Service
from perdure.store.base import StoreRefusal, Write

DecisionWord = Literal["approve", "edit", "deny", "respond"]


@dataclass(frozen=True, slots=True)
class ReplyDecision:
    """A decision that was given as one, and not in words."""

    kind: DecisionWord
    pending_id: str | None = None
    call_id: str | None = None
    args: Mapping[str, Any] | None = None
    reason: str | None = None
    note: str | None = None
    output: str | None = None
    remember: bool | str = False  # for the rest of the session


@dataclass(frozen=True, slots=True)
class Reply:
    """What somebody says to a run; `text` is None where it is more than text."""

    task_id: str
    text: str | None
    decision: ReplyDecision | None
    by: str
    via: str


def check_context(known: SessionEntry, context_id: str | None) -> None:
    """Refuse what belongs into another session."""
    if context_id is not None and context_id != known.record.id:
        raise Refused(
            "context ID mismatch",
            code="CONTEXT_MISMATCH",
            hint="the context id of a task is the id of its session",
        )


async def settle_by_reply(service: Service, known: SessionEntry, reply: Reply) -> Settlement | None:
    """Settle the call that the run waits for with a person; None: it is an ordinary message.

    Raises NotFound if the session never had this run, Conflict if several calls wait and none is
    named, or if it was answered otherwise.
    """
    log = await _loaded(service, known, reply.task_id)
    waiting = await _asked(service, known, reply.task_id)
    if not waiting:
        return await _answered_before(service, log, reply)
    chosen = _chosen(waiting, reply.decision)
    if chosen is None and _decides(waiting[0], reply) is None:
        return None
    if chosen is None:
        raise _which(waiting)
    command = _decides(chosen, reply)
    if command is None:
        return None
    return await service.settle(chosen.id, command, known.record.tenant)


async def _loaded(service: Service, known: SessionEntry, task_id: str) -> Log:
    """The log, in which the run must be."""
    log = Log(service.desk.store, known.stream)
    try:
        with erased_as_not_found(known.record.id):
            await log.catch_up()
    except Corrupt as error:
        await _given_up(service, known, error)
        raise Corrupt(
            f"failed to load execution state: {error.message}",
            hint=error.hint,
            details=error.details,
        ) from error
    if not any(_run_of(one) == task_id for one in log.events):
        raise NotFound(
            f"failed to load execution state: execution state not found for task {task_id}",
            code="TASK_NOT_FOUND",
            hint="send the message without a task id to start anew",
        )
    return log


def _run_of(one: Stamped) -> str | None:
    return getattr(one.event, "task_id", None) or getattr(one.event, "run", None)


async def _given_up(service: Service, known: SessionEntry, error: Corrupt) -> None:
    """The run cannot go on: nobody can know what it had done."""
    put = known.put(state="failed", problem=error.code, problem_text=error.message)
    try:
        await service.desk.store.commit([Write(known.stream)], [put])
    except StoreRefusal:
        return  # it is something else meanwhile


async def _asked(service: Service, known: SessionEntry, task_id: str) -> list[PendingRecord]:
    """The open calls of a run that wait for a person."""
    entries = open_calls(service.desk.store, known.stream)
    records = [pending.decode(entry.data) async for entry in entries]
    return [
        one for one in records if one.task_id == task_id and one.kind in ("approval", "question")
    ]


async def _answered_before(service: Service, log: Log, reply: Reply) -> Settlement | None:
    """The same answer again, or one that came too late: never a message that says "approve"."""
    record = await _last_answered(service, log, reply)
    if record is None:
        if reply.decision is not None or decision_in(reply.text or "") is not None:
            raise _nothing_asked(reply, log)
        return None
    command = _decides(record, reply)
    if command is None:
        return None
    if reply.decision is None and record.kind == "question":
        said = None if record.decision is None else record.decision.output
        return Settlement(record, duplicate=True) if said == reply.text else None
    return await service.settle(record.id, command, record.tenant)


async def _last_answered(service: Service, log: Log, reply: Reply) -> PendingRecord | None:
    """The call that is named, else the one of this run that was decided last."""
    named = ReplyDecision("approve") if reply.decision is None else reply.decision
    decided = [
        one.event.pending_id
        for one in log.events
        if isinstance(one.event, Decision)
        and one.event.task_id == reply.task_id
        and named.call_id in (None, one.event.call_id)
    ]
    wanted = named.pending_id or (decided[-1] if decided else None)
    entry = None if wanted is None else await service.desk.store.get("pending", wanted)
    if entry is not None and entry.stream == log.stream:
        return pending.decode(entry.data)
    if call := named.pending_id or named.call_id:
        raise _no_such_call(call)
    return None


def _chosen(waiting: list[PendingRecord], decision: ReplyDecision | None) -> PendingRecord | None:
    """The call that is meant: the one that is named, else the only one."""
    named = decision is not None and (decision.pending_id or decision.call_id)
    if decision is None or not named:
        return waiting[0] if len(waiting) == 1 else None
    for one in waiting:
        if decision.pending_id in (None, one.id) and decision.call_id in (None, one.call_id):
            return one
    raise _no_such_call(str(named))


def _no_such_call(named: str) -> NotFound:
    return NotFound(
        f"no call {named} of this task waits for a decision",
        code="PENDING_NOT_FOUND",
        hint="perdure pending list",
    )


def _decides(record: PendingRecord, reply: Reply) -> Command | None:
    """The command that a reply is for this call; None: it decides nothing."""
    if reply.decision is not None:
        return _command(reply.decision, reply)
    if reply.text is None:
        return None
    if record.kind == "question":
        return Respond(reply.by, reply.via, reply.text)
    match decision_in(reply.text):
        case "approve":
            return Approve(reply.by, reply.via)
        case "deny":
            return Deny(reply.by, reply.via)
        case None:
            return None


def _command(decided: ReplyDecision, reply: Reply) -> Command:
    match decided.kind:
        case "approve" | "edit":
            return Approve(reply.by, reply.via, decided.args, decided.note, decided.remember)
        case "deny":
            return Deny(reply.by, reply.via, decided.reason or reply.text or None)
        case "respond":
            output = reply.text if decided.output is None else decided.output
            if output is None:
                raise Refused("to respond, say the output", code="VALUE_INVALID")
            return Respond(reply.by, reply.via, output)


def _nothing_asked(reply: Reply, log: Log) -> Conflict:
    return Conflict(
        f"task {reply.task_id} waits for no decision: the session is {log.state.status}",
        code="NOT_WAITING",
        hint="perdure pending list",
    )


def _which(waiting: list[PendingRecord]) -> Conflict:
    calls = [{"pendingID": one.id, "callID": one.call_id, "tool": one.tool} for one in waiting]
    return Conflict(
        f"{len(waiting)} calls of this task wait for a decision, and none was named",
        code="WHICH_CALL",
        hint='name one: "decision": {"kind": "approve", "pendingID": "…"}',
        details={"pending": calls},
    )
