"""Tasks of a server, with the verbs and the JSON of the server's own."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from perdure.client.connection import HttpConnection, HttpRequest, url_path
from perdure.client.events import follow

Json = dict[str, Any]


class RemoteTasks:
    """Tasks of one tenant; without a tenant, those that the token sees."""

    def __init__(self, connection: HttpConnection, tenant: str | None) -> None:
        self._connection = connection
        self._scope: Json = {} if tenant is None else {"tenant": tenant}

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

    async def _move(self, task_id: str, verb: str, body: Json | None) -> Json:
        return await self._send("POST", url_path("tasks", task_id, verb), body=body)

    async def _send(
        self, method: str, path: str, params: Mapping[str, Any] | None = None, **options: Any
    ) -> Json:
        request = HttpRequest(method, path, {**(params or {}), **self._scope}, **options)
        return dict((await self._connection.send(request)).body or {})


def _without_none(fields: Mapping[str, Any]) -> Json:
    return {name: value for name, value in fields.items() if value is not None}
