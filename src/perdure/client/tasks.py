"""Tasks of a server, with the verbs and the JSON of the server's own."""

from collections.abc import AsyncIterator, Mapping, Sequence
from io import BytesIO
from typing import IO, Any, Final
from uuid import uuid4

from perdure.client.connection import HttpConnection, HttpRequest, url_path
from perdure.client.events import follow
from perdure.client.executions import RemoteExecutions

Json = dict[str, Any]

PAGE: Final = 500
MAX_TIMEOUT_MS: Final = 600_000  # a server waits no longer


class RemoteTasks:
    """Tasks of one tenant; without a tenant, those that the token sees."""

    def __init__(self, connection: HttpConnection, tenant: str | None) -> None:
        self._connection = connection
        self._scope: Json = {} if tenant is None else {"tenant": tenant}
        self.executions = RemoteExecutions(connection, self._scope)

    async def __call__(
        self,
        *,
        kind: str | None = None,
        status: str | None = None,
        parent: str | None = None,
        owner: str | None = None,
    ) -> AsyncIterator[Json]:
        """Iterate over tasks of every kind, newest first, each once."""
        filters = {"kind": kind, "status": status, "parent": parent, "owner": owner}
        ids: set[tuple[str, str]] = set()  # tasks that are created meanwhile move the pages
        offset = 0
        while page := (await self.list({**filters, "limit": PAGE, "offset": offset}))["tasks"]:
            for task in page:
                if (name := (task["tenant"], task["id"])) not in ids:
                    ids.add(name)
                    yield task
            offset += len(page)

    async def create(self, config: Mapping[str, Any]) -> Json:
        """Create a task: `name`, and perhaps `taskId`, `owner`, `metadata`."""
        fields = {"taskId" if key == "id" else key: value for key, value in config.items()}
        return await self._send("POST", url_path("tasks"), body=_without_none(fields))

    async def list(self, filters: Mapping[str, Any]) -> Json:
        """List tasks, newest first: `{success, tasks, count}`."""
        return await self._send("GET", url_path("tasks"), _without_none(filters))

    async def get(self, task_id: str) -> Json:
        """Return `{success, taskId, status, task}`. Raises NotFound."""
        return await self._send("GET", url_path("tasks", task_id))

    async def spawn(
        self,
        agent: str,
        prompt: Any,
        *,
        parent: str | None = None,
        description: str | None = None,
        key: str | None = None,
    ) -> Json:
        """Launch a background agent: `{success, taskId, status, resumeCount, task}`."""
        fields = {"parent": parent, "description": description}
        body = {"agent": agent, "prompt": prompt, **_without_none(fields)}
        return await self._send("POST", url_path("tasks"), body=body, key=key or _new_key())

    async def output(
        self,
        task_id: str,
        *,
        block: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - limits the waiting, not the run
    ) -> Json:
        """Return the outcome of a background agent, with `block` after at most `timeout` ms."""
        params = _without_none({"block": "true" if block else None, "timeout": timeout})
        path = url_path("tasks", task_id, "output")
        return await self._send("GET", path, params, wait_s=_wait_s(timeout, block=block))

    async def resume(
        self,
        task_id: str,
        message: Any,
        *,
        block: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - limits the waiting, not the run
        key: str | None = None,
    ) -> Json:
        """Send a follow-up to a completed background agent; with `block`, return the answer."""
        body = {"message": message, "block": block, **_without_none({"timeout": timeout})}
        path = url_path("tasks", task_id, "resume")
        wait_s = _wait_s(timeout, block=block)
        return await self._send("POST", path, body=body, key=key or _new_key(), wait_s=wait_s)

    async def clear(self, parent: str) -> Json:
        """Cancel the running background agents of a session and remove all from lists."""
        path = url_path("sessions", parent, "tasks", "clear")
        return await self._send("POST", path, repeatable=True)

    async def attach(self, task_id: str, agent_id: str) -> Json:
        """Attach an agent; the first one starts the task."""
        body = {"agentId": agent_id}
        path = url_path("tasks", task_id, "attach")
        return await self._send("POST", path, body=body, repeatable=True)

    async def detach(self, task_id: str, agent_id: str) -> Json:
        """Detach an agent."""
        return await self._move(task_id, "detach", {"agentId": agent_id})

    async def start(self, task_id: str, agent_id: str) -> Json:
        """Start a pending task."""
        return await self._move(task_id, "start", {"agentId": agent_id})

    async def complete(self, task_id: str, result: Mapping[str, Any]) -> Json:
        """Complete a running task with its result."""
        return await self._move(task_id, "complete", {"result": dict(result)})

    async def fail(self, task_id: str, error: str) -> Json:
        """Fail a running task with its error."""
        return await self._move(task_id, "fail", {"error": error})

    async def cancel(self, task_id: str) -> Json:
        """Cancel a pending or running task."""
        return await self._move(task_id, "cancel", None)

    async def delete(self, task_id: str) -> Json:
        """Delete a task with everything it has."""
        return await self._send("DELETE", url_path("tasks", task_id))

    async def logs(self, task_id: str, options: Mapping[str, Any]) -> Json:
        """Return `{taskId, logs}`."""
        names = {"start_date": "startDate", "end_date": "endDate"}
        params = {names.get(key, key): value for key, value in options.items()}
        return await self._send("GET", url_path("tasks", task_id, "logs"), _without_none(params))

    def follow_logs(self, task_id: str, after: int = 0) -> AsyncIterator[Json]:
        """Iterate over `{type, seq, lines}` of each record after a seq, without end."""
        path = url_path("tasks", task_id, "logs")
        return follow(self._connection, path, self._scope, "seq", after)

    async def append_logs(self, task_id: str, entries: Sequence[Mapping[str, Any]]) -> Json:
        """Append log entries, all or none."""
        body = {"entries": [dict(entry) for entry in entries]}
        return await self._send("POST", url_path("tasks", task_id, "logs"), body=body)

    async def decisions(self, task_id: str) -> Json:
        """Return `{taskId, decisions}`."""
        return await self._send("GET", url_path("tasks", task_id, "decisions"))

    async def append_decision(self, task_id: str, decision: Mapping[str, Any]) -> Json:
        """Append a decision of an agent."""
        path = url_path("tasks", task_id, "decisions")
        return await self._send("POST", path, body=_without_none(decision))

    async def read_file(self, task_id: str, path: str) -> bytes:
        """Return the content of a file of the workspace."""
        buffer = BytesIO()
        await self._connection.download(
            url_path("tasks", task_id, "files"), self._file(path), buffer
        )
        return buffer.getvalue()

    async def list_files(self, task_id: str, folder: str = "") -> Json:
        """Return `{taskId, folder, files}`: the entries of a folder of the workspace."""
        path = url_path("tasks", task_id, "files")
        return await self._send("GET", path, {"folder": folder})

    async def write_file(self, task_id: str, path: str, content: bytes) -> Json:
        """Create or replace a file of the workspace: `{success, taskId, path, bytes}`."""
        url = url_path("tasks", task_id, "files")
        request = HttpRequest("PUT", url, self._file(path), content=content, repeatable=True)
        return dict((await self._connection.send(request)).body)

    def _file(self, path: str) -> Json:
        return {**self._scope, "path": path}

    async def checkpoints(self, task_id: str) -> Json:
        """Return `{taskId, checkpoints}`, newest first."""
        return await self._send("GET", url_path("tasks", task_id, "checkpoints"))

    async def checkpoint(self, task_id: str, description: str | None = None) -> Json:
        """Take a checkpoint."""
        body = _without_none({"description": description})
        return await self._send("POST", url_path("tasks", task_id, "checkpoints"), body=body)

    async def restore(
        self, task_id: str, checkpoint_id: str, paths: Sequence[str] | None = None
    ) -> Json:
        """Restore a checkpoint, or only these paths of it."""
        body = _without_none({"paths": None if paths is None else list(paths)})
        path = url_path("tasks", task_id, "checkpoints", checkpoint_id, "restore")
        return await self._send("POST", path, body=body)

    async def diff(self, task_id: str, checkpoint_id: str, other_id: str | None = None) -> Json:
        """Compare a checkpoint with another one, or with the workspace as it is now."""
        path = url_path("tasks", task_id, "checkpoints", checkpoint_id, "diff")
        return await self._send("GET", path, _without_none({"other": other_id}))

    async def verify(self, task_id: str, checkpoint_id: str) -> Json:
        """Verify every object of a checkpoint."""
        path = url_path("tasks", task_id, "checkpoints", checkpoint_id, "verify")
        return await self._send("GET", path)

    async def delete_checkpoint(self, task_id: str, checkpoint_id: str) -> Json:
        """Delete a checkpoint."""
        path = url_path("tasks", task_id, "checkpoints", checkpoint_id)
        return await self._send("DELETE", path)

    async def export(self, task_id: str, checkpoint_id: str, file: IO[bytes]) -> Json:
        """Write a checkpoint into an open file."""
        path = url_path("tasks", task_id, "checkpoints", checkpoint_id, "export")
        await self._connection.download(path, self._scope, file)
        return {"success": True, "taskId": task_id, "checkpointId": checkpoint_id}

    async def import_(self, task_id: str, file: IO[bytes]) -> Json:
        """Add the exported checkpoint in an open file to a task."""
        path = url_path("tasks", task_id, "import")
        return dict(await self._connection.upload(path, self._scope, file) or {})

    async def _move(self, task_id: str, verb: str, body: Json | None) -> Json:
        return await self._send("POST", url_path("tasks", task_id, verb), body=body)

    async def _send(
        self, method: str, path: str, params: Mapping[str, Any] | None = None, **options: Any
    ) -> Json:
        request = HttpRequest(method, path, {**(params or {}), **self._scope}, **options)
        return dict((await self._connection.send(request)).body or {})


class RemoteTask:
    """A background agent of a server: a handle. Reading takes nothing from its parent."""

    def __init__(self, tasks: RemoteTasks, task_id: str) -> None:
        self.id = task_id
        self._tasks = tasks

    def __repr__(self) -> str:
        return f"RemoteTask({self.id!r})"

    async def get(self) -> Json:
        """Return the task, with its output, error, problem and pending calls. Raises NotFound."""
        return dict((await self._tasks.get(self.id))["task"])

    async def output(self, *, block: bool = False, timeout: float = 60) -> Json:  # noqa: ASYNC109
        """Return its outcome; with `block`, once its run has ended or after `timeout` seconds."""
        return await self._tasks.output(self.id, block=block, timeout=timeout * 1_000)

    async def resume(
        self,
        message: Any,
        *,
        block: bool = False,
        timeout: float = 60,  # noqa: ASYNC109 - limits the waiting, not the run
        key: str | None = None,
    ) -> Json:
        """Send a follow-up; with `block`, wait for the answer, at most `timeout` seconds."""
        ms = timeout * 1_000
        return await self._tasks.resume(self.id, message, block=block, timeout=ms, key=key)

    async def cancel(self) -> Json:
        """Cancel its run. Raises Conflict if it has ended."""
        return await self._tasks.cancel(self.id)

    async def delete(self) -> Json:
        """Erase its session and everything below it."""
        return await self._tasks.delete(self.id)


def _wait_s(timeout_ms: float | None, *, block: bool) -> float:
    """Return how long a response may take beyond its usual time."""
    return min(60_000 if timeout_ms is None else timeout_ms, MAX_TIMEOUT_MS) / 1_000 * block


def _new_key() -> str:
    return uuid4().hex


def _without_none(fields: Mapping[str, Any]) -> Json:
    return {name: value for name, value in fields.items() if value is not None}
