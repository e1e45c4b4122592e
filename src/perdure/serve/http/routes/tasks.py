"""Routes of tasks of every kind: launched, listed, cancelled, deleted; moves of shared ones."""

from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, to_builtins
from msgspec.structs import asdict
from starlette.responses import Response

from perdure.runtime.agents.delegation import check_launch
from perdure.runtime.sessions.message_content import store_content
from perdure.runtime.sessions.task_lists import MAX_PAGE, STATUSES
from perdure.runtime.sessions.task_verbs import AnyTaskVerbs
from perdure.serve.http.dependencies import ADMINISTERS, OPERATES, READS, RequestScope
from perdure.serve.http.parameters import ACCEPT, KEY
from perdure.serve.http.responses import decode_body, json_response
from perdure.serve.http.sse import EventStreamResponse, is_stream_requested, item_frames
from perdure.serve.http.table import INVALID_REQUEST, EventStream, Route, tagged, value_or_none
from perdure.tasks.model.record import KINDS
from perdure.views.cursors import Cursor
from perdure.views.task_bodies import (
    AgentBody,
    LaunchBody,
    NewTaskBody,
    TaskCancelBody,
    TaskErrorBody,
    TaskResultBody,
)
from perdure.views.tasks import (
    AnyTask,
    BackgroundTask,
    DeletedTask,
    DetachedAgent,
    SandboxTask,
    TaskPage,
)

Count = Annotated[int, Meta(ge=0)]


class _BodyKeys(Struct):
    """Keys of a body that only launches have."""

    agent: Any = None
    prompt: Any = None
    kind: Any = None


def any_verbs(scope: RequestScope) -> AnyTaskVerbs:
    """Return the verbs on tasks of every kind."""
    return AnyTaskVerbs(scope.service, scope.caller)


# --- tasks of every kind --------------------------------------------------------------------------


async def create_task(scope: RequestScope, body: Raw) -> Response:
    """Create a shared task, pending, or launch a background agent.

    The folder of a shared task is on the machine of this server. The same key again returns the
    background agent that it launched (200).
    """
    raw = bytes(body)
    if (keys := _launch_keys(raw)) is not None:
        check_launch({"agent": keys.agent, "prompt": keys.prompt})
        return await _launch(scope, decode_body(raw, LaunchBody), scope.key)
    fields = asdict(decode_body(raw, NewTaskBody))
    return json_response(await scope.tasks.create({"id": fields.pop("task_id"), **fields}), 201)


def _launch_keys(raw: bytes) -> _BodyKeys | None:
    """Return the keys of a body that launches a background agent; None for another one."""
    try:
        keys = msgspec.json.decode(raw, type=_BodyKeys)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None  # the decoder of the other body says what is wrong
    has_keys = keys.agent is not None or keys.prompt is not None
    return keys if has_keys or keys.kind == "background" else None


async def _launch(scope: RequestScope, body: LaunchBody, key: str | None) -> Response:
    scope.service.agents.get(body.agent)  # before the bytes of files are stored
    launched, is_new = await any_verbs(scope).launch(
        body.agent,
        await store_content(scope.service, None, body.prompt),
        parent=body.parent,
        description=body.description,
        key=body.key or key or None,  # a header may be empty
    )
    return json_response(launched, 201 if is_new else 200)


class ListQuery(Struct, frozen=True, kw_only=True):
    """Filters of a list of tasks; the service checks them."""

    status: Annotated[str, Meta(extra_json_schema={"enum": list(STATUSES)})] | UnsetType = UNSET
    owner: str | UnsetType = UNSET
    kind: Annotated[str, Meta(extra_json_schema={"enum": list(KINDS)})] | UnsetType = UNSET
    parent: Annotated[str, Meta(description="Session of the background agents.")] | UnsetType = (
        UNSET
    )
    limit: Count = 100
    offset: Count = 0
    cursor: Cursor = UNSET
    ERROR: ClassVar[str] = INVALID_REQUEST


async def list_tasks(scope: RequestScope, query: ListQuery) -> TaskPage | Response:
    """List tasks of every kind, newest first; `count` is the number of all that match.

    New tasks move what an `offset` counts. With `cursor`, the `next` of a page, the page after it
    repeats none of its tasks; an `offset` beside it counts from there.

    As `text/event-stream`, follow the page: `task` for each task that it has and each that
    changes, `removed` for each that leaves it.
    """
    filters = {name: value_or_none(value) for name, value in asdict(query).items()}
    filters["limit"] = min(query.limit, MAX_PAGE)
    verbs = any_verbs(scope)
    page = await verbs.list(filters)
    if is_stream_requested(scope.accept):
        return EventStreamResponse(item_frames(verbs.follow(filters)), scope.app_state.closing)
    return page


async def get_task(scope: RequestScope, task_id: str) -> AnyTask | Response:
    """Return a task of any kind; as `text/event-stream`, follow it."""
    verbs = any_verbs(scope)
    task = await verbs.get(task_id)
    if is_stream_requested(scope.accept):
        return EventStreamResponse(item_frames(verbs.follow_task(task_id)), scope.app_state.closing)
    return task


async def cancel_task(scope: RequestScope, task_id: str, body: TaskCancelBody) -> AnyTask:
    """Cancel a task that has not ended; a background agent with the reason."""
    return await any_verbs(scope).cancel(task_id, by=body.by, reason=body.reason)


async def delete_task(scope: RequestScope, task_id: str) -> DeletedTask:
    """Delete a task with everything it has.

    That is the log, decisions, checkpoints, locks and files of a shared task; the session of a
    background agent and all that it launched.
    """
    return await any_verbs(scope).delete(task_id)


# --- moves of shared tasks ------------------------------------------------------------------------


async def attach_agent(scope: RequestScope, task_id: str, body: AgentBody) -> SandboxTask:
    """Attach an agent; the first one starts the task."""
    return await scope.tasks.attach(task_id, body.agent_id)


async def detach_agent(scope: RequestScope, task_id: str, body: AgentBody) -> DetachedAgent:
    """Detach an agent; `detached` is false if it was not attached."""
    return await scope.tasks.detach(task_id, body.agent_id)


async def start_task(scope: RequestScope, task_id: str, body: AgentBody) -> SandboxTask:
    """Start a pending task."""
    return await scope.tasks.start(task_id, body.agent_id)


async def complete_task(scope: RequestScope, task_id: str, body: TaskResultBody) -> SandboxTask:
    """Complete a running task with its result."""
    return await scope.tasks.complete(task_id, to_builtins(body.result))


async def fail_task(scope: RequestScope, task_id: str, body: TaskErrorBody) -> SandboxTask:
    """Fail a running task with its error."""
    return await scope.tasks.fail(task_id, body.error)


_TASK: Final = "/tasks/{task_id}"
ROUTES: Final = tagged(
    "tasks",
    Route(
        "POST",
        "/tasks",
        OPERATES,
        create_task,
        body_types=(NewTaskBody, LaunchBody),
        headers=(KEY,),
        returns={200: BackgroundTask, 201: (SandboxTask, BackgroundTask)},
    ),
    Route(
        "GET",
        "/tasks",
        READS,
        list_tasks,
        headers=(ACCEPT,),
        returns={200: (TaskPage, EventStream)},
    ),
    Route(
        "GET",
        _TASK,
        READS,
        get_task,
        headers=(ACCEPT,),
        returns={200: (SandboxTask, BackgroundTask, EventStream)},
    ),
    Route("POST", f"{_TASK}/cancel", OPERATES, cancel_task, optional_body=True),
    Route("DELETE", _TASK, ADMINISTERS, delete_task),
    Route("POST", f"{_TASK}/attach", OPERATES, attach_agent),
    Route("POST", f"{_TASK}/detach", OPERATES, detach_agent),
    Route("POST", f"{_TASK}/start", OPERATES, start_task),
    Route("POST", f"{_TASK}/complete", OPERATES, complete_task),
    Route("POST", f"{_TASK}/fail", OPERATES, fail_task),
)
