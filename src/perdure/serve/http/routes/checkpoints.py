"""Routes of the checkpoints of tasks: taken, listed, compared, verified, restored and moved."""

from collections.abc import AsyncIterator
from typing import IO, Annotated, Final

from anyio import to_thread
from fastapi import APIRouter, Query, Response
from msgspec import Meta, Struct
from starlette.responses import StreamingResponse

from perdure.serve.http.dependencies import Administers, Id, Operates, Reads
from perdure.serve.http.responses import (
    Schema,
    json_response,
    object_schema,
    request_body,
    responses,
)
from perdure.serve.http.schemas import BOOLEAN, INTEGER, NULLABLE_TEXT, OBJECT, TEXT

router = APIRouter(tags=["tasks"])

ARCHIVE_TYPE: Final = "application/gzip"
_PIECE: Final = 256 * 1024
_TEXTS: Final[Schema] = {"type": "array", "items": TEXT}
_LIST: Final = object_schema(
    ("taskId", "checkpoints"), taskId=TEXT, checkpoints={"type": "array", "items": OBJECT}
)
_DONE: Final = object_schema(("success", "taskId"), success=BOOLEAN, taskId=TEXT)
_RESTORED: Final = object_schema(
    ("success", "taskId", "checkpointId", "savedAs"),
    success=BOOLEAN,
    taskId=TEXT,
    checkpointId=TEXT,
    savedAs=NULLABLE_TEXT,
    keptAs=TEXT,
    problem=TEXT,
)
_TAKEN: Final = object_schema(
    ("success", "taskId", "checkpointId", "files", "bytes"),
    success=BOOLEAN,
    taskId=TEXT,
    checkpointId=TEXT,
    description=TEXT,
    timestamp=TEXT,
    files=INTEGER,
    bytes=INTEGER,
)
_DIFF: Final = object_schema(
    ("taskId", "checkpointId", "added", "removed", "changed"),
    taskId=TEXT,
    checkpointId=TEXT,
    added=_TEXTS,
    removed=_TEXTS,
    changed=_TEXTS,
)
_VERIFIED: Final = object_schema(
    ("taskId", "checkpointId", "ok", "problems"),
    taskId=TEXT,
    checkpointId=TEXT,
    ok=BOOLEAN,
    problems=_TEXTS,
)
_BINARY: Final[Schema] = {"type": "string", "format": "binary"}


_Path = Annotated[str, Meta(pattern=r"^[^\x00]*[^/\x00][^\x00]*$")]  # not blank, and no NUL


class CheckpointBody(Struct, forbid_unknown_fields=True):
    """Body that takes a checkpoint."""

    description: str | None = None


class RestoreBody(Struct, forbid_unknown_fields=True):
    """Body that restores a checkpoint, or only these paths of it."""

    paths: Annotated[list[_Path], Meta(min_length=1)] | None = None


@router.get("/tasks/{task_id}/checkpoints", responses=responses({200: _LIST}, 404))
async def list_task_checkpoints(scope: Reads, task_id: Id) -> Response:
    """List the checkpoints of a task, newest first."""
    return json_response(await scope.tasks.checkpoints(task_id))


@router.post(
    "/tasks/{task_id}/checkpoints",
    responses=responses({201: _TAKEN}, 404, 409),
    openapi_extra=request_body(CheckpointBody, optional=True),
)
async def take_task_checkpoint(scope: Operates, task_id: Id) -> Response:
    """Take a checkpoint of the state, log, decisions and workspace."""
    body = await scope.read_body(CheckpointBody, empty=CheckpointBody())
    return json_response(await scope.tasks.checkpoint(task_id, body.description), 201)


@router.post(
    "/tasks/{task_id}/import",
    responses=responses({201: _TAKEN}, 404),
    openapi_extra={
        "requestBody": {
            "content": {"application/octet-stream": {"schema": _BINARY}},
            "required": True,
        }
    },
)
async def import_task_checkpoint(scope: Operates, task_id: Id) -> Response:
    """Add a checkpoint that was exported, here or elsewhere, to this task.

    The archive may be as large as `server.max_body`; it is kept on disk while it arrives.
    """
    return json_response(await scope.tasks.receive(task_id, scope.request.stream()), 201)


@router.get(
    "/tasks/{task_id}/checkpoints/{checkpoint_id}/export",
    response_class=StreamingResponse,
    responses={
        **responses({}, 404),
        200: {"description": "An archive.", "content": {ARCHIVE_TYPE: {"schema": _BINARY}}},
    },
)
async def export_task_checkpoint(scope: Operates, task_id: Id, checkpoint_id: Id) -> Response:
    """Return a checkpoint as an archive, which can be imported into any task."""
    archive = await scope.tasks.open_archive(task_id, checkpoint_id)
    size = archive.seek(0, 2)
    archive.seek(0)
    headers = {
        "Content-Length": str(size),
        "Content-Disposition": 'attachment; filename="checkpoint.tar.gz"',
    }
    return StreamingResponse(_pieces(archive), media_type=ARCHIVE_TYPE, headers=headers)


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    with file:
        while piece := await to_thread.run_sync(file.read, _PIECE):
            yield piece


@router.post(
    "/tasks/{task_id}/checkpoints/{checkpoint_id}/restore",
    responses=responses({200: _RESTORED}, 404, 409),
    openapi_extra=request_body(RestoreBody, optional=True),
)
async def restore_task_checkpoint(scope: Operates, task_id: Id, checkpoint_id: Id) -> Response:
    """Put the state and workspace of a checkpoint back; the present ones are saved first.

    If they cannot be saved, `savedAs` is null, `problem` says why, and `keptAs` is the folder of
    the task that the workspace was moved to.
    """
    body = await scope.read_body(RestoreBody, empty=RestoreBody())
    return json_response(await scope.tasks.restore(task_id, checkpoint_id, body.paths))


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
    return json_response(await scope.tasks.diff(task_id, checkpoint_id, other))


@router.get(
    "/tasks/{task_id}/checkpoints/{checkpoint_id}/verify",
    responses=responses({200: _VERIFIED}, 404),
)
async def verify_task_checkpoint(scope: Reads, task_id: Id, checkpoint_id: Id) -> Response:
    """Verify every object of a checkpoint."""
    return json_response(await scope.tasks.verify(task_id, checkpoint_id))


@router.delete(
    "/tasks/{task_id}/checkpoints/{checkpoint_id}", responses=responses({200: _DONE}, 404)
)
async def delete_task_checkpoint(scope: Administers, task_id: Id, checkpoint_id: Id) -> Response:
    """Delete a checkpoint, and the objects that no other one needs.

    The id `replaced` deletes the workspace that a restore could not save, and has kept.
    """
    return json_response(await scope.tasks.delete_checkpoint(task_id, checkpoint_id))
