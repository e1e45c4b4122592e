"""Views of sessions, events and pending calls, from what the store has of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from perdure.core.json_depth import check_readable
from perdure.core.log.events import AgentError, CompactionFailed
from perdure.core.log.events import Decision as DecisionEvent
from perdure.core.log.redaction import redact_event_data
from perdure.core.log.stop_reasons import stop_reason
from perdure.core.pending.policy import accepted_acts
from perdure.core.pending.record import (
    APPROVER_KINDS,
    NO_POLICY,
    PendingDecision,
    PendingRecord,
    PendingVote,
)
from perdure.core.pending.requests import approval_request, event_request
from perdure.core.session.naming import SessionRecord
from perdure.core.session.permissions import RememberedPermission
from perdure.core.session.projections import Projection, StateDetails, project
from perdure.core.session.state import State as SessionState
from perdure.core.session.usage import Amounts, display_usage
from perdure.errors import Corrupt, PerdureError
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.runtime.diagnosis.sessions import entry_findings, session_findings
from perdure.runtime.queues import NOT_STUCK
from perdure.runtime.records.log import unreadable_record
from perdure.views.base import Error, view_of
from perdure.views.calls import (
    BudgetLimit,
    CallProgress,
    CallResult,
    CallTimes,
    Decision,
    InputMessage,
    PendingCall,
)
from perdure.views.events import Event
from perdure.views.health import AgentInfo, ToolInfo
from perdure.views.literals import Act, RunState, StopReason
from perdure.views.sessions import (
    BusyStatus,
    DrivingWorker,
    IdleStatus,
    LaunchedAgent,
    Permission,
    Result,
    RetryStatus,
    SessionStatus,
    SummaryRequest,
    WaitingStatus,
)
from perdure.views.usage import Usage

# --- pending calls --------------------------------------------------------------------------------


def decision_view(decision: PendingDecision | DecisionEvent, at: int) -> Decision:
    """Return a recorded decision."""
    return Decision(
        kind=decision.kind,
        by=decision.by,
        via=decision.via,
        at_ms=at,
        args=decision.args,
        reason=decision.reason,
        note=decision.note,
        output=None if decision.output is msgspec.UNSET else decision.output,
        remember=decision.remember,
    )


def _vote_view(vote: PendingVote) -> Decision:
    kind: Final = "edit" if vote.args else "approve"
    return Decision(
        kind=kind, by=vote.by, via=vote.via, at_ms=vote.at, args=vote.args, note=vote.note
    )


def call_view(
    stored: PendingRecord,
    callback_url: str | None = None,
    can: tuple[Act, ...] | None = None,
    schema: dict[str, Any] | None = None,
    *,
    secrets: bool = False,
) -> PendingCall:
    """Return a pending call; with its secret arguments only for its own tool.

    Without `can`, it says what anybody may do about it.
    """
    record = stored if secrets else stored.redacted
    policy, time = record.policy or NO_POLICY, record.time
    is_for_approver = record.kind in APPROVER_KINDS
    return PendingCall(
        id=record.id,
        kind=record.kind,
        status=record.status,
        session_id=record.session_id,
        tenant=record.tenant,
        agent=record.agent,
        tool=record.tool,
        args=record.input,
        call_id=record.call_id,
        effect_id=record.effect_id,
        task_id=record.task_id,
        message_id=record.message_id,
        part_id=record.part_id,
        prompt=record.prompt,
        reason=record.reason,
        details=record.details,
        schema=schema if record.schema is None else record.schema,
        choices=None if record.choices is None else tuple(record.choices),
        external_ref=record.external_ref,
        estimated_duration=record.estimated_duration,
        time=CallTimes(created=time.created, started=time.started, completed=time.completed),
        expires_at_ms=record.timeout,
        progress=None if record.progress is None else _progress_view(record.progress),
        budget=None if record.budget is None else view_of(BudgetLimit, record.budget),
        can=accepted_acts(record) if can is None else can,
        allowed_decisions=record.allowed_decisions if is_for_approver else (),
        approvers=policy.approvers,
        not_by_starter=policy.not_by_starter,
        min_approvals=policy.min_approvals,
        missing_approvals=record.missing_approvals,
        votes=tuple([_vote_view(vote) for vote in record.votes]),
        started_by=record.started_by,
        decision=None
        if record.decision is None
        else decision_view(record.decision, record.decision.at),
        result=None if record.result is None else view_of(CallResult, record.result),
        error=record.error,
        output=record.output,
        by=record.by,
        via=record.via,
        late=record.late,
        blocking=record.epoch is not None and record.is_open,
        ancestry=record.ancestry,
        callback_url=callback_url,
        webhook_url=callback_url,
        request=_request_view(record) if is_for_approver else None,
    )


def _progress_view(progress: Mapping[str, Any]) -> CallProgress:
    return CallProgress(
        percent=progress.get("percent"), message=progress.get("message"), at_ms=progress.get("at")
    )


def _request_view(record: PendingRecord) -> InputMessage:
    return msgspec.convert(approval_request(record), InputMessage)


# --- sessions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a `Result` is made from."""

    record: SessionRecord
    log_state: SessionState
    pending: tuple[PendingRecord, ...] = ()
    calls: tuple[PendingCall, ...] = ()  # the same, and those of the background agents below it
    holder: str | None = None
    due: int | None = None
    now: int = 0
    problem: PerdureError | None = None
    tree: Amounts | None = None  # usage with its children; None: it has none
    has_agent: bool = True  # its agent is defined here

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
    def is_queued(self) -> bool:
        """Return whether no model response has taken the last message into account yet."""
        return self.log_state.input_head > self.log_state.request_head

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


def permission_view(permission: RememberedPermission) -> Permission:
    """Return a remembered permission or denial."""
    return Permission(
        number=permission.number,
        effect=permission.effect,
        tool=permission.tool,
        rule=permission.rule,
        args=None if permission.rule else permission.redacted_params,
        text=permission.text,
        by=permission.by,
        at_ms=permission.at,
    )


def session_view(snapshot: Snapshot) -> Result[Any]:
    """Return a session as every surface shows it."""
    result = _without_findings(snapshot)
    problem = snapshot.problem
    if not snapshot.now:  # only its entry was read
        return replace(
            result, findings=entry_findings(snapshot.record, snapshot.state, (), problem)
        )
    findings = session_findings(
        result,
        problem,
        snapshot.now,
        is_queued=snapshot.is_queued,
        has_agent=snapshot.has_agent,
    )
    return replace(result, findings=findings)


def _without_findings(snapshot: Snapshot) -> Result[Any]:
    record, log_state = snapshot.record, snapshot.log_state
    run, usage = log_state.run, Usage.of(display_usage(log_state.usage))
    return Result(
        session_id=record.id,
        tenant=record.tenant,
        agent=record.agent,
        queue=record.queue,
        task_id=run.id if run is not None else record.task_id,
        state=snapshot.state,
        status=session_status(snapshot),
        output_json=None if run is None or run.output is None else msgspec.json.decode(run.output),
        stop_reason=early_stop(log_state),
        error=Error.of(snapshot.error),
        driver=_driver_view(snapshot),
        next_at_ms=snapshot.due,
        compaction=_summary_view(log_state),
        pending=snapshot.calls,
        todos=tuple(log_state.todos),
        usage=usage,
        tree_usage=usage if snapshot.tree is None else Usage.of(display_usage(snapshot.tree)),
        children=_children_views(log_state),
        metadata=dict(log_state.metadata),
        title=record.title,
        permissions=tuple([permission_view(item) for item in log_state.permissions]),
        seq=log_state.head,
        created_at_ms=log_state.created_at or record.created_at,
        updated_at_ms=log_state.updated_at or record.updated_at,
        parent=record.parent,
    )


def _driver_view(snapshot: Snapshot) -> DrivingWorker | None:
    if snapshot.holder is None:
        return None
    return DrivingWorker(worker=snapshot.holder, since_ms=snapshot.log_state.updated_at)


def _children_views(log_state: SessionState) -> tuple[LaunchedAgent, ...]:
    """Return the background agents that a session launched and did not clear."""
    views = [
        view_of(LaunchedAgent, child)
        for child in log_state.children.values()
        if not child.is_cleared
    ]
    return tuple(views)


def _summary_view(log_state: SessionState) -> SummaryRequest | None:
    """Return the summary that a caller requested, until it is recorded."""
    request = log_state.compaction
    if request is None:
        return None
    return SummaryRequest(seq=request.seq, error=Error.of(_as_error(request.error)))


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


def session_status(snapshot: Snapshot) -> SessionStatus:
    """Return the status union: idle, busy, retry, or waiting_async with the oldest open call."""
    row: Projection = project(session_standing(snapshot))
    retry = snapshot.log_state.retry
    if row.session == "retry" and retry is not None:
        return RetryStatus(retry.attempt, retry.message, retry.next)
    if row.session == "idle":
        return IdleStatus()
    if row.session != "waiting_async" or not snapshot.pending:
        return BusyStatus()  # if it was waiting, its call is settled: it waits for a worker
    oldest = min(snapshot.pending, key=lambda record: record.time.created)
    return WaitingStatus(oldest.id, oldest.tool, oldest.time.created, oldest.timeout)


# --- agents ---------------------------------------------------------------------------------------


def agent_view(agent: ReadyAgent) -> AgentInfo:
    """Return an agent with its tools."""
    tools = [
        ToolInfo(name=tool.name, description=tool.description, parameters=dict(tool.parameters))
        for tool in agent.tools.values()
    ]
    text = agent.agent.description
    return AgentInfo(name=agent.name, description=text, tools=tuple(tools))


# --- events ---------------------------------------------------------------------------------------


def event_view(stream_names: tuple[str, str], record: Any) -> Event:
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
    return Event(
        seq=record.seq,
        type=record.type,
        at_ms=record.at,
        data=shown,
        pos=record.pos,
        session_id=session_id,
        tenant=tenant,
    )
