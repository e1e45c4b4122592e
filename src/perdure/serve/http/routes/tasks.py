"""Routes of tasks of every kind: launched, listed, cancelled, deleted; moves of shared ones."""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from fastapi import APIRouter, Depends, Header, Query, Response
from msgspec import Meta, Raw, Struct, field, to_builtins

from perdure.core.pending.record import APPROVER_KINDS
from perdure.core.session.children import TASK_STATUSES
from perdure.core.session.naming import MAX_ID
from perdure.core.tasks.record import KINDS
from perdure.errors import Refused
from perdure.runtime.agents.delegation import check_launch
from perdure.runtime.sessions.task_lists import MAX_PAGE, STATUSES
from perdure.runtime.sessions.task_verbs import AnyTaskVerbs
from perdure.runtime.tasks.values import MAX_NAME, StatusName
from perdure.sandbox.base import Guarantee
from perdure.serve.http.content import PromptIn, store_content
from perdure.serve.http.dependencies import Administers, Id, Key, Operates, Reads, RequestScope
from perdure.serve.http.responses import (
    Schema,
    body_extra,
    decode_body,
    json_response,
    json_schema,
    object_schema,
    request_body,
    responses,
)
from perdure.serve.http.schemas import (
    BOOLEAN,
    INTEGER,
    NULLABLE_OBJECT,
    NULLABLE_TEXT,
    OBJECT,
    TEXT,
    IdText,
)
from perdure.serve.http.sse import (
    OPENING,
    EventStreamResponse,
    event_frame,
    is_stream_requested,
    keep_alive_frame,
)

router = APIRouter(tags=["tasks"])

_CONTROLS: Final = "\x00-\x1f\x7f-\x9f\u2028\u2029"
NOT_BLANK: Final = r"\S"
TASK_ID_PATTERN: Final = rf"^(?!\.\.?$)[^{_CONTROLS}/\\]*$"
OWNER_PATTERN: Final = rf"^(?=.*\S)[^{_CONTROLS}]*$"

_STATUS: Final[Schema] = {"enum": list(get_args(StatusName))}
_CHILD_STATUS: Final[Schema] = {"enum": list(TASK_STATUSES)}
_DIGITS: Final = 18  # of numbers in a query; a longer one counts as 10**18
COUNT: Final[dict[str, Any]] = {"type": "integer", "minimum": 0}
TEXTS: Final[Schema] = {"type": "array", "items": TEXT}
OBJECTS: Final[Schema] = {"type": "array", "items": OBJECT}
_ROW: Final[dict[str, Schema]] = {
    "id": TEXT,
    "name": TEXT,
    "createdAt": TEXT,
    "updatedAt": TEXT,
    "agents": TEXTS,
    "tenant": TEXT,
}
_SHARED: Final[dict[str, Schema]] = {
    **_ROW,
    "kind": {"enum": ["sandbox"]},
    "status": _STATUS,
    "owner": TEXT,
    "metadata": OBJECT,
    "result": NULLABLE_OBJECT,
    "host": TEXT,
    "sandbox": TEXT,
}
_BACKGROUND: Final[dict[str, Schema]] = {
    **_ROW,
    "kind": {"enum": ["background"]},
    "status": _CHILD_STATUS,
    "agent": TEXT,
    "description": TEXT,
    "sessionID": TEXT,
    "parent": NULLABLE_TEXT,
    "ancestry": TEXTS,
    "resumeCount": INTEGER,
}
# Of one background agent; a list reads no sessions.
_DETAILS: Final[dict[str, Schema]] = {
    "state": NULLABLE_TEXT,
    "output": {},
    "error": NULLABLE_OBJECT,
    "problem": NULLABLE_OBJECT,
    "pending": OBJECTS,
}
_WAITING_FOR: Final[Schema] = {
    "type": "array",
    "description": "Calls for which it waits for approvers; left out if there are none.",
    "items": object_schema(
        ("pendingID", "kind", "tool", "prompt", "approvers", "missingApprovals"),
        pendingID=TEXT,
        kind={"enum": sorted(APPROVER_KINDS)},
        tool=TEXT,
        prompt=NULLABLE_TEXT,
        approvers=TEXTS,
        missingApprovals=INTEGER,
    ),
}
SHARED_TASK: Final = object_schema(_SHARED, **_SHARED)
BACKGROUND_TASK: Final = object_schema(
    _BACKGROUND, **_BACKGROUND, **_DETAILS, waitingFor=_WAITING_FOR
)
CHANGED: Final = object_schema(
    ("success", "taskId", "status", "task"),
    success=BOOLEAN,
    taskId=TEXT,
    status=_STATUS,
    task=SHARED_TASK,
    createdAt=TEXT,
    agentId=TEXT,
    attached=BOOLEAN,
    detached=BOOLEAN,
    execution=object_schema(
        ("available", "sandbox"),
        available=BOOLEAN,
        sandbox=TEXT,
        reason=TEXT,
        remedy=TEXT,
        guarantees=TEXTS,
    ),
)
_BACKGROUND_CHANGED: Final = object_schema(
    ("success", "taskId", "status", "resumeCount", "task"),
    success=BOOLEAN,
    taskId=TEXT,
    status=_CHILD_STATUS,
    resumeCount=INTEGER,
    task=BACKGROUND_TASK,
)
ANY_CHANGED: Final[Schema] = {"anyOf": [CHANGED, _BACKGROUND_CHANGED]}
OUTCOME: Final = object_schema(
    ("success", "taskId", "status", "resumeCount"),
    success=BOOLEAN,
    taskId=TEXT,
    status=_CHILD_STATUS,
    resumeCount=INTEGER,
    output=TEXT,
    error=TEXT,
    waitingFor=_WAITING_FOR,
    message=TEXT,
)
_LIST: Final = object_schema(
    ("success", "tasks", "count"),
    success=BOOLEAN,
    tasks={"type": "array", "items": {"anyOf": [SHARED_TASK, BACKGROUND_TASK]}},
    count=INTEGER,
)
DONE: Final = object_schema(("success", "taskId"), success=BOOLEAN, taskId=TEXT)
_DELETED: Final = object_schema(
    ("success", "taskId", "message"), success=BOOLEAN, taskId=TEXT, message=TEXT
)


# The ids, names and owners that `runtime.tasks.values` accepts.
_TaskId = Annotated[str, Meta(min_length=1, max_length=MAX_ID, pattern=TASK_ID_PATTERN)]
_Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, pattern=NOT_BLANK)]
_Requirement = Literal["exec"] | Guarantee
_Owner = Annotated[str, Meta(min_length=1, max_length=MAX_ID, pattern=OWNER_PATTERN)]


class NewTaskBody(Struct, forbid_unknown_fields=True):
    """Body that creates a shared task."""

    name: _Name
    kind: Literal["sandbox"] = "sandbox"
    task_id: _TaskId | None = field(default=None, name="taskId")
    owner: _Owner | None = None
    metadata: dict[str, Any] | None = None
    require: list[_Requirement] | None = None


class LaunchBody(Struct, forbid_unknown_fields=True):
    """Body that launches a background agent; `parent` is the session that is notified."""

    agent: IdText
    prompt: PromptIn
    kind: Literal["background"] = "background"
    parent: IdText | None = None
    description: str | None = None
    key: IdText | None = None


class _BodyKeys(Struct):
    """Keys of a body that only launches have."""

    agent: Any = None
    prompt: Any = None
    kind: Any = None

    @property
    def is_launch(self) -> bool:
        return self.agent is not None or self.prompt is not None or self.kind == "background"


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


def any_verbs(scope: RequestScope) -> AnyTaskVerbs:
    """Return the verbs on tasks of every kind."""
    return AnyTaskVerbs(scope.service, scope.tenant, scope.actor(), scope.via)


# --- tasks of every kind --------------------------------------------------------------------------


@router.post(
    "/tasks",
    responses=responses({200: _BACKGROUND_CHANGED, 201: ANY_CHANGED}, 404, 409),
    openapi_extra=body_extra({"anyOf": [json_schema(NewTaskBody), json_schema(LaunchBody)]}),
)
async def create_task(scope: Operates, key: Key = None) -> Response:
    """Create a shared task, pending, or launch a background agent.

    The folder of a shared task is on the machine of this server. The same key again returns the
    background agent that it launched (200).
    """
    raw = await scope.read_body(Raw)
    if (keys := _launch_keys(raw)) is not None:
        check_launch({"agent": keys.agent, "prompt": keys.prompt})
        return await _launch(scope, decode_body(bytes(raw), LaunchBody), key)
    body = decode_body(bytes(raw), NewTaskBody)
    config = {"id": body.task_id, "name": body.name, "owner": body.owner, "kind": body.kind}
    more = {"metadata": body.metadata, "require": body.require}
    created = await scope.tasks.create({**config, **more})
    return json_response(created, 201)


def _launch_keys(raw: Raw) -> _BodyKeys | None:
    """Return the keys of a body that launches a background agent; None for another one."""
    try:
        keys = msgspec.json.decode(raw, type=_BodyKeys)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None  # the decoder of the other body says what is wrong
    return keys if keys.is_launch else None


async def _launch(scope: RequestScope, body: LaunchBody, key: str | None) -> Response:
    scope.service.agents.get(body.agent)  # before the bytes of files are stored
    launched, is_new = await any_verbs(scope).spawn(
        body.agent,
        await store_content(scope.service, None, body.prompt),
        parent=body.parent,
        description=body.description,
        key=body.key or key or None,  # a header may be empty
    )
    return json_response(launched, 201 if is_new else 200)


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Filters of a list of tasks; the service checks them."""

    status: Annotated[str | None, Query(json_schema_extra={"enum": list(STATUSES)})] = None
    owner: Annotated[str | None, Query()] = None
    kind: Annotated[str | None, Query(json_schema_extra={"enum": list(KINDS)})] = None
    parent: Annotated[str | None, Query(description="Session of the background agents.")] = None
    limit: Annotated[str, Query(json_schema_extra=COUNT)] = "100"
    offset: Annotated[str, Query(json_schema_extra=COUNT)] = "0"
    accept: Annotated[str | None, Header(include_in_schema=False)] = None

    @property
    def filters(self) -> dict[str, Any]:
        """The filters as the service takes them. Raises Refused."""
        return {
            "status": self.status,
            "owner": self.owner,
            "kind": self.kind,
            "parent": self.parent,
            "limit": min(whole_number(self.limit, "limit"), MAX_PAGE),
            "offset": whole_number(self.offset, "offset"),
        }


@router.get("/tasks", responses=responses({200: _LIST}, 404))
async def list_tasks(scope: Reads, query: Annotated[ListQuery, Depends()]) -> Response:
    """List tasks of every kind, newest first; `count` is the number of all that match.

    As `text/event-stream`, follow the page: `task` for each task that it has and each that
    changes, `removed` for each that leaves it.
    """
    verbs = any_verbs(scope)
    page = await verbs.list(query.filters)
    if is_stream_requested(query.accept):
        return _stream(scope, verbs.follow(query.filters))
    return json_response(page)


def whole_number(text: str, name: str) -> int:
    """Return a number of a query. Raises Refused."""
    if not text.isdecimal():
        raise Refused(
            f"{name} must be 0 or more, not {text[:40]!a}",
            code="INVALID_REQUEST",
            hint=f"pass ?{name}=10",
        )
    return int(text) if len(text) < _DIGITS else 10**_DIGITS  # int() takes time, or raises


def _stream(scope: RequestScope, items: AsyncIterator[dict[str, Any] | None]) -> Response:
    return EventStreamResponse(task_frames(items), scope.app_state.closing)


async def task_frames(
    items: AsyncIterator[dict[str, Any] | None],
) -> AsyncGenerator[bytes, None]:
    """Yield tasks that changed as frames; they have no id, since a new stream sends all again."""
    yield OPENING
    async for item in items:
        yield keep_alive_frame() if item is None else event_frame(item["type"], item)


@router.get("/tasks/{task_id}", responses=responses({200: ANY_CHANGED}, 404))
async def get_task(
    scope: Reads,
    task_id: Id,
    accept: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> Response:
    """Return a task of any kind; as `text/event-stream`, follow it."""
    verbs = any_verbs(scope)
    task = await verbs.get(task_id)
    if is_stream_requested(accept):
        return _stream(scope, verbs.follow_task(task_id))
    return json_response(task)


@router.post("/tasks/{task_id}/cancel", responses=responses({200: ANY_CHANGED}, 404, 409))
async def cancel_task(scope: Operates, task_id: Id) -> Response:
    """Cancel a task that has not ended."""
    return json_response(await any_verbs(scope).cancel(task_id))


@router.delete("/tasks/{task_id}", responses=responses({200: _DELETED}, 404, 409))
async def delete_task(scope: Administers, task_id: Id) -> Response:
    """Delete a task with everything it has.

    That is the log, decisions, checkpoints, locks and files of a shared task; the session of a
    background agent and all that it launched.
    """
    return json_response(await any_verbs(scope).delete(task_id))


# --- moves of shared tasks ------------------------------------------------------------------------


@router.post(
    "/tasks/{task_id}/attach",
    responses=responses({200: CHANGED}, 404, 409),
    openapi_extra=request_body(AgentBody),
)
async def attach_agent(scope: Operates, task_id: Id) -> Response:
    """Attach an agent; the first one starts the task."""
    body = await scope.read_body(AgentBody)
    return json_response(await scope.tasks.attach(task_id, body.agent_id))


@router.post(
    "/tasks/{task_id}/detach",
    responses=responses({200: CHANGED}, 404),
    openapi_extra=request_body(AgentBody),
)
async def detach_agent(scope: Operates, task_id: Id) -> Response:
    """Detach an agent; `detached` is false if it was not attached."""
    body = await scope.read_body(AgentBody)
    return json_response(await scope.tasks.detach(task_id, body.agent_id))


@router.post(
    "/tasks/{task_id}/start",
    responses=responses({200: CHANGED}, 404, 409),
    openapi_extra=request_body(AgentBody),
)
async def start_task(scope: Operates, task_id: Id) -> Response:
    """Start a pending task."""
    body = await scope.read_body(AgentBody)
    return json_response(await scope.tasks.start(task_id, body.agent_id))


@router.post(
    "/tasks/{task_id}/complete",
    responses=responses({200: CHANGED}, 404, 409),
    openapi_extra=request_body(TaskResultBody),
)
async def complete_task(scope: Operates, task_id: Id) -> Response:
    """Complete a running task with its result."""
    body = await scope.read_body(TaskResultBody)
    return json_response(await scope.tasks.complete(task_id, to_builtins(body.result)))


@router.post(
    "/tasks/{task_id}/fail",
    responses=responses({200: CHANGED}, 404, 409),
    openapi_extra=request_body(TaskErrorBody),
)
async def fail_task(scope: Operates, task_id: Id) -> Response:
    """Fail a running task with its error."""
    body = await scope.read_body(TaskErrorBody)
    return json_response(await scope.tasks.fail(task_id, body.error))
