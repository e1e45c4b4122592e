"""Sessions, events and pending calls as people and programs are shown them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Generic

import msgspec
from typing_extensions import TypeVar

from perdure.core.log.events import AgentError, CompactionFailed
from perdure.core.log.redaction import shown_event
from perdure.core.log.stop_reasons import StopReason, early
from perdure.core.pending.record import PendingDecision, PendingRecord
from perdure.core.session import queues
from perdure.core.session.naming import SessionRecord
from perdure.core.session.permissions import Allowed
from perdure.core.session.projections import Projection, Standing, project
from perdure.core.session.state import State as Folded
from perdure.core.session.usage import Usage, shown_usage
from perdure.errors import PerdureError, Refused
from perdure.runtime.mcp.servers import DOWN_HINT, ServerDown
from perdure.runtime.records.log import unreadable
from perdure.runtime.values import Decision, PendingCall, State

T_co = TypeVar("T_co", covariant=True, default=Any)

PROBLEMS: Mapping[str, str] = {
    "START_INTERRUPTED": "the process stopped while this call was being started; it may or may "
    "not have begun outside",
}
HINTS: Mapping[str, str] = {ServerDown.code: DOWN_HINT}


def instant(ms: int) -> datetime:
    """An instant as people's code holds it."""
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
        """The event as every door shows it."""
        return {
            "seq": self.seq,
            "type": self.type,
            "timestamp": self.timestamp,
            "data": dict(self.data),
        }


def problem_of(code: str | None, text: str | None = None) -> PerdureError | None:
    """A stored problem as the error that says what to do."""
    if code is None:
        return None
    return PerdureError(text or PROBLEMS.get(code, code), code=code, hint=HINTS.get(code))


def decision_of(decision: PendingDecision | None) -> Decision | None:
    """A stored decision as users hold it."""
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


_ALWAYS: Final = (
    *("externalRef", "timeout", "result", "error", "output", "estimatedDuration", "progress"),
    *("prompt", "decision"),
)


# Of a record, never shown.
PRIVATE: Final = ("onExpire", "epoch", "grace", "twin", "hooks", "redact")


def pending_json(record: PendingRecord, callback_url: str | None = None) -> dict[str, Any]:
    """A pending call as every door shows it; `webhookURL` is another name of `callbackURL`."""
    shown: dict[str, Any] = msgspec.to_builtins(record.shown)
    for name in _ALWAYS:
        shown.setdefault(name)
    shown["tenant"] = record.tenant
    shown["status"] = str(record.status)
    shown["late"] = record.late
    shown["ancestry"] = list(record.ancestry)
    shown["callbackURL"] = shown["webhookURL"] = callback_url
    for private in PRIVATE:
        shown.pop(private, None)
    return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Generic[T_co]):
    """A session as it stands."""

    session_id: str
    tenant: str
    agent: str
    state: State
    output: T_co | None = None
    pending: tuple[PendingCall, ...] = ()
    error: PerdureError | None = None
    problem: PerdureError | None = None
    usage: Mapping[str, float] = field(default_factory=dict, hash=False)
    tree_usage: Mapping[str, float] = field(default_factory=dict, hash=False)  # with its children
    todos: tuple[Any, ...] = field(default=(), hash=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    parent: str | None = None
    stop: StopReason | None = None  # why the last answer ended before all was said
    seq: int = 0
    created_at: datetime
    updated_at: datetime
    task_id: str | None = None
    queue: str = queues.DEFAULT
    _sight: "Snapshot | None" = field(default=None, repr=False, compare=False)

    def unwrap(self) -> T_co:
        """The output. Raises the error of a failed run, Refused NOT_FINISHED of an open one."""
        if self.state == "completed":
            return self.output  # type: ignore[return-value]
        if self.error is not None:
            raise self.error
        raise Refused(
            f"session {self.session_id!r} is {self.state}, not completed",
            code="NOT_FINISHED",
            hint=f"perdure sessions show {self.session_id}",
        )

    def to_json(self) -> dict[str, Any]:
        """The session as every door shows it."""
        return {} if self._sight is None else session_json(self._sight)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a session's picture is made of."""

    record: SessionRecord
    folded: Folded
    pending: tuple[PendingRecord, ...] = ()
    calls: tuple[PendingCall, ...] = ()
    holder: str | None = None
    due: int | None = None
    now: int = 0
    problem: PerdureError | None = None
    tree: Usage | None = None  # what it used with its children; None: it has none

    @property
    def state(self) -> State:
        """The canonical state; a session that nobody here can move waits."""
        folded = self.folded.status
        if self.folded.head == 0:
            return self.record.state  # its log cannot be read
        if folded == "pending" and self.holder is not None:
            return "running"  # its driver has nothing to record yet
        if folded == "running" and self._is_stuck and self.folded.open_calls:
            return "waiting"
        return folded

    @property
    def _is_stuck(self) -> bool:
        """Whether those who are here could not move it; one that nobody took yet may be taken."""
        return self.problem is not None and self.problem.code != "NO_WORKER"


def error_of(folded: Folded) -> PerdureError | None:
    """Why the run failed."""
    return None if folded.run is None else _as_error(folded.run.error)


def stop_of(folded: Folded) -> StopReason | None:
    """Why the output of a run that is completed is not all that the model had to say."""
    is_completed = folded.run is not None and folded.run.end == "completed"
    return early(folded.stop) if is_completed else None


def _as_error(failed: AgentError | CompactionFailed | None) -> PerdureError | None:
    if failed is None:
        return None
    return PerdureError(failed.error, code=failed.code, hint=failed.hint)


def permission_json(one: Allowed) -> dict[str, Any]:
    """What somebody allowed for the rest of a session."""
    return {
        "number": one.number,
        "tool": one.tool,
        "rule": one.rule,
        "args": None if one.rule else one.shown,
        "by": one.by,
        "at": one.at,
    }


def session_json(sight: Snapshot) -> dict[str, Any]:
    """A session as every door shows it."""
    record, folded = sight.record, sight.folded
    run = folded.run
    error, problem = error_of(folded), sight.problem
    urls = {call.id: call.callback_url for call in sight.calls}
    driver = {"worker": sight.holder, "since": folded.updated_at} if sight.holder else None
    return {
        "sessionID": record.id,
        "tenant": record.tenant,
        "agent": record.agent,
        "queue": record.queue,
        "taskID": run.id if run is not None else record.task_id,
        "state": sight.state,
        "status": session_status(sight),
        "output": None if run is None or run.output is None else msgspec.json.decode(run.output),
        "stop": stop_of(folded),
        "error": None if error is None else error.to_json(),
        "problem": None if problem is None else problem.to_json(),
        "driver": driver,
        "nextAt": sight.due,
        "compaction": _compaction_json(folded),
        "pending": [pending_json(one, urls.get(one.id)) for one in sight.pending],
        "todos": list(folded.todos),
        "usage": shown_usage(folded.usage),
        **({} if sight.tree is None else {"treeUsage": shown_usage(sight.tree)}),
        "metadata": dict(folded.metadata),
        "title": record.title,
        "permissions": [
            {"number": one.number, "text": one.text, "by": one.by, "at": one.at}
            for one in folded.allowed
        ],
        "seq": folded.head,
        "createdAt": folded.created_at or record.created_at,
        "updatedAt": folded.updated_at or record.updated_at,
        "parent": record.parent,
    }


def _compaction_json(folded: Folded) -> dict[str, Any] | None:
    """The summary that somebody asked for, until it is there."""
    asked = folded.compaction
    if asked is None:
        return None
    error = _as_error(asked.error)
    return {"seq": asked.seq, "error": None if error is None else error.to_json()}


def standing_of(sight: Snapshot) -> Standing:
    """The canonical state with what projections tell apart."""
    folded = sight.folded
    people = any(one.kind in ("approval", "question") for one in sight.pending)
    return Standing(
        sight.state,
        follow_up=folded.run is not None and folded.run.number > 1,
        waits_for="person" if people else "machine",
        backing_off=_backs_off(sight),
    )


def _backs_off(sight: Snapshot) -> bool:
    """Whether the model is not being asked now because it could not be."""
    retry = sight.folded.retry
    return retry is not None and (sight.holder is None or retry.next > sight.now)


def session_status(sight: Snapshot) -> dict[str, Any]:
    """The session status union: idle, busy, retry or waiting_async, naming the oldest open call."""
    row: Projection = project(standing_of(sight))
    status: dict[str, Any] = {"type": row.session}
    if row.session == "retry" and sight.folded.retry is not None:
        retry = sight.folded.retry
        status |= {"attempt": retry.attempt, "message": retry.message, "next": retry.next}
    if row.session == "waiting_async" and not sight.pending:
        return {"type": "busy"}  # answered, and waiting for somebody who can act on it
    if row.session == "waiting_async":
        oldest = min(sight.pending, key=lambda one: one.time.created)
        status |= {"pendingID": oldest.id, "tool": oldest.tool, "since": oldest.time.created}
        if oldest.timeout is not None:
            status["timeout"] = oldest.timeout
    return status


def event_of(stream_names: tuple[str, str], record: Any) -> Event:
    """A stored record as the public event, without secrets. Raises Corrupt, naming the record."""
    tenant, session_id = stream_names
    try:
        data: dict[str, Any] = msgspec.json.decode(record.data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise unreadable(record, error) from error
    shown = shown_event(record.type, data)
    return Event(session_id, record.seq, record.pos, record.type, record.at, shown, tenant)
