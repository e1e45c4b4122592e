"""Routes of commands in tasks, and of the files of their workspaces."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Final

import anyio
from fastapi import APIRouter, Depends, Header, Query, Response
from msgspec import Struct

from perdure.runtime.tasks.executions.requests import TIMEOUT_S
from perdure.runtime.tasks.verbs import TaskVerbs
from perdure.runtime.tasks.workspace_files import MAX_FILE_BYTES
from perdure.serve.http.dependencies import Id, Operates, Reads, RequestScope
from perdure.serve.http.responses import (
    Schema,
    json_response,
    object_schema,
    request_body,
    responses,
)
from perdure.serve.http.schemas import BOOLEAN, INTEGER, TEXT
from perdure.serve.http.sse import (
    MEDIA_TYPE,
    OPENING,
    EventStreamResponse,
    event_frame,
    is_stream_requested,
    keep_alive_frame,
)

router = APIRouter(tags=["tasks"])

BYTES: Final = "application/octet-stream"
_NULLABLE_INTEGER: Final[Schema] = {"type": ["integer", "null"]}
_NULLABLE_TEXT: Final[Schema] = {"type": ["string", "null"]}
EXECUTION: Final = object_schema(
    ("executionId", "taskId", "command", "status", "startedAt", "sandbox"),
    executionId=TEXT,
    taskId=TEXT,
    command=TEXT,
    status={"enum": ["running", "ended"]},
    by=_NULLABLE_TEXT,
    timeout=INTEGER,
    startedAt=TEXT,
    endedAt=_NULLABLE_TEXT,
    success={"type": ["boolean", "null"]},
    exitCode=_NULLABLE_INTEGER,
    duration=_NULLABLE_INTEGER,
    reason=_NULLABLE_TEXT,
    signal=_NULLABLE_INTEGER,
    truncated=BOOLEAN,
    sandbox=TEXT,
    guarantees={"type": "array", "items": TEXT},
    stdoutBytes=INTEGER,
    stderrBytes=INTEGER,
    problem=_NULLABLE_TEXT,
    stdout=TEXT,
    stderr=TEXT,
)
_LIST: Final = object_schema(
    ("taskId", "executions", "next"),
    taskId=TEXT,
    executions={"type": "array", "items": EXECUTION},
    next=_NULLABLE_TEXT,
)
_WRITTEN: Final = object_schema(
    ("success", "taskId", "path", "bytes"),
    success=BOOLEAN,
    taskId=TEXT,
    path=TEXT,
    bytes=INTEGER,
)
_FOLDER: Final = object_schema(
    ("taskId", "folder", "files"),
    taskId=TEXT,
    folder=TEXT,
    files={
        "type": "array",
        "items": object_schema(
            ("name", "type", "bytes", "path"),
            name=TEXT,
            type={"enum": ["file", "folder", "other"]},
            bytes=INTEGER,
            path=_NULLABLE_TEXT,
        ),
    },
)
_BINARY: Final = {"schema": {"type": "string", "format": "binary"}}
_FILE_BODY: Final = {"requestBody": {"content": {BYTES: _BINARY}, "required": False}}

Accept = Annotated[
    str | None, Header(description=f"{MEDIA_TYPE} for a stream; anything else for JSON.")
]
FolderPath = Annotated[
    str, Query(max_length=4096, description="The folder to list; empty is the workspace.")
]
FilePath = Annotated[
    str, Query(min_length=1, max_length=4096, description="Relative to the workspace.")
]


class CommandBody(Struct, forbid_unknown_fields=True):
    """Body that runs a command; `timeout` is in ms. Without `wait` the answer comes at once."""

    command: str
    timeout: int | float = round(TIMEOUT_S * 1000)
    wait: bool = True


@router.post(
    "/tasks/{task_id}/exec",
    responses=responses({200: EXECUTION, 202: EXECUTION}, 404, 409),
    openapi_extra=request_body(CommandBody),
)
async def execute_command(scope: Operates, task_id: Id, accept: Accept = None) -> Response:
    """Run a command in the task's workspace, confined; as `text/event-stream`, follow it.

    The command does not end with the request. A stream has `started`, `output` and `finished`.
    """
    body = await scope.read_body(CommandBody)
    verbs = scope.tasks.executions
    options = {"timeout": body.timeout, "by": scope.actor()}
    started = await verbs.start(task_id, body.command, options)
    execution_id = started["executionId"]
    if is_stream_requested(accept):
        first = event_frame("started", {"type": "started", "execution": started})
        frames = _output_frames(scope.tasks, task_id, execution_id, first)
        return EventStreamResponse(frames, scope.app_state.closing)
    if not body.wait:
        return json_response(started, 202)
    return await _wait(scope, task_id, started)


async def _wait(scope: RequestScope, task_id: str, started: dict[str, Any]) -> Response:
    """Wait for the end of a command, or of the server, whose shutdown stops the command."""
    results: list[dict[str, Any]] = []
    errors: list[Exception] = []

    async def wait(cancel: anyio.CancelScope) -> None:
        try:
            results.append(await scope.tasks.executions.result(task_id, started["executionId"]))
        except Exception as error:  # noqa: BLE001 - raised below, outside of the task group
            errors.append(error)
        cancel.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, tasks.cancel_scope)
        await scope.app_state.closing.wait()
        tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]
    return json_response(results[0]) if results else json_response(started, 202)


async def _output_frames(
    verbs: TaskVerbs, task_id: str, execution_id: str, first: bytes = b""
) -> AsyncGenerator[bytes, None]:
    yield OPENING + first
    async with aclosing(verbs.executions.follow(task_id, execution_id)) as items:
        async for item in items:
            yield keep_alive_frame() if item is None else event_frame(item["type"], item)


@dataclass(frozen=True, slots=True)
class ExecutionQuery:
    """Page of a list of executions."""

    limit: Annotated[int, Query(ge=1, le=1000)] = 50
    after: Annotated[str | None, Query(max_length=2000)] = None


@router.get("/tasks/{task_id}/executions", responses=responses({200: _LIST}, 404))
async def list_executions(
    scope: Reads, task_id: Id, query: Annotated[ExecutionQuery, Depends()]
) -> Response:
    """List the commands that ran in a task, newest first, without their output."""
    return json_response(await scope.tasks.executions.list(task_id, query.limit, query.after))


@router.get(
    "/tasks/{task_id}/executions/{execution_id}", responses=responses({200: EXECUTION}, 404)
)
async def get_execution(
    scope: Reads, task_id: Id, execution_id: Id, accept: Accept = None
) -> Response:
    """Return a command with its output once it has ended; as `text/event-stream`, follow it."""
    verbs = scope.tasks
    execution = await verbs.executions.get(task_id, execution_id)
    if is_stream_requested(accept):
        frames = _output_frames(verbs, task_id, execution_id)
        return EventStreamResponse(frames, scope.app_state.closing)
    return json_response(execution)


@router.post(
    "/tasks/{task_id}/executions/{execution_id}/cancel",
    responses=responses({200: EXECUTION}, 404),
)
async def cancel_execution(scope: Operates, task_id: Id, execution_id: Id) -> Response:
    """Stop a command in any process, and return it when it has ended."""
    return json_response(await scope.tasks.executions.cancel(task_id, execution_id))


# --- files ----------------------------------------------------------------------------------------


@router.get(
    "/tasks/{task_id}/files",
    responses={
        **responses({}, 404),
        200: {
            "description": "OK",
            "content": {BYTES: _BINARY, "application/json": {"schema": _FOLDER}},
        },
    },
)
async def read_task_files(
    scope: Reads, task_id: Id, path: FilePath | None = None, folder: FolderPath = ""
) -> Response:
    """Return a file of the workspace, never through a link; without `path`, list a folder."""
    if path is None:
        return json_response(await scope.tasks.list_files(task_id, folder))
    content = await scope.tasks.read_file(task_id, path)
    headers = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}
    return Response(content, headers=headers, media_type=BYTES)


@router.put(
    "/tasks/{task_id}/files",
    responses=responses({200: _WRITTEN}, 404),
    openapi_extra=_FILE_BODY,
    description=f"Create or replace a file of the workspace, of up to {MAX_FILE_BYTES:,} bytes.",
)
async def write_task_file(scope: Operates, task_id: Id, path: FilePath) -> Response:
    """Create or replace a file of the workspace, never through a link."""
    return json_response(await scope.tasks.write_file(task_id, path, await scope.read_bytes()))
