"""Verbs on shared tasks with JSON in and out, in the seed's words: for HTTP, the CLI and MCP.

`runtime.sessions.task_verbs` has the verbs on tasks of every kind.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import IO, Any

import msgspec

from perdure.core.tasks.facts import LogEntry
from perdure.core.tasks.record import TaskRecord
from perdure.runtime.tasks.checkpoints.targets import CheckpointRecord
from perdure.runtime.tasks.entries import get_task
from perdure.runtime.tasks.execution_verbs import ExecutionVerbs
from perdure.runtime.tasks.service import Tasks
from perdure.runtime.tasks.values import (
    Checkpoint,
    TaskRef,
    check_filters,
    iso,
    restored_json,
    task_json,
)

Json = dict[str, Any]


class TaskVerbs:
    """Tasks of one tenant as JSON; without a tenant, lists have the tasks of all of them."""

    def __init__(self, tasks: Tasks, tenant: str | None) -> None:
        self._tasks = tasks
        self._tenant = tenant
        self.executions = ExecutionVerbs(tasks, tenant)

    def _ref(self, task_id: str) -> TaskRef:
        return TaskRef(self._tenant or "", task_id)

    # --- tasks --------------------------------------------------------------------------------

    async def create(self, config: Mapping[str, Any]) -> Json:
        """Create a task: `{success, taskId, status, createdAt, task, execution}`."""
        fields = {"id" if key == "taskId" else key: value for key, value in config.items()}
        row = await self._tasks.create(self._tenant or "", fields)
        execution = await self.executions.availability()
        return {**_changed(row), "createdAt": iso(row.created_at), "execution": execution}

    async def list(self, filters: Mapping[str, Any]) -> Json:
        """List tasks, newest first: `{success, tasks, count}`; the count is that of all matches."""
        chosen = check_filters(filters)
        rows = await self._tasks.registry.list(self._tenant, chosen)
        count = await self._tasks.registry.count(self._tenant, chosen)
        return {"success": True, "tasks": [task_json(row) for row in rows], "count": count}

    async def get(self, task_id: str) -> Json:
        """Return `{success, taskId, status, task, execution}`. Raises NotFound."""
        row = await self._tasks.registry.get(self._ref(task_id))
        return {**_changed(row), "execution": await self.executions.availability()}

    async def status(self, task_id: str) -> Json:
        """Return the same with `lastExecution`, if a command was executed. Raises NotFound."""
        entry = await get_task(self._tasks.store, self._ref(task_id))
        value = {**_changed(entry.record), "execution": await self.executions.availability()}
        last = await self.executions.last(entry)
        return value if last is None else {**value, "lastExecution": last}

    async def attach(self, task_id: str, agent_id: str) -> Json:
        """Attach an agent: `{success, taskId, agentId, attached, status, task}`."""
        row = await self._tasks.lifecycle.attach(self._ref(task_id), agent_id)
        return {**_changed(row), "agentId": agent_id, "attached": True}

    async def detach(self, task_id: str, agent_id: str) -> Json:
        """Detach an agent: `{success, taskId, agentId, detached, status, task}`."""
        row, detached = await self._tasks.lifecycle.detach(self._ref(task_id), agent_id)
        return {**_changed(row), "agentId": agent_id, "detached": detached}

    async def start(self, task_id: str, agent_id: str) -> Json:
        """Start a pending task: `{success, taskId, status, task}`."""
        return _changed(await self._tasks.lifecycle.start(self._ref(task_id), agent_id))

    async def complete(self, task_id: str, result: Mapping[str, Any]) -> Json:
        """Complete a running task: `{success, taskId, status, task}`."""
        return _changed(await self._tasks.lifecycle.complete(self._ref(task_id), result))

    async def fail(self, task_id: str, error: str) -> Json:
        """Fail a running task: `{success, taskId, status, task}`."""
        return _changed(await self._tasks.lifecycle.fail(self._ref(task_id), error))

    async def cancel(self, task_id: str) -> Json:
        """Cancel a pending or running task: `{success, taskId, status, task}`."""
        return _changed(await self._tasks.lifecycle.cancel(self._ref(task_id)))

    async def delete(self, task_id: str) -> Json:
        """Delete a task with everything it has: `{success, taskId, message}`."""
        await self._tasks.delete(self._ref(task_id))
        message = f"Task {task_id} and all its files were deleted"
        return {"success": True, "taskId": task_id, "message": message}

    # --- log and decisions --------------------------------------------------------------------

    async def logs(self, task_id: str, options: Mapping[str, Any]) -> Json:
        """Return `{taskId, logs}`. Raises NotFound."""
        await self._tasks.registry.get(self._ref(task_id))
        entries = await self._tasks.layers.logs(self._ref(task_id), options)
        return {"taskId": task_id, "logs": [log_json(entry) for entry in entries]}

    async def newest_logs(self, task_id: str, limit: int) -> Json:
        """Return `{taskId, logs}` with the newest entries, oldest first. Raises NotFound."""
        entries = await self._tasks.layers.newest_logs(self._ref(task_id), limit)
        return {"taskId": task_id, "logs": [log_json(entry) for entry in entries]}

    async def follow_logs(self, task_id: str, after: int = 0) -> AsyncIterator[Json | None]:
        """Yield `{type, seq, lines}` of each record, also of those to come; None after a pause."""
        await self._tasks.registry.get(self._ref(task_id))
        async for item in self._tasks.layers.follow(self._ref(task_id), after):
            if item is None:
                yield None
            else:
                seq, lines = item
                yield {"type": "log", "seq": seq, "lines": [log_json(line) for line in lines]}

    async def append_logs(self, task_id: str, entries: Sequence[Mapping[str, Any]]) -> Json:
        """Append log entries in one commit: `{success, taskId, count}`. Raises NotFound."""
        await self._tasks.registry.get(self._ref(task_id))
        await self._tasks.layers.append_logs(self._ref(task_id), entries)
        return {"success": True, "taskId": task_id, "count": len(entries)}

    async def decisions(self, task_id: str) -> Json:
        """Return `{taskId, decisions}`. Raises NotFound."""
        await self._tasks.registry.get(self._ref(task_id))
        decisions = await self._tasks.layers.decisions(self._ref(task_id))
        return {"taskId": task_id, "decisions": [msgspec.to_builtins(item) for item in decisions]}

    async def append_decision(self, task_id: str, decision: Mapping[str, Any]) -> Json:
        """Append a decision: `{success, taskId, decision}`. Raises NotFound."""
        await self._tasks.registry.get(self._ref(task_id))
        stored = await self._tasks.layers.append_decision(self._ref(task_id), decision)
        return {"success": True, "taskId": task_id, "decision": msgspec.to_builtins(stored)}

    # --- files --------------------------------------------------------------------------------

    async def read_file(self, task_id: str, path: str) -> bytes:
        """Return the content of a file of the workspace. Raises NotFound, Refused."""
        return await self._tasks.workspace_files.read(self._ref(task_id), path)

    async def list_files(self, task_id: str, folder: str = "") -> Json:
        """Return `{taskId, folder, files}`: the entries of a folder. Raises NotFound, Refused."""
        entries = await self._tasks.workspace_files.list_folder(self._ref(task_id), folder)
        files = [
            {"name": item.name, "type": item.kind, "bytes": item.size, "path": item.path}
            for item in entries
        ]
        return {"taskId": task_id, "folder": folder, "files": files}

    async def write_file(self, task_id: str, path: str, content: bytes) -> Json:
        """Create or replace a file of the workspace: `{success, taskId, path, bytes}`."""
        size = await self._tasks.workspace_files.write(self._ref(task_id), path, content)
        return {"success": True, "taskId": task_id, "path": path, "bytes": size}

    # --- checkpoints --------------------------------------------------------------------------

    async def checkpoints(self, task_id: str) -> Json:
        """Return `{taskId, checkpoints}`, newest first. Raises NotFound."""
        await self._tasks.registry.get(self._ref(task_id))
        listed = await self._tasks.checkpoints.all(self._ref(task_id))
        return {"taskId": task_id, "checkpoints": [checkpoint_json(item) for item in listed]}

    async def checkpoint(self, task_id: str, description: str | None = None) -> Json:
        """Take a checkpoint: `{success, taskId, checkpointId, description, files, bytes}`."""
        checkpoint = await self._tasks.checkpoints.create(self._ref(task_id), description)
        return {"success": True, "taskId": task_id, **_checkpoint_fields(checkpoint)}

    async def restore(
        self, task_id: str, checkpoint_id: str, paths: Sequence[str] | None = None
    ) -> Json:
        """Restore a checkpoint: `{success, taskId, checkpointId, savedAs}`.

        If the workspace before could not be saved, `savedAs` is None, and there are `keptAs` and
        `problem`.
        """
        restored = await self._tasks.restores.restore(self._ref(task_id), checkpoint_id, paths)
        names = {"taskId": task_id, "checkpointId": checkpoint_id}
        return {"success": True, **names, **restored_json(restored)}

    async def diff(self, task_id: str, checkpoint_id: str, other_id: str | None = None) -> Json:
        """Compare a checkpoint with another one, or with the workspace as it is now."""
        changes = await self._tasks.checkpoints.diff(self._ref(task_id), checkpoint_id, other_id)
        return {
            "taskId": task_id,
            "checkpointId": checkpoint_id,
            "otherId": other_id,
            "added": changes.added,
            "removed": changes.removed,
            "changed": changes.changed,
        }

    async def verify(self, task_id: str, checkpoint_id: str) -> Json:
        """Verify every object of a checkpoint: `{taskId, checkpointId, ok, problems}`."""
        problems = await self._tasks.checkpoints.verify(self._ref(task_id), checkpoint_id)
        names = {"taskId": task_id, "checkpointId": checkpoint_id}
        return {**names, "ok": not problems, "problems": problems}

    async def delete_checkpoint(self, task_id: str, checkpoint_id: str) -> Json:
        """Delete a checkpoint: `{success, taskId, checkpointId}`."""
        await self._tasks.checkpoints.delete(self._ref(task_id), checkpoint_id)
        return {"success": True, "taskId": task_id, "checkpointId": checkpoint_id}

    async def export(self, task_id: str, checkpoint_id: str, file: IO[bytes]) -> Json:
        """Write a checkpoint into an open file: `{success, taskId, checkpointId}`."""
        await self._tasks.transfer.write(self._ref(task_id), checkpoint_id, file)
        return {"success": True, "taskId": task_id, "checkpointId": checkpoint_id}

    async def open_archive(self, task_id: str, checkpoint_id: str) -> IO[bytes]:
        """Return a checkpoint as an open file without a name. Raises NotFound, Corrupt."""
        return await self._tasks.transfer.open_archive(self._ref(task_id), checkpoint_id)

    async def import_(self, task_id: str, file: IO[bytes]) -> Json:
        """Add an exported checkpoint: `{success, taskId, checkpointId, files, bytes, …}`."""
        checkpoint = await self._tasks.transfer.import_file(self._ref(task_id), file)
        return {"success": True, "taskId": task_id, **_checkpoint_fields(checkpoint)}

    async def receive(self, task_id: str, pieces: AsyncIterator[bytes]) -> Json:
        """Add an exported checkpoint that arrives in pieces; returns what `import_` does."""
        checkpoint = await self._tasks.transfer.receive(self._ref(task_id), pieces)
        return {"success": True, "taskId": task_id, **_checkpoint_fields(checkpoint)}


def _changed(row: TaskRecord) -> Json:
    return {
        "success": True,
        "taskId": row.id,
        "status": str(row.status),
        "task": task_json(row),
    }


def _checkpoint_fields(checkpoint: CheckpointRecord) -> Json:
    return {
        "checkpointId": checkpoint.id,
        "description": checkpoint.description,
        "timestamp": checkpoint.timestamp,
        "files": checkpoint.files,
        "bytes": checkpoint.size,
    }


def log_json(entry: LogEntry) -> Json:
    """Return a log entry as JSON, with its level."""
    data = {} if entry.data is None else {"data": entry.data}
    fields = {"timestamp": entry.timestamp, "level": entry.level, "message": entry.message}
    return {**fields, **data}


def checkpoint_json(checkpoint: Checkpoint) -> Json:
    """Return a checkpoint as JSON, with the seed's names."""
    return {
        "id": checkpoint.id,
        "taskId": checkpoint.task_id,
        "timestamp": checkpoint.timestamp,
        "description": checkpoint.description,
        "files": checkpoint.files,
        "manifest": checkpoint.manifest,
        "problem": checkpoint.problem,
    }
