"""Public values of tasks, and their checks: what callers pass in, and what they get."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar, get_args

import msgspec
from msgspec import Struct

from perdure.core.json_depth import encode_value
from perdure.core.session.naming import check_id
from perdure.errors import (
    Conflict,
    Corrupt,
    NotAllowed,
    NotFound,
    PerdureError,
    Refused,
    StoreError,
)
from perdure.sandbox.base import Guarantee
from perdure.tasks.model.facts import AgentDecision, LogEntry
from perdure.tasks.model.record import KINDS, TaskKind, TaskRecord, newest_first_key
from perdure.tasks.model.state_file import TaskState
from perdure.tasks.model.status import Status
from perdure.views.base import instant, iso, iso_text
from perdure.views.literals import MAX_ID
from perdure.views.task_bodies import MAX_NAME

T = TypeVar("T")
Filters = TypeVar("Filters", bound="TaskFilters")

StatusName = Literal["pending", "running", "completed", "failed", "cancelled"]
SYSTEM: Final = "system"  # owner of a task unless the caller names one
MAX_ROW_BYTES: Final = 1_000_000  # of a task's metadata or result
_PATH_PARTS: Final = ("/", "\\")


@dataclass(frozen=True, slots=True)
class TaskRef:
    """Reference to a task: its tenant and id."""

    tenant: str
    task_id: str


class Task(Struct, frozen=True, kw_only=True, gc=False):
    """A task as it stands. Instants are aware datetimes; `agents` are those attached now."""

    id: str
    name: str
    status: str = "pending"
    created_at: datetime | None = None
    updated_at: datetime | None = None
    owner: str | None = None
    metadata: Mapping[str, Any] | None = None
    agents: tuple[str, ...] = ()
    result: Mapping[str, Any] | None = None
    kind: str = "sandbox"
    tenant: str = ""
    host: str = ""  # the machine that has its folder
    sandbox: str = ""  # that its commands run in
    execution: Mapping[str, Any] | None = None  # whether commands can run, after its creation


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """A task to create; without an id it gets one."""

    name: str
    id: str | None = None
    owner: str | None = None
    metadata: Mapping[str, Any] | None = None
    require: Sequence[str] = ()  # "exec", and guarantees of the sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """Result of a task."""

    success: bool
    status: Literal["success", "error"] | None = None
    data: Any = None
    error: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilters:
    """Part of a list of tasks: newest first, from `offset` on, at most `limit`.

    With `after` a page repeats no task of the page before while others are created.
    """

    status: str | None = None
    owner: str | None = None
    limit: int | None = None
    offset: int = 0
    kind: str | None = None
    after: Task | None = None  # the last task of the page before, from which `offset` counts

    @property
    def start(self) -> str | None:
        """The key in lists after which this part begins."""
        if self.after is None or self.after.created_at is None:
            return None
        created_at = round(self.after.created_at.timestamp() * 1000)
        return newest_first_key(created_at, self.after.tenant, self.after.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Part of a log: filters first, then `offset` and `limit`; the dates are inclusive."""

    limit: int | None = None
    offset: int = 0
    level: str | None = None
    start_date: str | datetime | None = None
    end_date: str | datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCheckpoint:
    """A checkpoint of a task; `problem` says why its manifest cannot be read."""

    id: str
    task_id: str
    timestamp: str
    description: str
    files: list[str] = field(default_factory=list)
    manifest: Mapping[str, Any] = field(default_factory=dict, repr=False)
    problem: str | None = None
    size: int = field(default=0, repr=False)  # of its files, in bytes
    at: int = field(default=0, repr=False)  # when it was taken or imported


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredTask:
    """A restore that is done: the place of the workspace as it was before.

    `saved_as` is the checkpoint that has it. If none could be taken, `problem` says why, and
    `kept_as` is the folder of the task that has the files, until another one replaces it.
    """

    saved_as: str | None = None
    kept_as: str | None = None
    problem: str | None = None


def restored_json(restored: RestoredTask) -> dict[str, Any]:
    """Return it as JSON; a tree that was saved is kept nowhere else."""
    if restored.saved_as is not None:
        return {"savedAs": restored.saved_as}
    return {"savedAs": None, "keptAs": restored.kept_as, "problem": restored.problem}


# --- instants -------------------------------------------------------------------------------------


def parse_instant(value: Any, label: str) -> datetime:
    """Return an aware datetime from ISO 8601 or a datetime. Raises Refused INVALID_REQUEST."""
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            moment = None
    if not isinstance(moment, datetime):
        raise invalid(f"{label} is {str(value)[:60]!a}, which is not an ISO 8601 instant")
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


# --- records as values ----------------------------------------------------------------------------


def public_task(record: TaskRecord) -> Task:
    """Return a record as the public value."""
    created_at = updated_at = instant(record.created_at)
    if record.updated_at != record.created_at:
        updated_at = instant(record.updated_at)
    return Task(
        id=record.id,
        name=record.name,
        status=record.status.value,
        created_at=created_at,
        updated_at=updated_at,
        owner=record.owner,
        metadata=record.metadata,
        agents=record.agents,
        result=record.result,
        kind=record.kind,
        tenant=record.tenant,
        host=record.host,
        sandbox=record.sandbox,
    )


def task_json(record: TaskRecord) -> dict[str, Any]:
    """Return a record as JSON, with the seed's names."""
    return {
        "id": record.id,
        "kind": record.kind,
        "name": record.name,
        "status": str(record.status),
        "createdAt": iso(record.created_at),
        "updatedAt": iso(record.updated_at),
        "owner": record.owner,
        "metadata": record.metadata,
        "agents": list(record.agents),
        "result": record.result,
        "tenant": record.tenant,
        "host": record.host,
        "sandbox": record.sandbox,
    }


# --- checks ---------------------------------------------------------------------------------------


def check_task_id(value: Any) -> str:
    """Return a valid task id: a name, never a path. Raises Refused ID_INVALID."""
    task_id = check_id(value, "task id")
    if task_id in (".", "..") or any(part in task_id for part in _PATH_PARTS):
        raise Refused(
            f"{task_id!a} cannot be a task id: it is a path",
            code="ID_INVALID",
            hint=f"use a name of 1 to {MAX_ID} characters without '/' and '\\'",
        )
    return task_id


def check_name(value: Any) -> str:
    """Return the name of a task. Raises Refused."""
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_NAME:
        raise invalid(
            f"the name of a task must be text of 1 to {MAX_NAME} characters, and not blank"
        )
    return check_storable(value, "the name of a task")


def check_owner(value: Any) -> str:
    """Return the owner of a task; None is `system`. Raises Refused."""
    if value is None:
        return SYSTEM
    if not isinstance(value, str) or not value.strip():
        raise invalid("the owner of a task must be text, and not blank")
    return check_id(value, "owner")


def check_storable(value: str, label: str) -> str:
    """Return text that every store can keep. Raises Refused."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid(f"{label} has a lone surrogate, which is not a character") from None
    return value


def json_object(value: Any, label: str, limit: int = MAX_ROW_BYTES) -> dict[str, Any]:
    """Return a value as a JSON object. Raises Refused."""
    if not isinstance(value, Mapping):
        raise invalid(f"{label} must be an object, not {type(value).__name__}")
    try:
        data = encode_value(value, label)
        decoded = msgspec.json.decode(data, type=dict[str, Any])
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise invalid(f"{label} is not JSON: {error}") from error
    if len(data) > limit:
        raise Refused(
            f"{label} takes {len(data):,} bytes, and {limit:,} are allowed",
            code="TOO_LARGE",
            hint="put large data into a file of the workspace",
        )
    return decoded


def check_status(value: Any) -> Status:
    """Return a status. Raises Refused INVALID_REQUEST."""
    try:
        return Status(value)
    except ValueError:
        raise invalid(
            f"{str(value)[:60]!a} is not a status of a task: use {', '.join(Status)}"
        ) from None


def check_kind(value: Any) -> TaskKind:
    """Return a kind of task. Raises Refused INVALID_REQUEST."""
    for kind in KINDS:
        if value == kind:
            return kind
    raise invalid(f"{str(value)[:60]!a} is not a kind of task: use {' or '.join(KINDS)}")


def check_count(value: Any, label: str) -> int:
    """Return a number that must not be negative. Raises Refused INVALID_REQUEST."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise invalid(f"{label} must be 0 or more, not {str(value)[:40]!a}")
    return value


def check_list(value: Any, label: str) -> list[Any]:
    """Return the items of a list or another iterable of items. Raises Refused INVALID_REQUEST."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise invalid(f"{label} must be a list, not {type(value).__name__}")
    return list(value)


def check_require(value: Any) -> tuple[str, ...]:
    """Return what a task requires of its sandbox. Raises Refused INVALID_REQUEST."""
    names = ("exec", *get_args(Guarantee))
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise invalid(f"require must be a list of {', '.join(names)}")
    for name in value:
        if name not in names:
            raise invalid(f"require: {str(name)[:40]!a} is not one of {', '.join(names)}")
    return tuple(dict.fromkeys(value))


def check_filters(filters: Any) -> TaskFilters:
    """Return valid filters from a value, a mapping or None. Raises Refused INVALID_REQUEST."""
    value = from_mapping({} if filters is None else filters, TaskFilters, "filters")
    if value.status is not None:
        check_status(value.status)
    return check_part(value)


def check_part(filters: Filters) -> Filters:
    """Return filters if all but the status are valid. Raises Refused INVALID_REQUEST."""
    if filters.owner is not None:
        if not isinstance(filters.owner, str):
            raise invalid("the owner of a filter must be text")
        check_storable(filters.owner, "the owner of a filter")
    if filters.kind is not None:
        check_kind(filters.kind)
    if filters.limit is not None:
        check_count(filters.limit, "limit")
    check_count(filters.offset, "offset")
    if filters.after is not None and not isinstance(filters.after, Task):
        raise invalid("`after` must be a task of the page before")
    return filters


_SPELLINGS: Final = {
    "taskId": "task_id",
    "agentId": "agent_id",
    "lastUpdated": "last_updated",
    "createdAt": "created_at",
    "updatedAt": "updated_at",
    "startDate": "start_date",
    "endDate": "end_date",
}


def from_mapping(value: Any, value_type: type[T], label: str) -> T:
    """Return a value of the type, from itself or a mapping with its keys. Raises Refused."""
    if isinstance(value, value_type):
        return value
    if not isinstance(value, Mapping):
        raise invalid(f"{label} must be {value_type.__name__} or a mapping of its fields")
    fields = {_SPELLINGS.get(key, str(key)): item for key, item in value.items()}
    try:
        return value_type(**fields)
    except TypeError as error:
        reason = str(error).replace(f"{value_type.__name__}.__init__() ", "")
        raise invalid(f"{label}: {reason}") from error


def check_log_entry(value: Any, now: int) -> LogEntry:
    """Return a log entry with a timestamp. Raises Refused INVALID_REQUEST."""
    entry = from_mapping(value, LogEntry, "a log entry")
    if entry.level not in ("info", "warn", "error", "debug"):
        raise invalid(f"{str(entry.level)[:40]!a} is not a level: use info, warn, error or debug")
    if not isinstance(entry.message, str):
        raise invalid("the message of a log entry must be text")
    return LogEntry(
        timestamp=_timestamp(entry.timestamp, now),
        level=entry.level,
        message=check_storable(entry.message, "the message of a log entry"),
        data=None if entry.data is None else json_object(entry.data, "data"),
    )


def check_decision(value: Any, now: int) -> AgentDecision:
    """Return a decision with a timestamp. Raises Refused INVALID_REQUEST."""
    decision = from_mapping(value, AgentDecision, "a decision")
    for label, text in (("decision", decision.decision), ("reasoning", decision.reasoning)):
        if not isinstance(text, str):
            raise invalid(f"the {label} of an agent must be text")
        check_storable(text, f"the {label} of an agent")
    return AgentDecision(
        timestamp=_timestamp(decision.timestamp, now),
        agent_id=check_id(decision.agent_id, "agent id"),
        decision=decision.decision,
        reasoning=decision.reasoning,
        metadata=(
            None if decision.metadata is None else json_object(decision.metadata, "metadata")
        ),
    )


def check_description(value: Any) -> str:
    """Return the description of a checkpoint. Raises Refused INVALID_REQUEST."""
    if not isinstance(value, str) or len(value) > 1_000:
        raise Refused(
            "a description must be text of at most 1,000 characters",
            code="INVALID_REQUEST",
            hint="say in one line why the checkpoint is taken",
        )
    return check_storable(value, "a description")


def _timestamp(value: Any, now: int) -> str:
    if not value:
        return iso(now)
    moment = parse_instant(value, "timestamp")
    return value if isinstance(value, str) else iso_text(moment)


def check_state(value: Any, task_id: str, now: int) -> TaskState:
    """Return a state to save. Raises Refused INVALID_REQUEST."""
    fields = value
    if isinstance(value, Mapping):
        fields = {"taskId": task_id, "lastUpdated": "", **value}
    state = from_mapping(fields, TaskState, "a state")
    if state.task_id != task_id:
        raise invalid(f"the state belongs to task {str(state.task_id)[:60]!a}, not to {task_id!a}")
    if not isinstance(state.status, str) or not state.status:
        raise invalid("the status of a state must be text")
    return TaskState(
        task_id=task_id,
        status=check_storable(state.status, "the status of a state"),
        data=json_object(state.data, "data", limit=50 * MAX_ROW_BYTES),
        last_updated=_timestamp(state.last_updated, now),
    )


def check_result(value: Any) -> dict[str, Any]:
    """Return the result of a task as JSON. Raises Refused INVALID_REQUEST."""
    result = from_mapping(value, TaskResult, "a result")
    if not isinstance(result.success, bool):
        raise invalid("`success` of a result must be true or false")
    if result.status not in (None, "success", "error"):
        raise invalid("`status` of a result must be 'success' or 'error'")
    for label, text in (("error", result.error), ("message", result.message)):
        if text is not None and not isinstance(text, str):
            raise invalid(f"`{label}` of a result must be text")
    names = ("status", "data", "error", "message")
    values = {name: getattr(result, name) for name in names}
    fields = {name: item for name, item in values.items() if item is not None}
    return json_object({"success": result.success, **fields}, "a result")


# --- errors ---------------------------------------------------------------------------------------


def invalid(text: str) -> Refused:
    """Return the error for an argument that is not valid."""
    return Refused(text, code="INVALID_REQUEST", hint="see docs/tasks.md for the fields")


def task_not_found(task_id: Any, hint: str = "perdure tasks list") -> NotFound:
    """Return the error for a task that does not exist; an id that none can have is escaped."""
    try:
        name = check_id(task_id, "task id")
    except Refused:
        name = f"{str(task_id)[:60]!a}"
    return NotFound(f"Task not found: {name}", code="TASK_NOT_FOUND", hint=hint)


def with_code(error: PerdureError, code: str) -> PerdureError:
    """Return the error under a code of the task API, with its own code in the details."""
    if error.code == code or isinstance(error, Corrupt):
        return error
    base = next(item for item in _BASES if isinstance(error, item))
    details = {**error.details, "cause": error.code}
    return base(error.message, code=code, hint=error.hint, details=details)


_BASES: Final = (NotFound, Conflict, Refused, NotAllowed, StoreError, PerdureError)
