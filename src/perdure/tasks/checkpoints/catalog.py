"""Checkpoints of tasks: created, listed, verified, compared and deleted."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from anyio import to_thread
from msgspec.structs import replace

from perdure.errors import Corrupt, NotFound, Refused
from perdure.ids import new_id
from perdure.store.base import DELETE, Put
from perdure.tasks.checkpoints.budget import CheckpointLimits
from perdure.tasks.checkpoints.manifests import ManifestFolder
from perdure.tasks.checkpoints.targets import (
    CheckpointRecord,
    CheckpointTarget,
    CheckpointTargets,
)
from perdure.tasks.checkpoints.workspace import walk
from perdure.tasks.files.layer_files import TaskContent
from perdure.tasks.files.place import REPLACED, WORKSPACE, cannot_write
from perdure.tasks.model import record
from perdure.tasks.model.manifest import Manifest, ManifestDiff, diff
from perdure.tasks.values import TaskCheckpoint, TaskRef, check_description
from perdure.tasks.writer import new_fact
from perdure.views.base import iso

logger = logging.getLogger("perdure")

DESCRIPTION: Final = "Checkpoint"


class Checkpoints:
    """Checkpoints of tasks whose folders are here."""

    def __init__(self, targets: CheckpointTargets, limits: CheckpointLimits) -> None:
        self._targets = targets
        self._limits = limits

    async def create(self, ref: TaskRef, description: str | None = None) -> CheckpointRecord:
        """Take a checkpoint of the state, log, decisions and workspace. Raises Refused."""
        text = DESCRIPTION if description is None else check_description(description)
        target = await self._targets.find(ref)
        marked = self._targets.mirror.marked(target.stream)
        async with self._targets.exclusive(target), self._targets.quiet(target), marked:
            return (await self.take(target, text))[0]

    async def take(
        self, target: CheckpointTarget, description: str
    ) -> tuple[CheckpointRecord, Manifest]:
        """Take a checkpoint while the caller excludes others; return it with its manifest.

        Raises Refused if the workspace cannot be saved; then nothing is left of the attempt.
        """
        content = await self._targets.mirror.content(target.stream)
        entries = await self._targets.entries_of(target.stream)
        newest = entries[0] if entries else None
        at = max(self._targets.store.now(), 0 if newest is None else newest.at + 1)
        plan = Manifest(
            id=new_id("cp"),
            task_id=target.ref.task_id,
            timestamp=iso(at),
            description=description,
            at=at,
        )
        try:
            manifest, digest = await to_thread.run_sync(self._take, target, plan, content, newest)
        except Refused:
            await self.collect(target.stream, target.manifests)
            raise
        checkpoint = CheckpointRecord.of(manifest, digest)
        await self.record_new(target, checkpoint)
        return checkpoint, manifest

    def _take(
        self,
        target: CheckpointTarget,
        plan: Manifest,
        content: TaskContent,
        newest: CheckpointRecord | None,
    ) -> tuple[Manifest, str]:
        previous = None
        if newest is not None:
            with suppress(Corrupt):
                previous = target.manifests.read(newest.id, newest.digest)
        folder = target.manifests
        try:
            folder.create()
            tree = walk(target.folder / WORKSPACE, folder.objects, self._limits, previous)
            state = content.state_bytes
            manifest = replace(
                plan,
                entries=tree.entries,
                skipped=tree.skipped,
                walked_ns=tree.walked_ns,
                state="" if state is None else folder.objects.put(state),
                logs=folder.put_chunks(b"".join(data for _, data in content.log_units)),
                decisions=folder.put_chunks(b"".join(data for _, data in content.decision_units)),
            )
            return manifest, folder.write(manifest)
        except OSError as error:
            raise cannot_write(target.folder, error) from error

    async def record_new(self, target: CheckpointTarget, checkpoint: CheckpointRecord) -> None:
        """Commit a checkpoint whose manifest is durable: from now on it is listed."""
        data = {"checkpointId": checkpoint.id, "description": checkpoint.description}
        fact = new_fact("checkpoint_created", checkpoint.at, data=data, checkpoint=checkpoint.id)
        await self._targets.commit(target, [fact], puts=[self._put(target, checkpoint, 0)])

    def _put(self, target: CheckpointTarget, checkpoint: CheckpointRecord, expect: int) -> Put:
        key = record.checkpoint_key(
            target.ref.tenant, target.ref.task_id, checkpoint.at, checkpoint.id
        )
        data = msgspec.json.encode(checkpoint)
        return Put(record.CHECKPOINT, key, expect, target.stream, "kept", None, data)

    # --- look ---------------------------------------------------------------------------------

    async def all(self, ref: TaskRef) -> list[TaskCheckpoint]:
        """Return the checkpoints of a task, newest first; a damaged one says so."""
        try:
            target = await self._targets.find(ref)
        except NotFound:
            return []
        entries = await self._targets.entries_of(target.stream)
        return await to_thread.run_sync(
            lambda: [self._checkpoint(target, entry) for entry in entries]
        )

    def _checkpoint(self, target: CheckpointTarget, entry: CheckpointRecord) -> TaskCheckpoint:
        files: list[str] = []
        content: dict[str, Any] = {}
        problem = None
        try:
            manifest = target.manifests.read(entry.id, entry.digest)
            files, content = manifest.files, msgspec.to_builtins(manifest)
        except Corrupt as error:
            problem = error.message
            logger.warning("%s: %s", target.manifests.path(entry.id), problem)
        return TaskCheckpoint(
            id=entry.id,
            task_id=target.ref.task_id,
            timestamp=entry.timestamp,
            description=entry.description,
            files=files,
            manifest=content,
            problem=problem,
            size=entry.size,
            at=entry.at,
        )

    async def verify(self, ref: TaskRef, checkpoint_id: str) -> list[str]:
        """Return what is wrong with a checkpoint; nothing if it can be restored."""
        target = await self._targets.find(ref)
        entry = await self._targets.entry(target, checkpoint_id)
        return await to_thread.run_sync(self._problems, target, entry)

    def _problems(self, target: CheckpointTarget, entry: CheckpointRecord) -> list[str]:
        try:
            manifest = target.manifests.read(entry.id, entry.digest)
        except Corrupt as error:
            return [error.message]
        problems = [target.manifests.objects.problem(name) for name in sorted(manifest.digests())]
        return [problem for problem in problems if problem is not None]

    async def diff(
        self, ref: TaskRef, checkpoint_id: str, other_id: str | None = None
    ) -> ManifestDiff:
        """Return what changed from a checkpoint to another one, or to the present workspace."""
        target = await self._targets.find(ref)
        before = await self._targets.manifest(target, checkpoint_id)
        if other_id is not None:
            return diff(before, await self._targets.manifest(target, other_id))
        async with self._targets.exclusive(target):
            tree = await to_thread.run_sync(
                walk, target.folder / WORKSPACE, target.manifests.objects, self._limits, before
            )
        return diff(before, replace(before, entries=tree.entries))

    # --- delete -------------------------------------------------------------------------------

    async def delete(self, ref: TaskRef, checkpoint_id: str) -> None:
        """Delete a checkpoint, and the objects that no other one needs. Raises NotFound.

        The id `replaced` deletes the workspace that a restore could not save, and has kept.
        """
        target = await self._targets.find(ref)
        async with self._targets.exclusive(target):
            if checkpoint_id == REPLACED:
                await self._delete_replaced(target)
                return
            entry = await self._targets.index_entry(target, checkpoint_id)
            put = Put(entry.kind, entry.key, entry.version, entry.stream, "", None, DELETE)
            await self._record_deleted(target, checkpoint_id, [put])
            await self.collect(target.stream, target.manifests)

    async def _delete_replaced(self, target: CheckpointTarget) -> None:
        try:
            removed = await to_thread.run_sync(self._targets.trees(target.folder).remove_kept)
        except OSError as error:
            raise cannot_write(target.folder, error) from error
        if not removed:
            raise NotFound(
                f"task {target.ref.task_id} keeps no workspace that a restore has replaced",
                code="CHECKPOINT_NOT_FOUND",
                hint=f"perdure tasks checkpoints {target.ref.task_id}",
            )
        await self._record_deleted(target, REPLACED)

    async def _record_deleted(
        self, target: CheckpointTarget, checkpoint_id: str, puts: Sequence[Put] = ()
    ) -> None:
        data, now = {"checkpointId": checkpoint_id}, self._targets.store.now()
        fact = new_fact("checkpoint_deleted", now, data=data, checkpoint=checkpoint_id)
        await self._targets.commit(target, [fact], puts=puts)

    async def collect(self, stream: str, manifests: ManifestFolder) -> None:
        """Remove the files of checkpoints that are not recorded, while others are excluded."""
        kept = {item.id for item in await self._targets.entries_of(stream)}
        await to_thread.run_sync(manifests.collect, kept)
