"""Trees beside a workspace: the one that a restore builds, and the one that it replaces.

Both stay in the folder of the task until they are whole: there a tree changes its name whatever
permissions a command has given it.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from perdure.store.shared.private_files import create_file
from perdure.tasks.checkpoints.paths import exchange
from perdure.tasks.files.place import REPLACED, WORKSPACE
from perdure.tasks.model.facts import Restoration

_RESTORE: Final = "restore-"
_KEPT: Final = f"{REPLACED}-"
_OLD: Final = "-old"
_STATE: Final = "-state.json"  # of the task when its tree was replaced


class WorkspaceTrees:
    """Trees in the folder of one task; `discard` removes a path, now or at the next start."""

    def __init__(self, folder: Path, discard: Callable[[Path], None]) -> None:
        self._folder = folder
        self._discard = discard

    def new(self, restore_id: str) -> Path:
        """Return the path of the tree that a restore builds."""
        return self._folder / f"{_RESTORE}{restore_id}"

    @staticmethod
    def kept_name(name: str) -> str:
        """Return the name under which the tree that a restore replaces is kept."""
        return f"{_KEPT}{name.removeprefix(_RESTORE).removesuffix(_OLD)}"

    def keep_state(self, name: str, state: bytes | None) -> None:
        """Write the state of the task beside the place of a tree that will be kept."""
        if state is not None:
            path = self._state_path(name)
            create_file(path)
            path.write_bytes(state)

    def _state_path(self, name: str) -> Path:
        return self._folder / f"{self.kept_name(name)}{_STATE}"

    def left(self) -> list[str]:
        """Return the names of trees of restores that have not ended."""
        return sorted(path.name for path in self._folder.glob(f"{_RESTORE}*"))

    def drop(self, name: str) -> None:
        """Remove a tree whose restore was not decided."""
        self._state_path(name).unlink(missing_ok=True)
        self._discard(self._folder / name)

    def swap(self, restoration: Restoration) -> None:
        """Put a new tree in the place of the workspace. Raises OSError; then it is not there."""
        name = restoration.folder
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not exchange(fd, name, WORKSPACE):
                old = f"{name}{_OLD}"
                os.rename(WORKSPACE, old, src_dir_fd=fd, dst_dir_fd=fd)
                os.rename(name, WORKSPACE, src_dir_fd=fd, dst_dir_fd=fd)
                os.rename(old, name, src_dir_fd=fd, dst_dir_fd=fd)
            os.fsync(fd)
        finally:
            os.close(fd)
        self._put_away(name, is_kept=restoration.is_kept)

    def _put_away(self, name: str, *, is_kept: bool) -> None:
        """Keep the tree that was replaced, instead of those before it, or remove it."""
        if not is_kept:
            with suppress(OSError):  # else it is kept, like one that could not be saved
                self._discard(self._folder / name)
                return
        kept = self.kept_name(name)
        (self._folder / name).rename(self._folder / kept)
        for path in self._kept_paths():
            if not path.name.startswith(kept):
                with suppress(OSError):  # it stays until the task is deleted
                    self._discard(path)

    def _kept_paths(self) -> list[Path]:
        return sorted(self._folder.glob(f"{_KEPT}*"))

    def remove_kept(self) -> bool:
        """Remove the trees that are kept; False if there are none. Raises OSError."""
        paths = self._kept_paths()
        for path in paths:
            self._discard(path)
        return bool(paths)

    def finish(self, name: str, restoration: Restoration | None) -> None:
        """Swap a tree in if its restore was decided and it is not there yet; else put it away."""
        workspace, left = self._folder / WORKSPACE, self._folder / name
        with suppress(FileNotFoundError):
            is_new_tree = restoration is not None and left.lstat().st_ino == restoration.inode
            if not os.path.lexists(workspace):
                left.rename(workspace)
            elif restoration is not None and is_new_tree:
                self.swap(restoration)
            elif restoration is not None:
                self._put_away(name, is_kept=restoration.is_kept)
            else:
                self.drop(name)

    def decided(self, name: str, restorations: dict[str, Restoration]) -> Restoration | None:
        """Return the restore that has named a tree, or replaced it."""
        return restorations.get(name.removesuffix(_OLD))
