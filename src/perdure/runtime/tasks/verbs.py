"""Verbs on tasks with JSON in and out, in the seed's words: what HTTP, the CLI and MCP offer."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from perdure.core.session import naming
from perdure.core.tasks.facts import LogEntry
from perdure.core.tasks.record import TaskRecord
from perdure.errors import NotFound
from perdure.runtime.records.entries import all_readable
from perdure.runtime.tasks.checkpoints.targets import CheckpointRecord
from perdure.runtime.tasks.service import Tasks
from perdure.runtime.tasks.values import (
    Checkpoint,
    TaskRef,
    check_filters,
    iso,
    task_json,
    task_not_found,
)

Json = dict[str, Any]


class TaskVerbs:
    """Tasks of one tenant as JSON; without a tenant, lists have the tasks of all of them."""

    def __init__(self, tasks: Tasks, tenant: str | None) -> None:
        self._tasks = tasks
        self._tenant = tenant

    def _ref(self, task_id: str) -> TaskRef:
        return TaskRef(self._tenant or "", task_id)

    # --- tasks --------------------------------------------------------------------------------

    async def create(self, config: Mapping[str, Any]) -> Json:
        """Create a task: `{success, taskId, status, createdAt, task}`."""
        fields = {"id" if key == "taskId" else key: value for key, value in config.items()}
        row = await self._tasks.create(self._tenant or "", fields)
        return {**_changed(row), "createdAt": iso(row.created_at)}

    async def list(self, filters: Mapping[str, Any]) -> Json:
        """List tasks, newest first: `{success, tasks, count}`; the count is that of all matches."""
        chosen = check_filters(filters)
        rows = await self._tasks.registry.list(self._tenant, chosen)
        count = await self._tasks.registry.count(self._tenant, chosen)
        return {"success": True, "tasks": [task_json(row) for row in rows], "count": count}

    async def get(self, task_id: str) -> Json:
        """Return `{success, taskId, status, task}`. Raises NotFound."""
        row = await self._tasks.registry.find(self._ref(task_id))
        if row is None:
            raise await self._missing(task_id)
        return _changed(row)

    async def _missing(self, task_id: str) -> NotFound:
        """Return the error for a task that does not exist; the id may be that of a run."""
        if not task_id.startswith("task_"):
            return task_not_found(task_id)
        sessions = all_readable(self._tasks.store, "session", lambda e: naming.decode(e.data))
        async for session in sessions:
            is_visible = self._tenant in (None, session.tenant)
            if session.task_id == task_id and is_visible:
                return NotFound(
                    f"{task_id} is a run of session {session.id}, not a task",
                    code="TASK_NOT_FOUND",
                    hint=f"perdure sessions show {session.id}",
                    details={"sessionID": session.id},
                )
        return task_not_found(task_id)

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
        """Restore a checkpoint: `{success, taskId, checkpointId, savedAs}`."""
        safety = await self._tasks.restores.restore(self._ref(task_id), checkpoint_id, paths)
        names = {"taskId": task_id, "checkpointId": checkpoint_id}
        return {"success": True, **names, "savedAs": safety.id}

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
