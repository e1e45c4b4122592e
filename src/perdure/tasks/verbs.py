"""Verbs on shared tasks, with views out: for HTTP, pages, the command line and MCP.

`runtime.sessions.task_verbs` has the verbs on tasks of every kind.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import IO, Any

from msgspec.structs import asdict

from perdure.errors import Corrupt
from perdure.tasks.checkpoints.targets import CheckpointRecord
from perdure.tasks.entries import TaskEntry, get_task
from perdure.tasks.execution_verbs import ExecutionVerbs
from perdure.tasks.findings import damaged_task, shared_task_findings
from perdure.tasks.service import Tasks
from perdure.tasks.values import TaskCheckpoint, TaskRef, check_filters, parse_instant
from perdure.tasks.views import decision_view, log_lines, task_view
from perdure.views import tasks as views
from perdure.views.findings import Finding


class TaskVerbs:
    """Tasks of one tenant; without a tenant, lists have the tasks of all of them."""

    def __init__(self, tasks: Tasks, tenant: str | None) -> None:
        self._tasks = tasks
        self._tenant = tenant
        self.executions = ExecutionVerbs(tasks, tenant)

    def _ref(self, task_id: str) -> TaskRef:
        return TaskRef(self._tenant or "", task_id)

    # --- tasks --------------------------------------------------------------------------------

    async def create(
        self, config: Mapping[str, Any], *, exist_ok: bool = False
    ) -> views.SandboxTask:
        """Create a task, or with `exist_ok` return the one of its id; see `Tasks.create`."""
        fields = {"id" if key in ("taskId", "taskID") else key: config[key] for key in config}
        is_accepted = bool(fields.pop("exist_ok", exist_ok))
        created = await self._tasks.create(self._tenant or "", fields, exist_ok=is_accepted)
        return task_view(created, await self.executions.availability())

    async def _detailed(self, entry: TaskEntry) -> views.SandboxTask:
        findings = await self._findings(entry)
        return task_view(entry.record, await self.executions.availability(), findings)

    async def _findings(self, entry: TaskEntry) -> tuple[Finding, ...]:
        try:
            command = await self._tasks.executions.abandoned(entry.stream)
        except Corrupt as error:
            return (damaged_task(entry.record.id, error),)
        return shared_task_findings(entry.record.id, None if command is None else command.command)

    async def list(self, filters: Mapping[str, Any]) -> views.TaskPage:
        """List tasks, newest first, with the number of all matches."""
        chosen = check_filters(filters)
        rows = await self._tasks.registry.list(self._tenant, chosen)
        count = await self._tasks.registry.count(self._tenant, chosen)
        return views.TaskPage(tasks=tuple(map(task_view, rows)), count=count)

    async def get(self, task_id: str) -> views.SandboxTask:
        """Return a task, and whether commands can run in it. Raises NotFound."""
        return await self._detailed(await get_task(self._tasks.store, self._ref(task_id)))

    async def status(self, task_id: str) -> tuple[views.SandboxTask, views.Execution | None]:
        """Return the same with the last command that was executed in it. Raises NotFound."""
        entry = await get_task(self._tasks.store, self._ref(task_id))
        return await self._detailed(entry), await self.executions.last(entry)

    async def attach(self, task_id: str, agent_id: str) -> views.SandboxTask:
        """Attach an agent; the first one starts the task."""
        return task_view(await self._tasks.lifecycle.attach(self._ref(task_id), agent_id))

    async def detach(self, task_id: str, agent_id: str) -> views.DetachedAgent:
        """Detach an agent, if it is attached."""
        row, detached = await self._tasks.lifecycle.detach(self._ref(task_id), agent_id)
        return views.DetachedAgent(**asdict(task_view(row)), agent_id=agent_id, detached=detached)

    async def start(self, task_id: str, agent_id: str) -> views.SandboxTask:
        """Start a pending task."""
        return task_view(await self._tasks.lifecycle.start(self._ref(task_id), agent_id))

    async def complete(self, task_id: str, result: Mapping[str, Any]) -> views.SandboxTask:
        """Complete a running task."""
        return task_view(await self._tasks.lifecycle.complete(self._ref(task_id), result))

    async def fail(self, task_id: str, error: str) -> views.SandboxTask:
        """Fail a running task."""
        return task_view(await self._tasks.lifecycle.fail(self._ref(task_id), error))

    async def cancel(self, task_id: str) -> views.SandboxTask:
        """Cancel a pending or running task."""
        return task_view(await self._tasks.lifecycle.cancel(self._ref(task_id)))

    async def delete(self, task_id: str) -> views.DeletedTask:
        """Delete a task with everything it has."""
        await self._tasks.delete(self._ref(task_id))
        message = f"Task {task_id} and all its files were deleted"
        return views.DeletedTask(task_id=task_id, message=message)

    # --- log and decisions --------------------------------------------------------------------

    async def logs(self, task_id: str, options: Mapping[str, Any]) -> views.TaskLog:
        """Return entries of the log, oldest first. Raises NotFound."""
        await self._tasks.registry.get(self._ref(task_id))
        entries = await self._tasks.layers.logs(self._ref(task_id), options)
        return views.TaskLog(task_id=task_id, logs=log_lines(entries))

    async def newest_logs(self, task_id: str, limit: int) -> views.TaskLog:
        """Return the newest entries of the log, oldest first. Raises NotFound."""
        entries = await self._tasks.layers.newest_logs(self._ref(task_id), limit)
        return views.TaskLog(task_id=task_id, logs=log_lines(entries))

    async def follow_logs(
        self, task_id: str, after: int = 0
    ) -> AsyncGenerator[views.LogRecord | None, None]:
        """Yield the entries of each record, also of those to come; None after a pause."""
        await self._tasks.registry.get(self._ref(task_id))
        async for item in self._tasks.layers.follow(self._ref(task_id), after):
            yield None if item is None else views.LogRecord(seq=item[0], lines=log_lines(item[1]))

    async def append_logs(
        self, task_id: str, entries: Sequence[Mapping[str, Any]]
    ) -> views.AppendedLogs:
        """Append log entries in one commit. Raises NotFound."""
        await self._tasks.registry.get(self._ref(task_id))
        await self._tasks.layers.append_logs(self._ref(task_id), entries)
        return views.AppendedLogs(task_id=task_id, count=len(entries))

    async def decisions(self, task_id: str) -> views.TaskDecisions:
        """Return the decisions of the agents, oldest first. Raises NotFound."""
        await self._tasks.registry.get(self._ref(task_id))
        decisions = await self._tasks.layers.decisions(self._ref(task_id))
        return views.TaskDecisions(task_id=task_id, decisions=tuple(map(decision_view, decisions)))

    async def append_decision(
        self, task_id: str, decision: Mapping[str, Any]
    ) -> views.TaskDecision:
        """Append a decision of an agent. Raises NotFound."""
        await self._tasks.registry.get(self._ref(task_id))
        return decision_view(await self._tasks.layers.append_decision(self._ref(task_id), decision))

    # --- files --------------------------------------------------------------------------------

    async def read_file(self, task_id: str, path: str) -> bytes:
        """Return the content of a file of the workspace. Raises NotFound, Refused."""
        return await self._tasks.workspace_files.read(self._ref(task_id), path)

    async def list_files(self, task_id: str, folder: str = "") -> views.FolderListing:
        """Return the entries of a folder. Raises NotFound, Refused."""
        entries = await self._tasks.workspace_files.list_folder(self._ref(task_id), folder)
        files = tuple(
            views.FileInfo(name=item.name, type=item.kind, bytes=item.size, path=item.path)
            for item in entries
        )
        return views.FolderListing(task_id=task_id, folder=folder, files=files)

    async def write_file(self, task_id: str, path: str, content: bytes) -> views.WrittenFile:
        """Create or replace a file of the workspace."""
        size = await self._tasks.workspace_files.write(self._ref(task_id), path, content)
        return views.WrittenFile(task_id=task_id, path=path, bytes=size)

    # --- checkpoints --------------------------------------------------------------------------

    async def checkpoints(self, task_id: str) -> views.CheckpointList:
        """Return the checkpoints, newest first, with the paths of their files. Raises NotFound."""
        await self._tasks.registry.get(self._ref(task_id))
        listed = await self._tasks.checkpoints.all(self._ref(task_id))
        checkpoints = tuple(
            _checkpoint(task_id, item, len(item.files), tuple(item.files)) for item in listed
        )
        return views.CheckpointList(task_id=task_id, checkpoints=checkpoints)

    async def checkpoint(self, task_id: str, description: str | None = None) -> views.Checkpoint:
        """Take a checkpoint."""
        added = await self._tasks.checkpoints.create(self._ref(task_id), description)
        return _checkpoint(task_id, added, added.files)

    async def restore(
        self, task_id: str, checkpoint_id: str, paths: Sequence[str] | None = None
    ) -> views.RestoredCheckpoint:
        """Restore a checkpoint, or only these paths of it."""
        restored = await self._tasks.restores.restore(self._ref(task_id), checkpoint_id, paths)
        return views.RestoredCheckpoint(
            task_id=task_id,
            checkpoint_id=checkpoint_id,
            saved_as=restored.saved_as,
            kept_as=restored.kept_as if restored.saved_as is None else None,
            problem=restored.problem if restored.saved_as is None else None,
        )

    async def diff(
        self, task_id: str, checkpoint_id: str, other_id: str | None = None
    ) -> views.CheckpointChanges:
        """Compare a checkpoint with another one, or with the workspace as it is now."""
        changes = await self._tasks.checkpoints.diff(self._ref(task_id), checkpoint_id, other_id)
        return views.CheckpointChanges(
            task_id=task_id,
            checkpoint_id=checkpoint_id,
            other_id=other_id,
            added=tuple(changes.added),
            removed=tuple(changes.removed),
            changed=tuple(changes.changed),
        )

    async def verify(self, task_id: str, checkpoint_id: str) -> views.VerifiedCheckpoint:
        """Verify every object of a checkpoint."""
        problems = await self._tasks.checkpoints.verify(self._ref(task_id), checkpoint_id)
        names = {"task_id": task_id, "checkpoint_id": checkpoint_id}
        return views.VerifiedCheckpoint(**names, ok=not problems, problems=tuple(problems))

    async def delete_checkpoint(self, task_id: str, checkpoint_id: str) -> views.DeletedCheckpoint:
        """Delete a checkpoint."""
        await self._tasks.checkpoints.delete(self._ref(task_id), checkpoint_id)
        return views.DeletedCheckpoint(task_id=task_id, checkpoint_id=checkpoint_id)

    async def export(self, task_id: str, checkpoint_id: str, file: IO[bytes]) -> None:
        """Write a checkpoint into an open file."""
        await self._tasks.transfer.write(self._ref(task_id), checkpoint_id, file)

    async def open_archive(self, task_id: str, checkpoint_id: str) -> IO[bytes]:
        """Return a checkpoint as an open file without a name. Raises NotFound, Corrupt."""
        return await self._tasks.transfer.open_archive(self._ref(task_id), checkpoint_id)

    async def import_(self, task_id: str, file: IO[bytes]) -> views.Checkpoint:
        """Add the exported checkpoint in an open file."""
        added = await self._tasks.transfer.import_file(self._ref(task_id), file)
        return _checkpoint(task_id, added, added.files)

    async def receive(self, task_id: str, pieces: AsyncIterator[bytes]) -> views.Checkpoint:
        """Add an exported checkpoint that arrives in pieces."""
        added = await self._tasks.transfer.receive(self._ref(task_id), pieces)
        return _checkpoint(task_id, added, added.files)


def _checkpoint(
    task_id: str, item: CheckpointRecord | TaskCheckpoint, files: int, paths: tuple[str, ...] = ()
) -> views.Checkpoint:
    """Return the view of a checkpoint, with the instant at which it was first taken."""
    created_at = item.at  # an archive of another program may have no instant
    if item.timestamp:
        created_at = round(parse_instant(item.timestamp, "timestamp").timestamp() * 1000)
    return views.Checkpoint(
        checkpoint_id=item.id,
        task_id=task_id,
        created_at_ms=created_at,
        description=item.description,
        files=files,
        bytes=item.size,
        paths=paths,
        problem=item.problem if isinstance(item, TaskCheckpoint) else None,
    )
