"""Tasks with a workspace of a server: their commands, files, logs and checkpoints."""

from collections.abc import AsyncIterator, Mapping, Sequence
from io import BytesIO
from typing import IO, Any, TypeVar

from perdure.client.connection import TenantConnection, url_path, without_none
from perdure.client.events import StreamPosition, follow
from perdure.client.executions import RemoteExecutions
from perdure.views import tasks as views
from perdure.views.events import Delta

T = TypeVar("T")


class RemoteSandboxTasks:
    """Tasks of one tenant; without a tenant, those that the token sees."""

    def __init__(self, tenant: TenantConnection) -> None:
        self._tenant = tenant
        self._connection = tenant.connection
        self.executions = RemoteExecutions(tenant)

    async def create(
        self, config: Mapping[str, Any], *, exist_ok: bool = False
    ) -> views.SandboxTask:
        """Create a task: `name`, and perhaps `id`, `owner`, `metadata`.

        With `exist_ok`, a task that has the id already is returned as it is.
        """
        names = {"id": "taskID", "exist_ok": "existOK"}
        fields = {names.get(key, key): value for key, value in config.items()}
        if exist_ok:
            fields["existOK"] = True
        return await self._read("POST", (), views.SandboxTask, body=without_none(fields))

    async def attach(self, task_id: str, agent_id: str) -> views.SandboxTask:
        """Attach an agent; the first one starts the task."""
        body = {"agentID": agent_id}
        return await self._read(
            "POST", (task_id, "attach"), views.SandboxTask, body=body, repeatable=True
        )

    async def detach(self, task_id: str, agent_id: str) -> views.DetachedAgent:
        """Detach an agent."""
        body = {"agentID": agent_id}
        return await self._read("POST", (task_id, "detach"), views.DetachedAgent, body=body)

    async def start(self, task_id: str, agent_id: str) -> views.SandboxTask:
        """Start a pending task."""
        body = {"agentID": agent_id}
        return await self._read("POST", (task_id, "start"), views.SandboxTask, body=body)

    async def complete(self, task_id: str, result: Mapping[str, Any]) -> views.SandboxTask:
        """Complete a running task with its result."""
        body = {"result": dict(result)}
        return await self._read("POST", (task_id, "complete"), views.SandboxTask, body=body)

    async def fail(self, task_id: str, error: str) -> views.SandboxTask:
        """Fail a running task with its error."""
        return await self._read("POST", (task_id, "fail"), views.SandboxTask, body={"error": error})

    async def logs(self, task_id: str, options: Mapping[str, Any]) -> views.TaskLog:
        """Return entries of the log, oldest first."""
        names = {"start_date": "startDate", "end_date": "endDate"}
        params = {names.get(key, key): value for key, value in options.items()}
        return await self._read("GET", (task_id, "logs"), views.TaskLog, params)

    async def follow_logs(self, task_id: str, after: int = 0) -> AsyncIterator[views.LogRecord]:
        """Iterate over the entries of each record after a seq, without end."""
        path, position = url_path("tasks", task_id, "logs"), StreamPosition("seq", after)
        async for item in follow(
            self._connection, path, self._tenant.scope, views.LogRecord, position
        ):
            if not isinstance(item, Delta):
                yield item

    async def append_logs(
        self, task_id: str, entries: Sequence[Mapping[str, Any]]
    ) -> views.AppendedLogs:
        """Append log entries, all or none."""
        body = {"entries": [dict(entry) for entry in entries]}
        return await self._read("POST", (task_id, "logs"), views.AppendedLogs, body=body)

    async def decisions(self, task_id: str) -> views.TaskDecisions:
        """Return the decisions of the agents, oldest first."""
        return await self._read("GET", (task_id, "decisions"), views.TaskDecisions)

    async def append_decision(
        self, task_id: str, decision: Mapping[str, Any]
    ) -> views.TaskDecision:
        """Append a decision of an agent: `agentID`, `decision`, and perhaps `reasoning`."""
        body = without_none(decision)
        return await self._read("POST", (task_id, "decisions"), views.TaskDecision, body=body)

    async def read_file(self, task_id: str, path: str) -> bytes:
        """Return the content of a file of the workspace."""
        buffer, params = BytesIO(), {**self._tenant.scope, "path": path}
        await self._connection.download(url_path("tasks", task_id, "files"), params, buffer)
        return buffer.getvalue()

    async def list_files(self, task_id: str, folder: str = "") -> views.FolderListing:
        """Return the entries of a folder of the workspace."""
        return await self._read("GET", (task_id, "files"), views.FolderListing, {"folder": folder})

    async def write_file(self, task_id: str, path: str, content: bytes) -> views.WrittenFile:
        """Create or replace a file of the workspace."""
        options = {"content": content, "repeatable": True}
        return await self._read(
            "PUT", (task_id, "files"), views.WrittenFile, {"path": path}, **options
        )

    async def checkpoints(self, task_id: str) -> views.CheckpointList:
        """Return the checkpoints, newest first, with the paths of their files."""
        return await self._read("GET", (task_id, "checkpoints"), views.CheckpointList)

    async def checkpoint(self, task_id: str, description: str | None = None) -> views.Checkpoint:
        """Take a checkpoint."""
        body = without_none({"description": description})
        return await self._read("POST", (task_id, "checkpoints"), views.Checkpoint, body=body)

    async def restore(
        self, task_id: str, checkpoint_id: str, paths: Sequence[str] | None = None
    ) -> views.RestoredCheckpoint:
        """Restore a checkpoint, or only these paths of it."""
        body = without_none({"paths": None if paths is None else list(paths)})
        path = (task_id, "checkpoints", checkpoint_id, "restore")
        return await self._read("POST", path, views.RestoredCheckpoint, body=body)

    async def diff(
        self, task_id: str, checkpoint_id: str, other_id: str | None = None
    ) -> views.CheckpointChanges:
        """Compare a checkpoint with another one, or with the workspace as it is now."""
        path = (task_id, "checkpoints", checkpoint_id, "diff")
        return await self._read("GET", path, views.CheckpointChanges, {"other": other_id})

    async def verify(self, task_id: str, checkpoint_id: str) -> views.VerifiedCheckpoint:
        """Verify every object of a checkpoint."""
        path = (task_id, "checkpoints", checkpoint_id, "verify")
        return await self._read("GET", path, views.VerifiedCheckpoint)

    async def delete_checkpoint(self, task_id: str, checkpoint_id: str) -> views.DeletedCheckpoint:
        """Delete a checkpoint."""
        return await self._read(
            "DELETE", (task_id, "checkpoints", checkpoint_id), views.DeletedCheckpoint
        )

    async def export(self, task_id: str, checkpoint_id: str, file: IO[bytes]) -> None:
        """Write a checkpoint into an open file."""
        path = url_path("tasks", task_id, "checkpoints", checkpoint_id, "export")
        await self._connection.download(path, self._tenant.scope, file)

    async def import_(self, task_id: str, file: IO[bytes]) -> views.Checkpoint:
        """Add the exported checkpoint in an open file to a task."""
        path = url_path("tasks", task_id, "import")
        return await self._connection.upload(path, self._tenant.scope, file, views.Checkpoint)

    async def _read(
        self,
        method: str,
        path: tuple[str, ...],
        kind: type[T],
        params: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> T:
        """Return the view in the response of a route below /tasks."""
        return await self._tenant.read(method, url_path("tasks", *path), kind, params, **options)
