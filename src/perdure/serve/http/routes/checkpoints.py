"""Routes of the checkpoints of tasks: taken, listed, compared, verified, restored and moved."""

from collections.abc import AsyncIterator
from typing import IO, Final

from anyio import to_thread
from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response, StreamingResponse

from perdure.serve.http.dependencies import ADMINISTERS, OPERATES, READS, RequestScope
from perdure.serve.http.table import Binary, Route, tagged, value_or_none
from perdure.views.bodies import IdText
from perdure.views.task_bodies import CheckpointBody, RestoreBody
from perdure.views.tasks import (
    Checkpoint,
    CheckpointChanges,
    CheckpointList,
    DeletedCheckpoint,
    RestoredCheckpoint,
    VerifiedCheckpoint,
)

ARCHIVE_TYPE: Final = "application/octet-stream"
_PIECE: Final = 256 * 1024


class DiffQuery(Struct, frozen=True, kw_only=True):
    """The checkpoint to compare with; without it, the workspace."""

    other: IdText | UnsetType = UNSET


async def list_task_checkpoints(scope: RequestScope, task_id: str) -> CheckpointList:
    """List the checkpoints of a task, newest first."""
    return await scope.tasks.checkpoints(task_id)


async def take_task_checkpoint(
    scope: RequestScope, task_id: str, body: CheckpointBody
) -> Checkpoint:
    """Take a checkpoint of the state, log, decisions and workspace."""
    return await scope.tasks.checkpoint(task_id, body.description)


async def import_task_checkpoint(scope: RequestScope, task_id: str) -> Checkpoint:
    """Add a checkpoint that was exported, here or elsewhere, to this task.

    The archive may be as large as `server.max_body`; it is kept on disk while it arrives.
    """
    return await scope.tasks.receive(task_id, scope.request.stream())


async def export_task_checkpoint(scope: RequestScope, task_id: str, checkpoint_id: str) -> Response:
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


async def restore_task_checkpoint(
    scope: RequestScope, task_id: str, checkpoint_id: str, body: RestoreBody
) -> RestoredCheckpoint:
    """Put the state and workspace of a checkpoint back; the present ones are saved first.

    If they cannot be saved, `savedAs` is null, `problem` says why, and `keptAs` is the folder of
    the task that the workspace was moved to.
    """
    return await scope.tasks.restore(task_id, checkpoint_id, body.paths)


async def diff_task_checkpoint(
    scope: RequestScope, task_id: str, checkpoint_id: str, query: DiffQuery
) -> CheckpointChanges:
    """Compare a checkpoint with another one, or with the workspace as it is now."""
    return await scope.tasks.diff(task_id, checkpoint_id, value_or_none(query.other))


async def verify_task_checkpoint(
    scope: RequestScope, task_id: str, checkpoint_id: str
) -> VerifiedCheckpoint:
    """Verify every object of a checkpoint."""
    return await scope.tasks.verify(task_id, checkpoint_id)


async def delete_task_checkpoint(
    scope: RequestScope, task_id: str, checkpoint_id: str
) -> DeletedCheckpoint:
    """Delete a checkpoint, and the objects that no other one needs.

    The id `replaced` deletes the workspace that a restore could not save, and has kept.
    """
    return await scope.tasks.delete_checkpoint(task_id, checkpoint_id)


_ALL: Final = "/tasks/{task_id}/checkpoints"
_ONE: Final = f"{_ALL}/{{checkpoint_id}}"
_IMPORT: Final = "/tasks/{task_id}/import"
ROUTES: Final = tagged(
    "tasks",
    Route("GET", _ALL, READS, list_task_checkpoints),
    Route("POST", _ALL, OPERATES, take_task_checkpoint, optional_body=True, status=201),
    Route("POST", _IMPORT, OPERATES, import_task_checkpoint, Binary, status=201),
    Route("GET", f"{_ONE}/export", OPERATES, export_task_checkpoint, returns={200: Binary}),
    Route("POST", f"{_ONE}/restore", OPERATES, restore_task_checkpoint, optional_body=True),
    Route("GET", f"{_ONE}/diff", READS, diff_task_checkpoint),
    Route("GET", f"{_ONE}/verify", READS, verify_task_checkpoint),
    Route("DELETE", _ONE, ADMINISTERS, delete_task_checkpoint),
)
