"""Workspaces as entries of a manifest: walked without following anything, and built again."""

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from perdure.errors import Refused
from perdure.tasks.checkpoints.budget import CheckpointLimits, FreeSpace, TreeBudget
from perdure.tasks.checkpoints.objects import ObjectStore
from perdure.tasks.checkpoints.paths import FOLDER, open_folder_beneath, open_regular
from perdure.tasks.files.removal import remove_tree
from perdure.tasks.model.manifest import (
    MODE_BITS,
    FileEntry,
    Manifest,
    file_entry,
    shown_path,
)

# A file that changes within the tick of the file system's clock has the same instants as before.
_TICK_NS: Final = 20_000_000
_KIND_AND_MODE: Final = 0o170000 | MODE_BITS
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class WalkedTree(NamedTuple):
    """Entries of a workspace, in an order in which folders precede their content."""

    entries: tuple[FileEntry, ...]
    skipped: tuple[str, ...]
    walked_ns: int


def walk(
    root: Path,
    objects: ObjectStore,
    limits: CheckpointLimits,
    previous: Manifest | None = None,
) -> WalkedTree:
    """Store the files of a workspace, and return its entries. Raises Refused, OSError.

    A file with the inode, size and instants that the previous checkpoint saw is not read again.
    """
    return _Walk(objects, limits, previous).run(root)


class _Walk:
    def __init__(
        self, objects: ObjectStore, limits: CheckpointLimits, previous: Manifest | None
    ) -> None:
        self._objects = objects
        self._limits = limits
        self._budget = TreeBudget("the workspace", limits)
        self._entries: list[FileEntry] = []
        self._skipped: list[str] = []
        self._device = 0
        self._before = {} if previous is None else _trusted(previous)

    def run(self, root: Path) -> WalkedTree:
        started = time.time_ns()
        try:
            fd = os.open(root, FOLDER)
        except PermissionError as error:
            raise cannot_read(b".") from error
        self._device = os.fstat(fd).st_dev
        folders: list[tuple[int, bytes, Iterator[bytes]]] = [(fd, b"", self._names(fd))]
        try:
            while folders:
                folder = self._next_folder(*folders[-1])
                if folder is None:
                    os.close(folders.pop()[0])
                    continue
                inner, path = folder
                self._check_depth(path, inner)
                folders.append((inner, path + b"/", self._names(inner)))
        finally:
            for fd, _, _ in folders:
                os.close(fd)
        return WalkedTree(tuple(self._entries), tuple(self._skipped), started)

    def _names(self, folder: int) -> Iterator[bytes]:
        """Yield the names in a folder, in order; one with too many is never read to its end."""
        left = self._budget.files_left
        with os.scandir(folder) as items:
            names = [item.name for item in islice(items, left + 1)]
        if len(names) > left:
            raise self._budget.too_many()
        # A descriptor gives names as text in which surrogates stand for bytes that are not UTF-8.
        # No name has a zero byte, so all of them are encoded at once.
        if names:
            yield from sorted(os.fsencode("\0".join(names)).split(b"\0"))

    def _next_folder(
        self, folder: int, prefix: bytes, names: Iterator[bytes]
    ) -> tuple[int, bytes] | None:
        """Add the entries up to the next folder; return a descriptor of it with its path."""
        for name in names:
            path = prefix + name
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                before = self._before.get(path)
                if before is not None and self._is_unchanged(before, status):
                    self._add(before)
                    continue
                inner = self._visit(folder, path, name, status)
            except FileNotFoundError:
                continue  # a program removed it while we looked
            except PermissionError as error:
                raise cannot_read(path) from error
            if inner is not None:
                return inner, path
        return None

    def _visit(self, folder: int, path: bytes, name: bytes, status: os.stat_result) -> int | None:
        """Add the entry of a name that is new or changed; return a descriptor of a folder."""
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR and status.st_dev == self._device:
            inner = os.open(name, FOLDER, dir_fd=folder)
            self._add(file_entry(path, "dir", status.st_mode))
            return inner
        if kind == stat.S_IFLNK:
            target = os.readlink(name, dir_fd=folder)
            self._add(file_entry(path, "link", target=target))
        elif kind != stat.S_IFREG or not self._add_file(folder, path, name, status):
            self._skipped.append(shown_path(path))
        return None

    def _add_file(self, folder: int, path: bytes, name: bytes, status: os.stat_result) -> bool:
        """Add a regular file; False if it is not one any more."""
        self._budget.check(status.st_size)
        opened = open_regular(folder, name)
        if opened is None:
            return False
        fd, status = opened
        try:
            digest, size = self._objects.put_file(fd, self._budget.file_left)
        finally:
            os.close(fd)
        self._add(
            file_entry(
                path, "file", status.st_mode, size=size, sha256=digest, stat=_instants(status)
            )
        )
        return True

    def _is_unchanged(self, before: FileEntry, status: os.stat_result) -> bool:
        return (
            before.stat == (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
            and before.size == status.st_size
            and before.mode | stat.S_IFREG == status.st_mode & _KIND_AND_MODE
            and self._objects.has(before.sha256)
        )

    def _add(self, entry: FileEntry) -> None:
        self._budget.add(entry.size)
        self._entries.append(entry)

    def _check_depth(self, path: bytes, inner: int) -> None:
        if path.count(b"/") + 1 >= self._limits.depth:
            os.close(inner)
            raise Refused(
                f"the workspace is nested deeper than {self._limits.depth} folders",
                code="CHECKPOINT_TOO_DEEP",
                hint="remove the deepest folders from the workspace",
            )


def _trusted(previous: Manifest) -> dict[bytes, FileEntry]:
    """Return the files by path that cannot have changed since without other instants."""
    until = previous.walked_ns - _TICK_NS
    return {
        entry.path: entry
        for entry in previous.entries
        if entry.stat is not None and entry.stat[1] < until and entry.stat[2] < until
    }


def cannot_read(path: bytes) -> Refused:
    """Return the error for a part of a workspace that this user may not read."""
    return Refused(
        f"{shown_path(path)!a} in the workspace cannot be read",
        code="CHECKPOINT_FAILED",
        hint="make it readable for this user, or remove it",
    )


def _instants(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


# --- building -------------------------------------------------------------------------------------


def build(
    folder: Path, entries: Sequence[FileEntry], objects: ObjectStore, limits: CheckpointLimits
) -> None:
    """Create a folder with these entries, each verified. Raises Refused, Corrupt, OSError.

    The sizes of the objects count, not those of the entries, which anybody may have written. If
    something fails, nothing is left of the folder.
    """
    space = FreeSpace(folder.parent)
    check_tree("the checkpoint", entries, objects.size, limits, space)
    folder.mkdir(0o700)
    try:
        root = os.open(folder, FOLDER)
        try:
            _Build(root, objects, space).run(entries)
        finally:
            os.close(root)
    except BaseException:
        with suppress(OSError):
            remove_tree(folder)
        raise


def check_tree(
    subject: str,
    entries: Sequence[FileEntry],
    size_of: Callable[[str], int],
    limits: CheckpointLimits,
    space: FreeSpace,
) -> None:
    """Check the size of a tree before it is written. Raises Refused CHECKPOINT_TOO_LARGE."""
    budget = TreeBudget(subject, limits)
    cached_size = lru_cache(maxsize=None)(size_of)
    sizes = [cached_size(item.sha256) if item.type == "file" else 0 for item in entries]
    for size in sizes:
        budget.add(size)
    space.check_all(sizes)


class _Build:
    def __init__(self, root: int, objects: ObjectStore, space: FreeSpace) -> None:
        self._root = root
        self._objects = objects
        self._space = space

    def run(self, entries: Sequence[FileEntry]) -> None:
        parent_path, parent = b"", os.dup(self._root)
        try:
            for item in entries:
                path, _, name = item.path.rpartition(b"/")
                if path != parent_path:
                    os.close(parent)
                    parent = -1
                    parent = open_folder_beneath(self._root, path)
                    parent_path = path
                self._create(parent, name, item)
        finally:
            if parent >= 0:
                os.close(parent)
        for item in reversed(entries):  # a folder without write permission gets it last
            if item.type == "dir":
                fd = open_folder_beneath(self._root, item.path)
                os.fchmod(fd, item.mode)
                os.close(fd)

    def _create(self, folder: int, name: bytes, item: FileEntry) -> None:
        if item.type == "dir":
            os.mkdir(name, 0o700, dir_fd=folder)
        elif item.type == "link":
            os.symlink(item.link_target, name, dir_fd=folder)
        else:
            fd = os.open(name, _CREATE, 0o600, dir_fd=folder)
            with os.fdopen(fd, "wb") as file:
                for piece in self._objects.pieces(item.sha256):
                    self._space.spend(len(piece))
                    file.write(piece)
                os.fchmod(fd, item.mode)
