"""The service of tasks that HTTP, the command line and the Python API share."""

import logging
from dataclasses import replace
from typing import Any

from anyio import to_thread

from perdure.core.session.naming import check_tenant
from perdure.errors import ConfigError, Conflict, PerdureError, Refused, SandboxUnavailable
from perdure.store.base import DELETE, Gone, HeadMoved, NoStream, Put, Store, VersionMoved, Write
from perdure.store.shared.all_pages import all_entries
from perdure.tasks.checkpoints.budget import CheckpointLimits
from perdure.tasks.checkpoints.catalog import Checkpoints
from perdure.tasks.checkpoints.restore import Restores
from perdure.tasks.checkpoints.targets import CheckpointTargets
from perdure.tasks.checkpoints.transfer import CheckpointTransfer
from perdure.tasks.entries import TaskEntry, commit_guarded, get_task, live_stream
from perdure.tasks.executions.sandboxes import ConfiguredSandbox
from perdure.tasks.executions.service import Executions
from perdure.tasks.executions.slots import StreamLeases
from perdure.tasks.files.mirror import TaskMirror
from perdure.tasks.files.place import TaskPlace
from perdure.tasks.hooks import HookRunner
from perdure.tasks.layers import Layers
from perdure.tasks.lifecycle import Lifecycle
from perdure.tasks.locks.manager import Locks
from perdure.tasks.locks.process import LockProcess, RunBeside
from perdure.tasks.locks.sweep import LockSweep
from perdure.tasks.locks.tables import StoreLocks
from perdure.tasks.locks.values import LockInfo
from perdure.tasks.model import record
from perdure.tasks.model.locks import LockHolder, is_lock_of
from perdure.tasks.model.record import TaskRecord
from perdure.tasks.registry import Registry, check_new_task, create_failed
from perdure.tasks.settings import TaskSettings
from perdure.tasks.values import TaskRef, task_not_found
from perdure.tasks.workspace_files import WorkspaceFiles
from perdure.tasks.writer import TaskWriter

logger = logging.getLogger("perdure")


class Tasks:
    """Tasks of a store: lifecycle, registry, layers, locks and executions."""

    def __init__(
        self,
        store: Store,
        options: TaskSettings,
        lease_ms: int,
        run_beside: RunBeside,
        leases: StreamLeases,
    ) -> None:
        self.store = store
        self._process = LockProcess(store, lease_ms, run_beside)
        self._lock_table = StoreLocks(store, self._process)
        self.place = TaskPlace(options.root)
        self.mirror = TaskMirror(store, self.place)
        self.writer = TaskWriter(store, self.mirror)
        self.hooks = options.hooks
        self.sandbox = ConfiguredSandbox(options.executions, options.root)
        self.executions = Executions(
            store, self.writer, self.place, self.sandbox, leases, run_beside
        )
        hooks = HookRunner(options.hooks)
        self.lifecycle = Lifecycle(store, self.writer, hooks, self.executions.nudge)
        self.registry = Registry(store, self.writer, self.place, self.lifecycle)
        self.layers = Layers(store, self.writer, self.mirror)
        self.locks = Locks(self._lock_table)
        self.lock_sweep = LockSweep(self._lock_table)
        settle = self.executions.settle_left
        targets = CheckpointTargets(store, self.writer, self.mirror, settle)
        limits = CheckpointLimits(disk=options.executions.limits.disk_bytes)
        run_as = options.executions.run_as
        self.workspace_files = WorkspaceFiles(targets, run_as, limits.disk)
        self.checkpoints = Checkpoints(targets, limits)
        self.restores = Restores(targets, self.checkpoints, limits)
        self.transfer = CheckpointTransfer(targets, self.checkpoints, limits)

    async def process_name(self) -> str:
        """Return the name of this process in the store, which ends soon after the process."""
        return await self._process.name()

    # --- open and close -----------------------------------------------------------------------

    async def open(self) -> None:
        """Bring the files up to date that a process left behind when it died."""
        self._process.open()
        self.executions.open()
        place = self.place
        marker = None if place.root is None else await to_thread.run_sync(lambda: place.marker)
        if marker is None:
            return
        await to_thread.run_sync(self.mirror.empty_trash)
        for stream, marks in (await to_thread.run_sync(self.mirror.stale_marks)).items():
            if await self._recover(stream):
                await to_thread.run_sync(self.mirror.forget_marks, marks)
        await self._refresh_written_elsewhere(marker.id)

    async def _recover(self, stream: str) -> bool:
        """Bring the files of a task up to date, and finish its restores; False if that failed."""
        try:
            await self.restores.recover(stream)
        except (NoStream, Gone):
            logger.debug("%s was deleted", stream)
        except PerdureError as error:
            logger.warning("a restore of %s cannot be finished: %s", stream, error.message)
            return False
        return await self.mirror.refresh(stream)

    async def _refresh_written_elsewhere(self, root: str) -> None:
        async for entry in all_entries(self.store, record.STALE, state=root):
            if await self.mirror.refresh(entry.stream):
                try:
                    await self.writer.forget_stale(entry)
                except (VersionMoved, Gone, NoStream):
                    logger.debug("task %s was written again, or deleted", entry.key)

    async def close(self) -> None:
        """Stop commands, free the locks that this runtime holds, and forget current folders."""
        await self.executions.close()
        await self._process.close()
        self.mirror.close()

    # --- tasks --------------------------------------------------------------------------------

    async def create(self, tenant: str, config: Any, *, exist_ok: bool = False) -> TaskRecord:
        """Create a task with its folder, or with `exist_ok` return the one of that id.

        Raises Refused or Conflict TASK_CREATE_FAILED.
        """
        check_tenant(tenant)
        try:
            task = replace(check_new_task(config), sandbox=self.sandbox.name)
            if task.require or self.sandbox.options.require_sandbox:
                await self.sandbox.ready(task.require)
            try:
                return await self.registry.create(tenant, task, has_files=True)
            except Conflict:
                if not exist_ok:
                    raise
            return (await get_task(self.store, TaskRef(tenant, task.id))).record
        except (ConfigError, SandboxUnavailable):
            raise
        except PerdureError as error:
            raise create_failed(error) from error

    async def delete(self, ref: TaskRef, guard: LockInfo | None = None) -> None:
        """Delete a task: its row, layers, locks and folder. Raises NotFound, TASK_ELSEWHERE."""
        entry = await get_task(self.store, ref)
        self.place.check_here(entry.record)
        try:
            while not await self._delete(entry, guard):
                pass
        except (Gone, NoStream):
            raise task_not_found(ref.task_id) from None
        await self._free_locks(ref)

    async def _delete(self, entry: TaskEntry, guard: LockInfo | None) -> bool:
        """Stop the command of a task, then erase it; False if something was written meanwhile."""
        head = (await self.store.read(entry.stream, limit=0)).head
        await self.executions.stop_all(entry)
        try:
            async with self.mirror.around_commit(entry.stream):
                await self._erase(entry.stream, entry.record.tenant, guard, head)
        except HeadMoved:  # by a command that has ended or started, or a line of the log
            return False
        return True

    async def _erase(
        self, stream: str, tenant: str, guard: LockInfo | None, head: int | None = None
    ) -> None:
        write = Write(stream, head=head, erase=True)
        await commit_guarded(self.store, [write], (), guard, tenant)

    async def _free_locks(self, ref: TaskRef) -> None:
        """Free the locks on a task and on parts of it."""

        def is_dropped(resource: str, holder: LockHolder) -> bool:
            del holder
            return is_lock_of(resource, ref.task_id)

        await self._lock_table.drop(ref.tenant, is_dropped)

    async def cleanup(self, ref: TaskRef) -> None:
        """Remove the state, log, decisions and checkpoints of a task; its row stays.

        A task without a row is removed as a whole. One that does not exist is no error.
        """
        try:
            entry = await get_task(self.store, ref)
        except PerdureError as error:
            if error.code != "TASK_NOT_FOUND":
                raise
            await self._cleanup_stream(ref)
            return
        self.place.check_here(entry.record)
        while not await self._cleanup_row(entry):
            entry = await get_task(self.store, ref)

    async def _cleanup_stream(self, ref: TaskRef) -> None:
        try:
            stream, exists = await live_stream(self.store, ref)
        except Refused:  # an id that no task can have
            return
        if exists:
            async with self.mirror.around_commit(stream):
                await self._erase(stream, ref.tenant, None)

    async def _cleanup_row(self, entry: TaskEntry) -> bool:
        """Remove the layers of a task; False if another process has written meanwhile."""
        head = (await self.store.read(entry.stream, limit=0)).head
        others = [
            Put(item.kind, item.key, item.version, item.stream, "", None, DELETE)
            for item in await self.store.entries_of(entry.stream)
            if item.kind in (record.STATE, record.CHECKPOINT)
        ]
        after = entry.changed(self.store.now(), since=head, is_blank=True)
        try:
            async with self.mirror.around_commit(entry.stream):
                write = Write(entry.stream, head=head)
                await self.store.commit([write], [*after.puts, *others])
                await to_thread.run_sync(self.mirror.remove_layers, entry.stream)
        except (VersionMoved, Gone):
            return False
        return True
