"""Restores of checkpoints: decided by a commit, carried out by one rename.

The new tree is built and verified beside the workspace. The commit names it with its inode; then
the two folders exchange their names. A process that dies before the commit has changed nothing;
after it, the next start finishes the exchange. No restore depends on the present tree, which a
command may have made unreadable, too deep or too large to be saved: it is then moved aside.
"""

import asyncio
import os
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from anyio import to_thread
from msgspec.structs import replace

from perdure.errors import Refused
from perdure.ids import new_id
from perdure.store.base import VersionMoved
from perdure.tasks.checkpoints.budget import CheckpointLimits
from perdure.tasks.checkpoints.catalog import Checkpoints
from perdure.tasks.checkpoints.manifests import ManifestFolder
from perdure.tasks.checkpoints.paths import (
    FOLDER,
    open_folder_beneath,
    sync_file_system,
)
from perdure.tasks.checkpoints.targets import CheckpointTarget, CheckpointTargets
from perdure.tasks.checkpoints.trees import WorkspaceTrees
from perdure.tasks.checkpoints.workspace import build, cannot_read
from perdure.tasks.files.folder_lock import folder_lock
from perdure.tasks.files.place import CHECKPOINTS, WORKSPACE, cannot_write
from perdure.tasks.model import record
from perdure.tasks.model.facts import Restoration
from perdure.tasks.model.manifest import Manifest, merged, path_not_found
from perdure.tasks.model.state_file import TaskState
from perdure.tasks.values import (
    RestoredTask,
    TaskRef,
    check_list,
    check_state,
    invalid,
    restored_json,
)
from perdure.tasks.writer import new_fact


class Restores:
    """Restores of tasks whose folders are here."""

    def __init__(
        self, targets: CheckpointTargets, checkpoints: Checkpoints, limits: CheckpointLimits
    ) -> None:
        self._targets = targets
        self._checkpoints = checkpoints
        self._limits = limits

    async def restore(
        self, ref: TaskRef, checkpoint_id: str, paths: Sequence[str] | None = None
    ) -> RestoredTask:
        """Put the state and the workspace back; the status and the log stay.

        The present state is taken as a checkpoint first. If that cannot be done, the present tree
        is moved aside. With `paths`, only these files and folders of the workspace are put back,
        which needs the checkpoint. Raises NotFound, Refused, Corrupt.
        """
        targets = self._targets
        target = await targets.find(ref)
        chosen = None if paths is None else check_paths(paths)
        marked = targets.mirror.marked(target.stream)
        async with targets.exclusive(target), targets.quiet(target), marked:
            trees = targets.trees(target.folder)
            await self._finish_left(target.stream, target.folder)
            manifest = await targets.manifest(target, checkpoint_id)
            if chosen is not None:
                await to_thread.run_sync(_check_present, target, manifest, chosen)
            plan = await self._plan(target, manifest, chosen, trees)
            await _finished(self._carry_out(target, plan, trees, has_state=chosen is None))
        return plan.answer

    async def _plan(
        self,
        target: CheckpointTarget,
        manifest: Manifest,
        chosen: Sequence[bytes] | None,
        trees: WorkspaceTrees,
    ) -> "_Plan":
        """Save the present tree, or else say where it is kept. Raises Refused."""
        path = trees.new(new_id("r"))
        try:
            saved, present = await self._checkpoints.take(target, f"Before restoring {manifest.id}")
        except Refused as error:
            if chosen is not None:
                raise _needs_whole_restore(error) from error
            answer = RestoredTask(kept_as=trees.kept_name(path.name), problem=error.message)
            return _Plan(path, manifest, answer)
        if chosen is not None:
            manifest = replace(manifest, entries=merged(present, manifest, chosen))
        return _Plan(path, manifest, RestoredTask(saved_as=saved.id))

    async def _carry_out(
        self, target: CheckpointTarget, plan: "_Plan", trees: WorkspaceTrees, *, has_state: bool
    ) -> None:
        """Build the new tree, decide the restore by a commit, and exchange the folders."""
        state = await self._restored_state(target, plan.manifest) if has_state else None
        is_kept = plan.answer.saved_as is None
        try:
            present = await self._targets.mirror.content(target.stream) if is_kept else None
            unsaved = None if present is None else present.state_bytes
            inode = await to_thread.run_sync(self._build, target, plan, trees, unsaved)
            restoration = Restoration(plan.path.name, inode, is_kept)
            await self._record_restore(target, plan, restoration, state)
        except BaseException:
            with suppress(OSError):
                await to_thread.run_sync(trees.drop, plan.path.name)
            raise
        await self._swap(target, restoration, trees)

    def _build(
        self, target: CheckpointTarget, plan: "_Plan", trees: WorkspaceTrees, unsaved: bytes | None
    ) -> int:
        """Build the new tree, and keep the state that no checkpoint has; return its inode."""
        try:
            build(plan.path, plan.manifest.entries, target.manifests.objects, self._limits)
            trees.keep_state(plan.path.name, unsaved)
            fd = os.open(plan.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                sync_file_system(fd)
                return os.fstat(fd).st_ino
            finally:
                os.close(fd)
        except OSError as error:
            raise cannot_write(target.folder, error) from error

    async def _swap(
        self, target: CheckpointTarget, restoration: Restoration, trees: WorkspaceTrees
    ) -> None:
        try:
            await to_thread.run_sync(trees.swap, restoration)
        except OSError as error:  # the next restore or start tries again
            self._targets.mirror.leave_mark(target.stream)
            raise cannot_write(target.folder, error) from error

    async def _restored_state(
        self, target: CheckpointTarget, manifest: Manifest
    ) -> tuple[TaskState, int] | None:
        """Return the state of a checkpoint with the present status, and its next version."""
        if not manifest.state:
            return None
        saved = await to_thread.run_sync(target.manifests.state, manifest.state)
        key = record.task_key(target.ref.tenant, target.ref.task_id)
        present = await self._targets.store.get(record.STATE, key)
        status = saved.status if target.row is None else str(target.row.status)
        # Checked like one of a caller: an imported checkpoint may have been written by anybody.
        fields = {"status": status, "data": saved.data}
        state = check_state(fields, target.ref.task_id, self._targets.store.now())
        return state, 1 if present is None else present.version + 1

    async def _record_restore(
        self,
        target: CheckpointTarget,
        plan: "_Plan",
        restoration: Restoration,
        state: tuple[TaskState, int] | None,
    ) -> None:
        manifest = plan.manifest
        data = {"checkpointId": manifest.id, "description": manifest.description}
        fact = new_fact(
            "task_restored",
            self._targets.store.now(),
            "info" if plan.answer.problem is None else "warn",
            data={**data, **restored_json(plan.answer)},
            checkpoint=manifest.id,
            restoration=restoration,
        )
        while True:
            try:
                await self._targets.commit(target, [fact], state=state)
            except VersionMoved:  # a caller saved a state meanwhile
                state = await self._restored_state(target, manifest)
            else:
                return

    async def recover(self, stream: str) -> None:
        """Finish or undo the restores that a process left behind when it died.

        Raises FolderLocked if a live process handles checkpoints of the task: a tree that is there
        may be the one that it builds. Raises Refused if the files cannot be changed.
        """
        folder = self._targets.mirror.place.folder(stream)
        trees, manifests = self._targets.trees(folder), ManifestFolder(folder)
        if not await to_thread.run_sync(lambda: trees.left() or manifests.has_left_files()):
            return
        try:
            with folder_lock(folder / CHECKPOINTS, 0):
                await self._finish_left(stream, folder)
                await self._checkpoints.collect(stream, manifests)
        except OSError as error:
            raise cannot_write(folder, error) from error

    async def _finish_left(self, stream: str, folder: Path) -> None:
        """Finish or undo earlier restores, while the caller excludes others. Raises Refused."""
        trees = self._targets.trees(folder)
        names = await to_thread.run_sync(trees.left)
        if not names:
            return
        content = await self._targets.mirror.content(stream)
        restorations = [item.fact.restoration for item in content.facts]
        decided = {item.folder: item for item in restorations if item is not None}
        try:
            for name in names:
                await to_thread.run_sync(trees.finish, name, trees.decided(name, decided))
        except OSError as error:
            raise cannot_write(folder, error) from error


class _Plan(NamedTuple):
    """A restore that is about to be carried out."""

    path: Path  # of the new tree
    manifest: Manifest
    answer: RestoredTask


def _needs_whole_restore(error: Refused) -> Refused:
    return Refused(
        f"parts of a checkpoint are restored into a copy of the workspace: {error.message}",
        code=error.code,
        hint="restore the whole checkpoint, without paths: it moves the workspace aside",
    )


async def _finished(work: Coroutine[Any, Any, None]) -> None:
    """Await work to its end, also if we are cancelled: a restore that is decided must be done."""
    task = asyncio.ensure_future(work)
    cancellation: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancellation = error
    if cancellation is not None:
        raise cancellation from (None if task.cancelled() else task.exception())
    task.result()


def check_paths(paths: Any) -> list[bytes]:
    """Return the paths to restore. Raises Refused INVALID_REQUEST."""
    names = check_list(paths, "paths")
    if not names or not all(_is_name(path) for path in names):
        raise Refused(
            "paths must be a list of names in the workspace",
            code="INVALID_REQUEST",
            hint='pass paths=["src", "notes.txt"]',
        )
    try:
        return [os.fsencode(path.strip("/")) for path in names]
    except UnicodeEncodeError:
        raise invalid("a path has a lone surrogate") from None


def _is_name(path: Any) -> bool:
    return isinstance(path, str) and bool(path.strip("/")) and "\0" not in path


def _check_present(target: CheckpointTarget, manifest: Manifest, paths: Sequence[bytes]) -> None:
    """Check, before anything is written, that something is at each path. Raises Refused."""
    try:
        root = os.open(target.folder / WORKSPACE, FOLDER)
    except OSError as error:
        raise _needs_whole_restore(cannot_read(b".")) from error
    held = manifest.paths()
    try:
        for path in paths:
            if path not in held and not _exists(root, path):
                raise path_not_found(path, manifest.id)
    finally:
        os.close(root)


def _exists(root: int, path: bytes) -> bool:
    parent, _, name = path.rpartition(b"/")
    try:
        folder = open_folder_beneath(root, parent)
    except OSError:
        return False
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError):
        return False
    finally:
        os.close(folder)
    return name not in (b"", b".", b"..")
