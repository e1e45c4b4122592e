"""Routes of tasks: created, moved and listed; their logs, decisions and checkpoints."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, get_args

from fastapi import APIRouter, Depends, Header, Query, Response
from msgspec import Meta, Struct, field, to_builtins

from perdure.core.session.naming import MAX_ID
from perdure.core.tasks.facts import LogLevel
from perdure.core.tasks.record import KINDS
from perdure.errors import Refused
from perdure.runtime.tasks.layers import MAX_LINES
from perdure.runtime.tasks.values import MAX_NAME, StatusName
from perdure.runtime.tasks.verbs import TaskVerbs
from perdure.serve.http.dependencies import Administers, Id, Operates, Reads, RequestScope
from perdure.serve.http.responses import (
    Schema,
    json_response,
    object_schema,
    request_body,
    responses,
)
from perdure.serve.http.schemas import BOOLEAN, INTEGER, NULLABLE_OBJECT, OBJECT, TEXT, IdText
from perdure.serve.http.sse import (
    MEDIA_TYPE,
    OPENING,
    EventStreamResponse,
    event_frame,
    keep_alive_frame,
)

router = APIRouter(tags=["tasks"])

_CONTROLS: Final = "\x00-\x1f\x7f-\x9f\u2028\u2029"
NOT_BLANK: Final = r"\S"
TASK_ID_PATTERN: Final = rf"^(?!\.\.?$)[^{_CONTROLS}/\\]*$"
OWNER_PATTERN: Final = rf"^(?=.*\S)[^{_CONTROLS}]*$"

_STATUS: Final[Schema] = {"enum": list(get_args(StatusName))}
_COUNT: Final[dict[str, Any]] = {"type": "integer", "minimum": 0}
_INSTANT: Final[dict[str, Any]] = {"type": "string", "format": "date-time"}
_LEVELS: Final = get_args(LogLevel)
_TEXTS: Final[Schema] = {"type": "array", "items": TEXT}
_OBJECTS: Final[Schema] = {"type": "array", "items": OBJECT}
_TASK_FIELDS: Final[dict[str, Schema]] = {
    "id": TEXT,
    "kind": TEXT,
    "name": TEXT,
    "status": _STATUS,
    "createdAt": TEXT,
    "updatedAt": TEXT,
    "owner": TEXT,
    "metadata": OBJECT,
    "agents": _TEXTS,
    "result": NULLABLE_OBJECT,
    "tenant": TEXT,
    "host": TEXT,
}
TASK: Final = object_schema(_TASK_FIELDS, **_TASK_FIELDS)
CHANGED: Final = object_schema(
    ("success", "taskId", "status", "task"),
    success=BOOLEAN,
    taskId=TEXT,
    status=_STATUS,
    task=TASK,
    createdAt=TEXT,
    agentId=TEXT,
    attached=BOOLEAN,
    detached=BOOLEAN,
)
_LIST: Final = object_schema(
    ("success", "tasks", "count"),
    success=BOOLEAN,
    tasks={"type": "array", "items": TASK},
    count=INTEGER,
)
_DELETED: Final = object_schema(
    ("success", "taskId", "message"), success=BOOLEAN, taskId=TEXT, message=TEXT
)
_LOGS: Final = object_schema(("taskId", "logs"), taskId=TEXT, logs=_OBJECTS)
_DECISIONS: Final = object_schema(("taskId", "decisions"), taskId=TEXT, decisions=_OBJECTS)
_CHECKPOINTS: Final = object_schema(("taskId", "checkpoints"), taskId=TEXT, checkpoints=_OBJECTS)
_DONE: Final = object_schema(("success", "taskId"), success=BOOLEAN, taskId=TEXT)
_DIFF: Final = object_schema(
    ("taskId", "checkpointId", "added", "removed", "changed"),
    taskId=TEXT,
    checkpointId=TEXT,
    added=_TEXTS,
    removed=_TEXTS,
    changed=_TEXTS,
)


# The ids, names and owners that `runtime.tasks.values` accepts.
_TaskId = Annotated[str, Meta(min_length=1, max_length=MAX_ID, pattern=TASK_ID_PATTERN)]
_Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, pattern=NOT_BLANK)]
_Owner = Annotated[str, Meta(min_length=1, max_length=MAX_ID, pattern=OWNER_PATTERN)]


class NewTaskBody(Struct, forbid_unknown_fields=True):
    """Body that creates a task."""

    name: _Name
    kind: Literal["sandbox"] = "sandbox"
    task_id: _TaskId | None = field(default=None, name="taskId")
    owner: _Owner | None = None
    metadata: dict[str, Any] | None = None


_Instant = Annotated[str, Meta(min_length=1, extra_json_schema={"format": "date-time"})]


class AgentBody(Struct, forbid_unknown_fields=True):
    """Body that names an agent."""

    agent_id: IdText = field(name="agentId")


class ResultFields(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Result of a task."""

    success: bool
    status: Literal["success", "error"] | None = None
    data: Any = None
    error: str | None = None
    message: str | None = None


class TaskResultBody(Struct, forbid_unknown_fields=True):
    """Body that completes a task."""

    result: ResultFields


class TaskErrorBody(Struct, forbid_unknown_fields=True):
    """Body that fails a task."""

    error: str


class LogLine(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A log entry; without a timestamp it gets the present one."""

    message: str
    level: LogLevel = "info"
    timestamp: _Instant | None = None
    data: dict[str, Any] | None = None


class LogsBody(Struct, forbid_unknown_fields=True):
    """Body that appends log entries."""

    entries: Annotated[list[LogLine], Meta(max_length=MAX_LINES)]


class DecisionBody(Struct, forbid_unknown_fields=True):
    """Body that appends a decision."""

    agent_id: IdText = field(name="agentId")
    decision: str
    reasoning: str = ""
    timestamp: _Instant | None = None
    metadata: dict[str, Any] | None = None


class CheckpointBody(Struct, forbid_unknown_fields=True):
    """Body that takes a checkpoint."""

    description: str | None = None


class RestoreBody(Struct, forbid_unknown_fields=True):
    """Body that restores a checkpoint, or only these paths of it."""

    paths: list[str] | None = None


def _verbs(scope: RequestScope) -> TaskVerbs:
    return TaskVerbs(scope.service.tasks, scope.tenant)


# --- tasks ----------------------------------------------------------------------------------------


@router.post(
    "/tasks",
    responses=responses({201: CHANGED}, 409),
    openapi_extra=request_body(NewTaskBody),
)
async def create_task(scope: Operates) -> Response:
    """Create a task, pending; its folder is on the machine of this server."""
    body = await scope.read_body(NewTaskBody)
    config = {"id": body.task_id, "name": body.name, "owner": body.owner, "kind": body.kind}
    return json_response(await _verbs(scope).create({**config, "metadata": body.metadata}), 201)


@dataclass(frozen=True, slots=True)
class TaskQuery:
    """Filters of a list of tasks; the service checks them."""

    status: Annotated[str | None, Query(json_schema_extra=dict(_STATUS))] = None
    owner: Annotated[str | None, Query()] = None
    kind: Annotated[str | None, Query(json_schema_extra={"enum": list(KINDS)})] = None
    limit: Annotated[str, Query(json_schema_extra=_COUNT)] = "100"
    offset: Annotated[str, Query(json_schema_extra=_COUNT)] = "0"


@router.get("/tasks", responses=responses({200: _LIST}))
async def list_tasks(scope: Reads, query: Annotated[TaskQuery, Depends()]) -> Response:
    """List tasks, newest first; `count` is the number of all that match."""
    filters = {"status": query.status, "owner": query.owner, "kind": query.kind}
    limit, offset = _number(query.limit, "limit"), _number(query.offset, "offset")
    return json_response(
        await _verbs(scope).list({**filters, "limit": min(limit, 1000), "offset": offset})
    )


def _number(text: str, name: str) -> int:
    if not text.isdecimal():
        raise Refused(
            f"{name} must be 0 or more, not {text!a}",
            code="INVALID_REQUEST",
            hint=f"pass ?{name}=10",
        )
    return int(text)


@router.get("/tasks/{task_id}", responses=responses({200: CHANGED}, 404))
async def get_task(scope: Reads, task_id: Id) -> Response:
    """Return a task."""
    return json_response(await _verbs(scope).get(task_id))


@router.delete("/tasks/{task_id}", responses=responses({200: _DELETED}, 404))
async def delete_task(scope: Administers, task_id: Id) -> Response:
    """Delete a task with its log, decisions, checkpoints, locks and files."""
    return json_response(await _verbs(scope).delete(task_id))


@router.post(
    "/tasks/{task_id}/attach",
    responses=responses({200: CHANGED}, 404, 409),
    openapi_extra=request_body(AgentBody),
)
async def attach_agent(scope: Operates, task_id: Id) -> Response:
    """Attach an agent; the first one starts the task."""
    body = await scope.read_body(AgentBody)
    return json_response(await _verbs(scope).attach(task_id, body.agent_id))


@router.post(
    "/tasks/{task_id}/detach",
    responses=responses({200: CHANGED}, 404),
    openapi_extra=request_body(AgentBody),
)
async def detach_agent(scope: Operates, task_id: Id) -> Response:
    """Detach an agent; `detached` is false if it was not attached."""
    body = await scope.read_body(AgentBody)
    return json_response(await _verbs(scope).detach(task_id, body.agent_id))


@router.post(
    "/tasks/{task_id}/start",
    responses=responses({200: CHANGED}, 404, 409),
    openapi_extra=request_body(AgentBody),
)
async def start_task(scope: Operates, task_id: Id) -> Response:
    """Start a pending task."""
    body = await scope.read_body(AgentBody)
    return json_response(await _verbs(scope).start(task_id, body.agent_id))


@router.post(
    "/tasks/{task_id}/complete",
    responses=responses({200: CHANGED}, 404, 409),
    openapi_extra=request_body(TaskResultBody),
)
async def complete_task(scope: Operates, task_id: Id) -> Response:
    """Complete a running task with its result."""
    body = await scope.read_body(TaskResultBody)
    return json_response(await _verbs(scope).complete(task_id, to_builtins(body.result)))


@router.post(
    "/tasks/{task_id}/fail",
    responses=responses({200: CHANGED}, 404, 409),
    openapi_extra=request_body(TaskErrorBody),
)
async def fail_task(scope: Operates, task_id: Id) -> Response:
    """Fail a running task with its error."""
    body = await scope.read_body(TaskErrorBody)
    return json_response(await _verbs(scope).fail(task_id, body.error))


@router.post("/tasks/{task_id}/cancel", responses=responses({200: CHANGED}, 404, 409))
async def cancel_task(scope: Operates, task_id: Id) -> Response:
    """Cancel a pending or running task."""
    return json_response(await _verbs(scope).cancel(task_id))


# --- log and decisions ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Filters of a log; a stream has only the position after which it begins."""

    level: Annotated[str | None, Query(json_schema_extra={"enum": list(_LEVELS)})] = None
    startDate: Annotated[str | None, Query(json_schema_extra=_INSTANT)] = None  # noqa: N815
    endDate: Annotated[str | None, Query(json_schema_extra=_INSTANT)] = None  # noqa: N815
    limit: Annotated[str, Query(json_schema_extra=_COUNT)] = "1000"
    offset: Annotated[str, Query(json_schema_extra=_COUNT)] = "0"
    after: Annotated[int, Query(ge=0, description="The seq to follow after, in a stream.")] = 0
    accept: Annotated[str | None, Header(include_in_schema=False)] = None
    last: Annotated[str | None, Header(alias="last-event-id", pattern="^[0-9]{1,15}$")] = None

    @property
    def options(self) -> dict[str, Any]:
        """The options of a page."""
        dates = {"start_date": self.startDate, "end_date": self.endDate}
        return {
            "level": self.level,
            "limit": _number(self.limit, "limit"),
            "offset": _number(self.offset, "offset"),
            **dates,
        }


@router.get("/tasks/{task_id}/logs", responses=responses({200: _LOGS}, 404))
async def get_task_logs(
    scope: Reads, task_id: Id, query: Annotated[LogQuery, Depends()]
) -> Response:
    """Return the log of a task, oldest first; as `text/event-stream`, follow it.

    Each event of a stream has the lines of one record.
    """
    if MEDIA_TYPE in (query.accept or ""):
        await _verbs(scope).get(task_id)
        after = int(query.last) if query.last else query.after
        return EventStreamResponse(
            _log_frames(_verbs(scope), task_id, after), scope.app_state.closing
        )
    return json_response(await _verbs(scope).logs(task_id, query.options))


async def _log_frames(verbs: TaskVerbs, task_id: str, after: int) -> AsyncGenerator[bytes, None]:
    yield OPENING
    async for item in verbs.follow_logs(task_id, after):
        if item is None:
            yield keep_alive_frame()
        else:
            yield event_frame("log", item, str(item["seq"]))


@router.post(
    "/tasks/{task_id}/logs",
    responses=responses({200: _DONE}, 404),
    openapi_extra=request_body(LogsBody),
)
async def append_task_logs(scope: Operates, task_id: Id) -> Response:
    """Append log entries, all or none."""
    body = await scope.read_body(LogsBody)
    return json_response(await _verbs(scope).append_logs(task_id, to_builtins(body.entries)))


@router.get("/tasks/{task_id}/decisions", responses=responses({200: _DECISIONS}, 404))
async def get_task_decisions(scope: Reads, task_id: Id) -> Response:
    """Return the decisions of the agents, oldest first."""
    return json_response(await _verbs(scope).decisions(task_id))


@router.post(
    "/tasks/{task_id}/decisions",
    responses=responses({200: _DONE}, 404),
    openapi_extra=request_body(DecisionBody),
)
async def append_task_decision(scope: Operates, task_id: Id) -> Response:
    """Append a decision of an agent."""
    body = await scope.read_body(DecisionBody)
    fields = {"agentId": body.agent_id, "decision": body.decision, "reasoning": body.reasoning}
    decision = {**fields, "timestamp": body.timestamp, "metadata": body.metadata}
    return json_response(await _verbs(scope).append_decision(task_id, decision))


# --- checkpoints ----------------------------------------------------------------------------------


@router.get("/tasks/{task_id}/checkpoints", responses=responses({200: _CHECKPOINTS}, 404))
async def list_task_checkpoints(scope: Reads, task_id: Id) -> Response:
    """List the checkpoints of a task, newest first."""
    return json_response(await _verbs(scope).checkpoints(task_id))


@router.post(
    "/tasks/{task_id}/checkpoints",
    responses=responses({201: _DONE}, 404),
    openapi_extra=request_body(CheckpointBody, optional=True),
)
async def take_task_checkpoint(scope: Operates, task_id: Id) -> Response:
    """Take a checkpoint of the state, log, decisions and workspace."""
    body = await scope.read_body(CheckpointBody, empty=CheckpointBody())
    return json_response(await _verbs(scope).checkpoint(task_id, body.description), 201)


@router.post(
    "/tasks/{task_id}/checkpoints/{checkpoint_id}/restore",
    responses=responses({200: _DONE}, 404),
    openapi_extra=request_body(RestoreBody, optional=True),
)
async def restore_task_checkpoint(scope: Operates, task_id: Id, checkpoint_id: Id) -> Response:
    """Put the state and workspace of a checkpoint back; the present ones are saved first."""
    body = await scope.read_body(RestoreBody, empty=RestoreBody())
    return json_response(await _verbs(scope).restore(task_id, checkpoint_id, body.paths))


@router.get(
    "/tasks/{task_id}/checkpoints/{checkpoint_id}/diff", responses=responses({200: _DIFF}, 404)
)
async def diff_task_checkpoint(
    scope: Reads,
    task_id: Id,
    checkpoint_id: Id,
    other: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    """Compare a checkpoint with another one, or with the workspace as it is now."""
    return json_response(await _verbs(scope).diff(task_id, checkpoint_id, other))


@router.get(
    "/tasks/{task_id}/checkpoints/{checkpoint_id}/verify", responses=responses({200: OBJECT}, 404)
)
async def verify_task_checkpoint(scope: Reads, task_id: Id, checkpoint_id: Id) -> Response:
    """Verify every object of a checkpoint."""
    return json_response(await _verbs(scope).verify(task_id, checkpoint_id))


@router.delete(
    "/tasks/{task_id}/checkpoints/{checkpoint_id}", responses=responses({200: _DONE}, 404)
)
async def delete_task_checkpoint(scope: Administers, task_id: Id, checkpoint_id: Id) -> Response:
    """Delete a checkpoint, and the objects that no other one needs."""
    return json_response(await _verbs(scope).delete_checkpoint(task_id, checkpoint_id))
