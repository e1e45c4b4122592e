"""Public shapes of sessions, events and pending calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Generic

import msgspec
from typing_extensions import TypeVar

from perdure.core.json_depth import check_readable
from perdure.core.literals import RunState
from perdure.core.log.events import AgentError, CompactionFailed
from perdure.core.log.redaction import redact_event_data
from perdure.core.log.stop_reasons import StopReason, stop_reason
from perdure.core.pending.record import (
    APPROVER_KINDS,
    NO_POLICY,
    TOOL_MISSING,
    PendingDecision,
    PendingRecord,
    PendingVote,
)
from perdure.core.pending.requests import approval_request, event_request
from perdure.core.session import queues
from perdure.core.session.naming import SessionRecord
from perdure.core.session.permissions import RememberedPermission
from perdure.core.session.projections import Projection, StateDetails, project
from perdure.core.session.state import State as SessionState
from perdure.core.session.usage import Usage, display_usage
from perdure.errors import Corrupt, PerdureError, Refused
from perdure.runtime.mcp.servers import DOWN_HINT, ServerDown
from perdure.runtime.queues import NOT_STUCK
from perdure.runtime.records.log import unreadable_record
from perdure.runtime.values import Decision, PendingCall

T_co = TypeVar("T_co", covariant=True, default=Any)

PROBLEMS: Mapping[str, str] = {
    TOOL_MISSING: "the agent has no tool of this name any more, so that the call cannot run",
    "START_INTERRUPTED": "the process stopped while this call was being started; it may or may "
    "not have begun outside",
}
HINTS: Mapping[str, str] = {
    ServerDown.code: DOWN_HINT,
    TOOL_MISSING: "deploy the tool again, or deny or respond instead",
}


def instant(ms: int) -> datetime:
    """Return an instant as an aware datetime in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class Event:
    """One immutable fact of a session."""

    session_id: str
    seq: int
    pos: int
    type: str
    timestamp: int
    data: Mapping[str, Any] = field(hash=False)
    tenant: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the event as the CLI and HTTP API show it."""
        return {
            "seq": self.seq,
            "type": self.type,
            "timestamp": self.timestamp,
            "data": dict(self.data),
        }


def stored_problem(code: str | None, text: str | None = None) -> PerdureError | None:
    """Return a stored problem as an error with a hint."""
    if code is None:
        return None
    return PerdureError(text or PROBLEMS.get(code, code), code=code, hint=HINTS.get(code))


def public_decision(decision: PendingDecision | None) -> Decision | None:
    """Return a stored decision as the public value."""
    if decision is None:
        return None
    return Decision(
        decision.kind,
        decision.by,
        decision.via,
        instant(decision.at),
        decision.args,
        decision.reason,
        decision.note,
        decision.remember,
    )


def public_votes(votes: Sequence[PendingVote]) -> tuple[Decision, ...]:
    """Return stored approvals as the public values."""
    return tuple(
        Decision(
            "edit" if vote.args else "approve",
            vote.by,
            vote.via,
            instant(vote.at),
            vote.args,
            note=vote.note,
        )
        for vote in votes
    )


_ALWAYS: Final = (
    *("externalRef", "timeout", "result", "error", "output", "estimatedDuration", "progress"),
    *("prompt", "decision"),
)


# Fields of a record that are never shown.
PRIVATE: Final = (
    "onExpire",
    "epoch",
    "grace",
    "twin",
    "hooks",
    "redact",
    "policy",
    "progressKeys",
    "progressSequence",
)


def pending_json(record: PendingRecord, callback_url: str | None = None) -> dict[str, Any]:
    """Return a pending call as JSON; `webhookURL` is another name of `callbackURL`."""
    shown: dict[str, Any] = msgspec.to_builtins(record.redacted)
    for name in _ALWAYS:
        shown.setdefault(name)
    shown["tenant"] = record.tenant
    shown["status"] = str(record.status)
    shown["late"] = record.late
    shown["ancestry"] = list(record.ancestry)
    shown |= _decision_fields(record)
    shown["problem"] = record.problem
    shown["callbackURL"] = shown["webhookURL"] = callback_url
    if record.kind in APPROVER_KINDS:
        shown["request"] = approval_request(record)
    if record.epoch is not None and record.is_open:
        shown["blocking"] = True  # a process waits for it in its memory
    for private in PRIVATE:
        shown.pop(private, None)
    return shown


def _decision_fields(record: PendingRecord) -> dict[str, Any]:
    """Return what an approver may decide, and what is still missing."""
    if record.kind not in APPROVER_KINDS:
        return {}
    policy = record.policy or NO_POLICY
    fields: dict[str, Any] = {
        "allowedDecisions": list(record.allowed_decisions),
        "startedBy": list(record.started_by),
    }
    if record.policy is not None:
        fields["approvers"] = list(policy.approvers)
        fields["notByStarter"] = policy.not_by_starter
        fields["minApprovals"] = policy.min_approvals
    if record.kind == "approval":
        fields["missingApprovals"] = record.missing_approvals
    return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Generic[T_co]):
    """Snapshot of a session."""

    session_id: str
    tenant: str
    agent: str
    state: RunState
    output: T_co | None = None
    pending: tuple[PendingCall, ...] = ()
    error: PerdureError | None = None
    problem: PerdureError | None = None
    usage: Mapping[str, float] = field(default_factory=dict, hash=False)
    tree_usage: Mapping[str, float] = field(default_factory=dict, hash=False)  # with its children
    todos: tuple[Any, ...] = field(default=(), hash=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    parent: str | None = None
    stop: StopReason | None = None  # why the last response ended early
    seq: int = 0
    created_at: datetime
    updated_at: datetime
    task_id: str | None = None
    queue: str = queues.DEFAULT
    _snapshot: "Snapshot | None" = field(default=None, repr=False, compare=False)

    def unwrap(self) -> T_co:
        """Return the output. Raises the error of a failed run, else Refused NOT_FINISHED."""
        if self.state == "completed":
            return self.output  # type: ignore[return-value]
        if self.error is not None:
            raise self.error
        raise Refused(
            f"session {self.session_id!r} is {self.state}, not completed",
            code="NOT_FINISHED",
            hint=f"perdure sessions show {self.session_id}",
        )

    @property
    def has_queued_message(self) -> bool:
        """True if no model response has taken the last message into account yet."""
        state = None if self._snapshot is None else self._snapshot.log_state
        return state is not None and state.input_head > state.request_head

    def to_json(self) -> dict[str, Any]:
        """Return the session as the CLI and HTTP API show it."""
        return {} if self._snapshot is None else session_json(self._snapshot)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a `Result` and its JSON are made from."""

    record: SessionRecord
    log_state: SessionState
    pending: tuple[PendingRecord, ...] = ()
    calls: tuple[PendingCall, ...] = ()
    holder: str | None = None
    due: int | None = None
    now: int = 0
    problem: PerdureError | None = None
    tree: Usage | None = None  # usage with its children; None: it has none

    @property
    def state(self) -> RunState:
        """The canonical state; a session that no code here can continue is waiting."""
        run_state = self.log_state.status
        if self.log_state.head == 0:  # its log was not read, or cannot be read
            is_damaged = isinstance(self.problem, Corrupt) and not self.record.is_over
            return "failed" if is_damaged else self.record.state
        if run_state == "pending" and self.holder is not None:
            return "running"  # its driver has nothing to record yet
        if run_state == "running" and self._is_stuck and self.log_state.open_calls:
            return "waiting"
        return run_state

    @property
    def error(self) -> PerdureError | None:
        """The error of a failed run, or the damage because of which its session failed."""
        if self.log_state.head == 0 and self.state == "failed":
            is_damage = self.problem is not None and self.problem.code == Corrupt.code
            return self.problem if is_damage else None
        return _as_error(None if self.log_state.run is None else self.log_state.run.error)

    @property
    def _is_stuck(self) -> bool:
        """Return whether the code here cannot continue it; a worker may still come for it."""
        return self.problem is not None and self.problem.code not in NOT_STUCK


def early_stop(log_state: SessionState) -> StopReason | None:
    """Return why the last response of a completed run was cut short, if it was."""
    is_completed = log_state.run is not None and log_state.run.end == "completed"
    return stop_reason(log_state.stop) if is_completed else None


def _as_error(failure: AgentError | CompactionFailed | None) -> PerdureError | None:
    if failure is None:
        return None
    return PerdureError(failure.error, code=failure.code, hint=failure.hint)


def permission_json(permission: RememberedPermission) -> dict[str, Any]:
    """Return a remembered permission or denial as JSON."""
    return {
        "number": permission.number,
        "effect": permission.effect,
        "tool": permission.tool,
        "rule": permission.rule,
        "args": None if permission.rule else permission.redacted_params,
        "by": permission.by,
        "at": permission.at,
    }


def session_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return a session as the CLI and HTTP API show it."""
    record, log_state = snapshot.record, snapshot.log_state
    run = log_state.run
    error, problem = snapshot.error, snapshot.problem
    urls = {call.id: call.callback_url for call in snapshot.calls}
    driver = {"worker": snapshot.holder, "since": log_state.updated_at} if snapshot.holder else None
    return {
        "sessionID": record.id,
        "tenant": record.tenant,
        "agent": record.agent,
        "queue": record.queue,
        "taskID": run.id if run is not None else record.task_id,
        "state": snapshot.state,
        "status": session_status(snapshot),
        "output": None if run is None or run.output is None else msgspec.json.decode(run.output),
        "stop": early_stop(log_state),
        "error": None if error is None else error.to_json(),
        "problem": None if problem is None else problem.to_json(),
        "driver": driver,
        "nextAt": snapshot.due,
        "compaction": _compaction_json(log_state),
        "pending": [pending_json(record, urls.get(record.id)) for record in snapshot.pending],
        "todos": list(log_state.todos),
        "usage": display_usage(log_state.usage),
        **({} if snapshot.tree is None else {"treeUsage": display_usage(snapshot.tree)}),
        **_children_json(log_state),
        "metadata": dict(log_state.metadata),
        "title": record.title,
        "permissions": [
            {
                "number": item.number,
                "effect": item.effect,
                "text": item.text,
                "by": item.by,
                "at": item.at,
            }
            for item in log_state.permissions
        ],
        "seq": log_state.head,
        "createdAt": log_state.created_at or record.created_at,
        "updatedAt": log_state.updated_at or record.updated_at,
        "parent": record.parent,
    }


def _children_json(log_state: SessionState) -> dict[str, Any]:
    """Return the background agents that a session launched and did not clear, if there are any."""
    children = [child for child in log_state.children.values() if not child.is_cleared]
    if not children:
        return {}
    return {
        "children": [
            {
                "task_id": child.task_id,
                "sessionID": child.session_id,
                "agent": child.agent,
                "description": child.description,
                "status": child.status,
                "resumeCount": child.resume_count,
            }
            for child in children
        ]
    }


def _compaction_json(log_state: SessionState) -> dict[str, Any] | None:
    """Return the summary that a caller requested, until it is recorded."""
    request = log_state.compaction
    if request is None:
        return None
    error = _as_error(request.error)
    return {"seq": request.seq, "error": None if error is None else error.to_json()}


def session_standing(snapshot: Snapshot) -> StateDetails:
    """Return the canonical state with the facts that projections distinguish."""
    log_state = snapshot.log_state
    needs_person = any(record.kind in ("approval", "question") for record in snapshot.pending)
    return StateDetails(
        snapshot.state,
        follow_up=log_state.run is not None and log_state.run.number > 1,
        waits_for="approver" if needs_person else "submitter",
        backing_off=_is_backing_off(snapshot),
    )


def _is_backing_off(snapshot: Snapshot) -> bool:
    """Return whether the next model request waits for its back-off."""
    retry = snapshot.log_state.retry
    return retry is not None and (snapshot.holder is None or retry.next > snapshot.now)


def session_status(snapshot: Snapshot) -> dict[str, Any]:
    """Return the status union: idle, busy, retry, or waiting_async with the oldest open call."""
    row: Projection = project(session_standing(snapshot))
    status: dict[str, Any] = {"type": row.session}
    if row.session == "retry" and snapshot.log_state.retry is not None:
        retry = snapshot.log_state.retry
        status |= {"attempt": retry.attempt, "message": retry.message, "next": retry.next}
    if row.session == "waiting_async" and not snapshot.pending:
        return {"type": "busy"}  # settled, and waiting for a worker
    if row.session == "waiting_async":
        oldest = min(snapshot.pending, key=lambda record: record.time.created)
        status |= {"pendingID": oldest.id, "tool": oldest.tool, "since": oldest.time.created}
        if oldest.timeout is not None:
            status["timeout"] = oldest.timeout
    return status


def public_event(stream_names: tuple[str, str], record: Any) -> Event:
    """Return a stored record as the public event, redacted. Raises Corrupt, naming the record."""
    tenant, session_id = stream_names
    try:
        check_readable(record.data)
        data: dict[str, Any] = msgspec.json.decode(record.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, Corrupt) as error:
        raise unreadable_record(record, error) from error
    shown = redact_event_data(record.type, data)
    if record.type == "pending" and shown.get("kind") in APPROVER_KINDS:
        shown = {**shown, "request": event_request(shown)}
    return Event(session_id, record.seq, record.pos, record.type, record.at, shown, tenant)
