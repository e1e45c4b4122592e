"""Routes of commands in tasks, and of the files of their workspaces."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Final

import anyio
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from perdure.serve.http.dependencies import OPERATES, READS, RequestScope
from perdure.serve.http.parameters import ACCEPT
from perdure.serve.http.responses import json_response
from perdure.serve.http.sse import EventStreamResponse, is_stream_requested, item_frames
from perdure.serve.http.table import Binary, EventStream, Route, tagged, value_or_none
from perdure.views.base import View
from perdure.views.cursors import cursor_meta
from perdure.views.task_bodies import CommandBody
from perdure.views.tasks import (
    Execution,
    ExecutionPage,
    FolderListing,
    StartedCommand,
    WrittenFile,
)

BYTES: Final = "application/octet-stream"
# A relative path, as `tasks.workspace_files.check_path` accepts it; it counts bytes.
_NAME: Final = r"(?!\.{1,2}(?:/|$))[^\u0000/]{1,255}"
_PATH: Final = rf"{_NAME}(?:/{_NAME}){{0,99}}"
FilePath = Annotated[
    str,
    Meta(
        description="Relative to the workspace; a name in it has at most 255 bytes.",
        extra_json_schema={"pattern": f"^{_PATH}$"},
    ),
]
_CURSOR: Final = r"^[0-9]{1,15}:[^\u0000-\u001f]{0,1900}$"


async def execute_command(scope: RequestScope, task_id: str, body: CommandBody) -> Response:
    """Run a command in the task's workspace, confined; as `text/event-stream`, follow it.

    The command does not end with the request. A stream has `started`, `output` and `finished`.
    """
    options = {"timeout": body.timeout, "by": scope.actor()}
    started = await scope.tasks.executions.start(task_id, body.command, options)
    if is_stream_requested(scope.accept):
        return _stream(scope, task_id, started.execution_id, StartedCommand(execution=started))
    ended = await _wait(scope, started) if body.wait else None
    return json_response(started, 202) if ended is None else json_response(ended)


async def _wait(scope: RequestScope, started: Execution) -> Execution | None:
    """Wait for the end of a command, or of the server (None), whose shutdown stops the command."""
    ended: list[Execution] = []
    errors: list[Exception] = []

    async def wait(cancel: anyio.CancelScope) -> None:
        executions = scope.tasks.executions
        try:
            ended.append(await executions.result(started.task_id, started.execution_id))
        except Exception as error:  # noqa: BLE001 - raised below, outside of the task group
            errors.append(error)
        cancel.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, tasks.cancel_scope)
        await scope.app_state.closing.wait()
        tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]
    return ended[0] if ended else None


def _stream(
    scope: RequestScope, task_id: str, execution_id: str, first: View | None = None
) -> Response:
    async def items() -> AsyncGenerator[View | None, None]:
        if first is not None:
            yield first
        async with aclosing(scope.tasks.executions.follow(task_id, execution_id)) as following:
            async for item in following:
                yield item

    return EventStreamResponse(item_frames(items()), scope.app_state.closing)


class ExecutionQuery(Struct, frozen=True, kw_only=True):
    """Page of a list of executions."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    after: Annotated[str, cursor_meta(_CURSOR)] | UnsetType = UNSET


async def list_executions(
    scope: RequestScope, task_id: str, query: ExecutionQuery
) -> ExecutionPage:
    """List the commands that ran in a task, newest first, without their output."""
    after = value_or_none(query.after)
    return await scope.tasks.executions.list(task_id, query.limit, after)


async def get_execution(
    scope: RequestScope, task_id: str, execution_id: str
) -> Execution | Response:
    """Return a command with its output once it has ended; as `text/event-stream`, follow it."""
    execution = await scope.tasks.executions.get(task_id, execution_id)
    if is_stream_requested(scope.accept):
        return _stream(scope, task_id, execution_id)
    return execution


async def cancel_execution(scope: RequestScope, task_id: str, execution_id: str) -> Execution:
    """Stop a command in any process, and return it when it has ended."""
    return await scope.tasks.executions.cancel(task_id, execution_id)


# --- files ----------------------------------------------------------------------------------------


class FilesQuery(Struct, frozen=True, kw_only=True):
    """The file to read, or the folder to list."""

    path: FilePath | UnsetType = UNSET
    folder: Annotated[
        str,
        Meta(
            description="The folder to list; empty is the workspace.",
            extra_json_schema={"pattern": f"^(?:{_PATH})?$"},
        ),
    ] = ""


class FileQuery(Struct, frozen=True, kw_only=True):
    """The file to write."""

    path: FilePath


async def read_task_files(
    scope: RequestScope, task_id: str, query: FilesQuery
) -> FolderListing | Response:
    """Return a file of the workspace, never through a link; without `path`, list a folder."""
    if isinstance(query.path, UnsetType):
        return await scope.tasks.list_files(task_id, query.folder)
    content = await scope.tasks.read_file(task_id, query.path)
    headers = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}
    return Response(content, headers=headers, media_type=BYTES)


async def write_task_file(scope: RequestScope, task_id: str, query: FileQuery) -> WrittenFile:
    """Create or replace a file of the workspace, never through a link; up to 10 MiB."""
    return await scope.tasks.write_file(task_id, query.path, await scope.read_bytes())


_TASK: Final = "/tasks/{task_id}"
_ONE: Final = f"{_TASK}/executions/{{execution_id}}"
_FILES: Final = f"{_TASK}/files"
_LIVE: Final = {200: (Execution, EventStream)}
_FILE: Final = {200: (FolderListing, Binary)}
ROUTES: Final = tagged(
    "tasks",
    Route(
        "POST",
        f"{_TASK}/exec",
        OPERATES,
        execute_command,
        headers=(ACCEPT,),
        returns={**_LIVE, 202: Execution},
    ),
    Route("GET", f"{_TASK}/executions", READS, list_executions),
    Route("GET", _ONE, READS, get_execution, headers=(ACCEPT,), returns=_LIVE),
    Route("POST", f"{_ONE}/cancel", OPERATES, cancel_execution),
    Route("GET", _FILES, READS, read_task_files, returns=_FILE),
    Route("PUT", _FILES, OPERATES, write_task_file, Binary, optional_body=True),
)
