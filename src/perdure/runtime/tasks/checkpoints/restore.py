"""Restores of checkpoints: decided by a commit, carried out by one rename.

The new tree is built and verified beside the workspace. The commit names it with its inode; then
the two folders exchange their names. A process that dies before the commit has changed nothing;
after it, the next start finishes the exchange.
"""

import asyncio
import os
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
from anyio import to_thread
from msgspec.structs import replace

from perdure.core.tasks import record, state_file
from perdure.core.tasks.facts import Restoration
from perdure.core.tasks.manifest import Manifest, merged, path_not_found
from perdure.core.tasks.state_file import TaskState
from perdure.errors import Refused
from perdure.runtime.tasks.checkpoints.catalog import Checkpoints
from perdure.runtime.tasks.checkpoints.paths import (
    FOLDER,
    exchange,
    open_folder_beneath,
    sync_file_system,
)
from perdure.runtime.tasks.checkpoints.targets import (
    CheckpointRecord,
    CheckpointTarget,
    CheckpointTargets,
)
from perdure.runtime.tasks.checkpoints.workspace import CheckpointLimits, build
from perdure.runtime.tasks.files.folder_lock import folder_lock
from perdure.runtime.tasks.files.place import CHECKPOINTS, WORKSPACE, cannot_write
from perdure.runtime.tasks.files.removal import remove_tree
from perdure.runtime.tasks.values import TaskRef, check_list, invalid, iso
from perdure.runtime.tasks.writer import new_fact
from perdure.store.base import VersionMoved

_RESTORE: Final = "restore-"  # prefix of the tree that a restore builds


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
    ) -> CheckpointRecord:
        """Put the state and the workspace back; the status and the log stay.

        The present state is taken as a checkpoint first, which is returned. With `paths`, only
        these files and folders of the workspace are put back. Raises NotFound, Refused, Corrupt.
        """
        targets = self._targets
        target = await targets.find(ref)
        chosen = None if paths is None else check_paths(paths)
        marked = targets.mirror.marked(target.stream)
        async with targets.exclusive(target), targets.quiet(target), marked:
            manifest = await self._targets.manifest(target, checkpoint_id)
            if chosen is not None:
                await to_thread.run_sync(_check_present, target, manifest, chosen)
            safety, present = await self._checkpoints.take(
                target, f"Before restoring {checkpoint_id}"
            )
            entries = manifest.entries
            if chosen is not None:
                entries = merged(present, manifest, chosen)
            name = f"{_RESTORE}{safety.id}"
            new_tree = replace(manifest, entries=entries)
            await _finished(self._carry_out(target, name, new_tree, has_state=chosen is None))
        return safety

    async def _carry_out(
        self, target: CheckpointTarget, name: str, manifest: Manifest, *, has_state: bool
    ) -> None:
        """Build the new tree, decide the restore by a commit, and exchange the folders."""
        inode = await to_thread.run_sync(self._build, target, name, manifest)
        state = await self._restored_state(target, manifest) if has_state else None
        await self._record_restore(target, manifest, Restoration(name, inode), state)
        await to_thread.run_sync(_swap, target.folder, name)

    def _build(self, target: CheckpointTarget, name: str, manifest: Manifest) -> int:
        path = target.folder / name
        try:
            build(path, manifest.entries, target.manifests.objects, self._limits)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                sync_file_system(fd)
                return os.fstat(fd).st_ino
            finally:
                os.close(fd)
        except OSError as error:
            raise cannot_write(target.folder, error) from error

    async def _restored_state(
        self, target: CheckpointTarget, manifest: Manifest
    ) -> tuple[TaskState, int] | None:
        """Return the state of a checkpoint with the present status, and its next version."""
        if not manifest.state:
            return None
        content = await to_thread.run_sync(target.manifests.objects.read, manifest.state)
        saved = state_file.parse_state_file(content)
        key = record.task_key(target.ref.tenant, target.ref.task_id)
        present = await self._targets.store.get(record.STATE, key)
        status = saved.status if target.row is None else str(target.row.status)
        state = TaskState(
            task_id=target.ref.task_id,  # an imported checkpoint names another task
            status=status,
            data=saved.data,
            last_updated=iso(self._targets.store.now()),
        )
        return state, 1 if present is None else present.version + 1

    async def _record_restore(
        self,
        target: CheckpointTarget,
        manifest: Manifest,
        restoration: Restoration,
        state: tuple[TaskState, int] | None,
    ) -> None:
        data = {"checkpointId": manifest.id, "description": manifest.description}
        fact = new_fact(
            "task_restored",
            self._targets.store.now(),
            data=data,
            checkpoint=manifest.id,
            restoration=restoration,
        )
        while True:
            try:
                await self._targets.commit(target, [fact], state=state)
            except VersionMoved:  # a caller saved a state meanwhile
                state = await self._restored_state(target, manifest)
                continue
            except BaseException:
                with suppress(OSError):
                    await to_thread.run_sync(remove_tree, target.folder / restoration.folder)
                raise
            return

    async def recover(self, stream: str) -> None:
        """Finish or undo the restores that a process left behind when it died.

        Raises FolderLocked if a live process handles checkpoints of the task: a tree that is there
        may be the one that it builds. Raises Refused if the files cannot be changed.
        """
        folder = self._targets.mirror.place.folder(stream)
        try:
            if await to_thread.run_sync(_left_trees, folder):
                await self._recover(stream, folder)
        except OSError as error:
            raise cannot_write(folder, error) from error

    async def _recover(self, stream: str, folder: Path) -> None:
        with folder_lock(folder / CHECKPOINTS, 0):
            content = await self._targets.mirror.content(stream)
            decided = {
                item.fact.restoration.folder: item.fact.restoration.inode
                for item in content.facts
                if item.fact.restoration is not None
            }
            for name in await to_thread.run_sync(_left_trees, folder):
                await to_thread.run_sync(_finish, folder, name, decided.get(name))


def _left_trees(folder: Path) -> list[str]:
    return [path.name for path in folder.glob(f"{_RESTORE}*")] if folder.is_dir() else []


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


def _swap(folder: Path, name: str) -> None:
    """Put a new tree in the place of the workspace, and remove the old one. Raises Refused."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not exchange(fd, name, WORKSPACE):
                old = f"{name}-old"
                os.rename(WORKSPACE, old, src_dir_fd=fd, dst_dir_fd=fd)
                os.rename(name, WORKSPACE, src_dir_fd=fd, dst_dir_fd=fd)
                os.rename(old, name, src_dir_fd=fd, dst_dir_fd=fd)
            os.fsync(fd)
        finally:
            os.close(fd)
        remove_tree(folder / name)
    except OSError as error:
        raise cannot_write(folder, error) from error


def _finish(folder: Path, name: str, inode: int | None) -> None:
    """Swap a tree in if its restore was decided and it is not there yet; remove what is left."""
    workspace, left = folder / WORKSPACE, folder / name
    with suppress(FileNotFoundError):
        is_new_tree = inode is not None and left.stat().st_ino == inode
        if is_new_tree and workspace.exists():
            _swap(folder, name)
        elif is_new_tree or not workspace.exists():
            left.rename(workspace)
        else:
            remove_tree(left)


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
    root = os.open(target.folder / WORKSPACE, FOLDER)
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
