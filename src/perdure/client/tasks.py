"""Tasks of a server, with the verbs of the server's own."""

from collections.abc import AsyncIterator, Mapping, Sequence
from io import BytesIO
from typing import IO, Any, Final, TypeVar, cast
from uuid import uuid4

from perdure.client.connection import (
    HttpConnection,
    TenantConnection,
    page_path,
    url_path,
    without_none,
)
from perdure.client.events import StreamPosition, follow
from perdure.client.executions import RemoteExecutions
from perdure.errors import Conflict
from perdure.views import tasks as views
from perdure.views.events import Delta

T = TypeVar("T")
Json = dict[str, Any]

PAGE: Final = 500
MAX_TIMEOUT_MS: Final = 600_000  # a server waits no longer
_ANY: Final = cast("type[views.AnyTask]", views.AnyTask)


class RemoteTasks:
    """Tasks of one tenant; without a tenant, those that the token sees."""

    def __init__(self, connection: HttpConnection, tenant: str | None) -> None:
        self._connection = connection
        self._tenant = TenantConnection(connection, tenant)
        self.executions = RemoteExecutions(self._tenant)

    async def __call__(
        self,
        *,
        kind: str | None = None,
        status: str | None = None,
        parent: str | None = None,
        owner: str | None = None,
    ) -> AsyncIterator[views.AnyTask]:
        """Iterate over tasks of every kind, newest first, each once."""
        filters = {"kind": kind, "status": status, "parent": parent, "owner": owner}
        ids: set[tuple[str, str]] = set()  # tasks that are created meanwhile move the pages
        offset = 0
        while page := (await self.list({**filters, "limit": PAGE, "offset": offset})).tasks:
            for task in page:
                if (name := (task.tenant, task.id)) not in ids:
                    ids.add(name)
                    yield task
            offset += len(page)

    async def create(self, config: Mapping[str, Any]) -> views.SandboxTask:
        """Create a task: `name`, and perhaps `taskID`, `owner`, `metadata`."""
        fields = {"taskID" if key == "id" else key: value for key, value in config.items()}
        return await self._read("POST", (), views.SandboxTask, body=without_none(fields))

    async def list(self, filters: Mapping[str, Any]) -> views.TaskPage:
        """List tasks, newest first, with the number of all matches."""
        return await self._read("GET", (), views.TaskPage, filters)

    async def get(self, task_id: str) -> views.AnyTask:
        """Return a task of any kind. Raises NotFound."""
        return await self._tenant.read("GET", page_path("tasks", task_id), _ANY)

    async def spawn(
        self,
        agent: str,
        prompt: Any,
        *,
        parent: str | None = None,
        description: str | None = None,
        key: str | None = None,
    ) -> views.BackgroundTask:
        """Launch a background agent."""
        more = {"parent": parent, "description": description}
        body = without_none({"agent": agent, "prompt": prompt, **more})
        return await self._read("POST", (), views.BackgroundTask, body=body, key=key or _new_key())

    async def output(
        self,
        task_id: str,
        *,
        block: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - limits the waiting, not the run
    ) -> views.AgentOutcome:
        """Return the outcome of a background agent, with `block` after at most `timeout` ms."""
        params = {"block": "true" if block else None, "timeout": timeout}
        path = (task_id, "output")
        wait_s = _wait_s(timeout, block=block)
        return await self._read("GET", path, views.AgentOutcome, params, wait_s=wait_s)

    async def resume(
        self,
        task_id: str,
        message: Any,
        *,
        block: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - limits the waiting, not the run
        key: str | None = None,
    ) -> views.AgentOutcome:
        """Send a follow-up to a completed background agent; with `block`, return the answer."""
        body = {"message": message, "block": block, **without_none({"timeout": timeout})}
        options: Json = {"key": key or _new_key(), "wait_s": _wait_s(timeout, block=block)}
        return await self._read(
            "POST", (task_id, "resume"), views.AgentOutcome, body=body, **options
        )

    async def clear(self, parent: str) -> views.ClearedAgents:
        """Cancel the running background agents of a session and remove all from lists."""
        path = url_path("sessions", parent, "tasks", "clear")
        return await self._tenant.read("POST", path, views.ClearedAgents, repeatable=True)

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

    async def cancel(self, task_id: str) -> views.AnyTask:
        """Cancel a task that has not ended."""
        return await self._read("POST", (task_id, "cancel"), _ANY)

    async def delete(self, task_id: str) -> views.DeletedTask:
        """Delete a task with everything it has."""
        return await self._read("DELETE", (task_id,), views.DeletedTask)

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


class RemoteTask:
    """A background agent of a server: a handle. Reading takes nothing from its parent."""

    def __init__(self, tasks: RemoteTasks, task_id: str) -> None:
        self.id = task_id
        self._tasks = tasks

    def __repr__(self) -> str:
        return f"RemoteTask({self.id!r})"

    async def get(self) -> views.BackgroundTask:
        """Return the task, with its output, error, findings and pending calls. Raises NotFound."""
        task = await self._tasks.get(self.id)
        if isinstance(task, views.BackgroundTask):
            return task
        raise Conflict(
            f"task {self.id} is a shared task, not a background agent",
            code="WRONG_KIND",
            hint=f"read it with client.tasks.get({self.id!r})",
        )

    async def output(self, *, block: bool = False, timeout: float = 60) -> views.AgentOutcome:  # noqa: ASYNC109
        """Return its outcome; with `block`, once its run has ended or after `timeout` seconds."""
        return await self._tasks.output(self.id, block=block, timeout=timeout * 1_000)

    async def resume(
        self,
        message: Any,
        *,
        block: bool = False,
        timeout: float = 60,  # noqa: ASYNC109 - limits the waiting, not the run
        key: str | None = None,
    ) -> views.AgentOutcome:
        """Send a follow-up; with `block`, wait for the answer, at most `timeout` seconds."""
        ms = timeout * 1_000
        return await self._tasks.resume(self.id, message, block=block, timeout=ms, key=key)

    async def cancel(self) -> views.AnyTask:
        """Cancel its run. Raises Conflict if it has ended."""
        return await self._tasks.cancel(self.id)

    async def delete(self) -> views.DeletedTask:
        """Erase its session and everything below it."""
        return await self._tasks.delete(self.id)


def _wait_s(timeout_ms: float | None, *, block: bool) -> float:
    """Return how long a response may take beyond its usual time."""
    return min(60_000 if timeout_ms is None else timeout_ms, MAX_TIMEOUT_MS) / 1_000 * block


def _new_key() -> str:
    return uuid4().hex
