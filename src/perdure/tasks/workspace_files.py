"""Files of a task's workspace, read and written for callers and never through a link."""

import errno
import heapq
import os
import stat
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from anyio import to_thread

from perdure.errors import NotFound, Refused
from perdure.ids import secret_id
from perdure.sandbox.base import RunAs
from perdure.sandbox.workspace import used_bytes
from perdure.tasks.checkpoints.paths import FOLDER, open_folder_beneath, open_regular
from perdure.tasks.checkpoints.targets import CheckpointTargets
from perdure.tasks.files.place import WORKSPACE, cannot_write
from perdure.tasks.values import TaskRef, check_storable, invalid

MAX_FILE_BYTES: Final = 64 * 1024**2
MAX_DEPTH: Final = 100
MAX_LISTED: Final = 500  # entries of one folder
_BLOCK: Final = 4096  # bytes that a small file takes, at least
_MAX_KNOWN: Final = 1_000  # workspaces whose size is remembered
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """An entry of a folder. Only files and folders whose name is text have a path to open."""

    name: str  # with bytes that are not text escaped
    kind: Literal["file", "folder", "other"]
    size: int
    path: str | None


class WorkspaceFiles:
    """Files of the tasks whose folders are here."""

    def __init__(
        self, targets: CheckpointTargets, run_as: RunAs | None, disk_bytes: int | None
    ) -> None:
        self._targets = targets
        self._run_as = run_as if os.geteuid() == 0 else None
        self._disk_bytes = disk_bytes
        # Bytes of workspaces when they were measured last, and what was written since.
        self._used: OrderedDict[Path, int] = OrderedDict()

    async def read(self, ref: TaskRef, path: Any) -> bytes:
        """Return the content of a regular file. Raises NotFound, Refused."""
        names = check_path(path)
        target = await self._targets.find(ref)
        return await to_thread.run_sync(_read, target.folder / WORKSPACE, names)

    async def list_folder(self, ref: TaskRef, folder: Any = "") -> list[FolderEntry]:
        """Return the entries of a folder, folders first; of a large one, the first by name.

        Raises NotFound, Refused.
        """
        names = check_path(folder) if folder != "" else []
        target = await self._targets.find(ref)
        return await to_thread.run_sync(_list, target.folder / WORKSPACE, names)

    async def write(self, ref: TaskRef, path: Any, content: Any, mode: int = 0o644) -> int:
        """Create or replace a regular file, with its folders, and return its size.

        No reader sees half of it. Text is written as UTF-8. Raises NotFound, Refused.
        """
        names = check_path(path)
        if isinstance(content, str):
            content = check_storable(content, "the content of a file").encode()
        if not isinstance(content, bytes):
            raise invalid("the content of a file must be bytes or text")
        if len(content) > MAX_FILE_BYTES:
            raise _too_large(names, len(content))
        target = await self._targets.find(ref)
        async with self._targets.exclusive(target):  # a restore would exchange the workspace
            await self._check_space(target.folder / WORKSPACE, len(content) + _BLOCK)
            await to_thread.run_sync(
                self._write, target.folder / WORKSPACE, names, content, mode & 0o777
            )
        return len(content)

    async def _check_space(self, workspace: Path, size: int) -> None:
        """Count bytes against the disk limit of commands. Raises Refused DISK_LIMIT.

        A workspace is measured only if it may be full, or if nothing is known about it.
        """
        limit = self._disk_bytes
        if limit is None:
            return
        used = self._used.pop(workspace, limit)
        if used + size > limit:
            try:
                used = await used_bytes(workspace)
            except OSError:  # no process could be started, as when commands are watched
                used = 0
        if used + size > limit:
            raise _disk_full(limit)
        self._used[workspace] = used + size
        if len(self._used) > _MAX_KNOWN:
            self._used.popitem(last=False)

    def _write(self, root: Path, names: list[bytes], content: bytes, mode: int) -> None:
        folder = temporary = None
        try:
            folder = self._open_folder(root, names[:-1])
            _check_replaceable(folder, names)
            temporary = f".perdure-{secret_id('f')[2:14]}"
            fd = os.open(temporary, _CREATE, 0o600, dir_fd=folder)
            with os.fdopen(fd, "wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), mode)
                self._give(file.fileno())
            os.rename(temporary, names[-1], src_dir_fd=folder, dst_dir_fd=folder)
            temporary = None
        except OSError as error:
            raise _path_error(names, error, root) from error
        finally:
            if folder is not None and temporary is not None:
                _remove(temporary, folder)
            if folder is not None:
                os.close(folder)

    def _open_folder(self, root: Path, names: list[bytes]) -> int:
        """Open the folder of a file; folders that do not exist are created. Raises OSError."""
        fd = os.open(root, FOLDER)
        try:
            for name in names:
                try:
                    os.mkdir(name, 0o755, dir_fd=fd)
                    is_new = True
                except FileExistsError:
                    is_new = False
                inner = os.open(name, FOLDER, dir_fd=fd)
                os.close(fd)
                fd = inner
                if is_new:
                    self._give(fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _give(self, fd: int) -> None:
        """Give a file that root has created to the user of the commands."""
        if self._run_as is not None:
            os.fchown(fd, self._run_as.uid, self._run_as.gid)


def check_path(path: Any) -> list[bytes]:
    """Return the names of a relative path. Raises Refused INVALID_REQUEST."""
    if not isinstance(path, str) or not path or "\0" in path:
        raise invalid("the path of a file must be text, and not empty")
    try:
        names = os.fsencode(path).split(b"/")
    except UnicodeEncodeError:
        raise invalid("the path of a file has a lone surrogate") from None
    is_plain = all(name not in (b"", b".", b"..") and len(name) <= 255 for name in names)
    if not is_plain or len(names) > MAX_DEPTH:
        raise invalid(
            f"{path[:80]!a} is not a path in the workspace: write folder/name, without '..' "
            "and without '/' at its beginning or end"
        )
    return names


def _read(root: Path, names: list[bytes]) -> bytes:
    folder = opened = None
    try:
        top = os.open(root, FOLDER)
        try:
            folder = open_folder_beneath(top, b"/".join(names[:-1]))
        finally:
            os.close(top)
        opened = open_regular(folder, names[-1])
        if opened is None:
            raise OSError(errno.ELOOP, "not a regular file")
        with os.fdopen(opened[0], "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _path_error(names, error, root) from error
    finally:
        if folder is not None:
            os.close(folder)
    if len(content) > MAX_FILE_BYTES:
        raise _too_large(names, opened[1].st_size)
    return content


def _list(root: Path, names: list[bytes]) -> list[FolderEntry]:
    folder = None
    try:
        top = os.open(root, FOLDER)
        try:
            folder = open_folder_beneath(top, b"/".join(names))
        finally:
            os.close(top)
        with os.scandir(folder) as items:
            entries = (_entry(folder, names, os.fsencode(item.name)) for item in items)
            present = (entry for entry in entries if entry is not None)
            # A command may have left millions of files: never keep more than are returned.
            return heapq.nsmallest(
                MAX_LISTED, present, key=lambda entry: (entry.kind != "folder", entry.name)
            )
    except OSError as error:
        raise _path_error(names, error, root) from error
    finally:
        if folder is not None:
            os.close(folder)


def _entry(folder: int, names: list[bytes], name: bytes) -> FolderEntry | None:
    """Return an entry of an open folder without following it; None if it was just removed."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    kind: Literal["file", "folder", "other"] = "other"
    if stat.S_ISREG(status.st_mode):
        kind = "file"
    elif stat.S_ISDIR(status.st_mode):
        kind = "folder"
    text = name.decode(errors="backslashreplace")
    path = os.fsdecode(b"/".join([*names, name])) if kind != "other" else None
    is_text = path is not None and path.isprintable()
    return FolderEntry(text, kind, status.st_size, path if is_text else None)


def _check_replaceable(folder: int, names: list[bytes]) -> None:
    """Refuse to replace anything but a regular file. Raises OSError."""
    try:
        opened = open_regular(folder, names[-1])
    except FileNotFoundError:
        return
    except PermissionError:
        return  # a regular file that its owner made unreadable
    if opened is None:
        raise OSError(errno.ELOOP, "not a regular file")
    os.close(opened[0])


def _remove(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return


def _path_error(names: list[bytes], error: OSError, root: Path) -> NotFound | Refused:
    path = os.fsdecode(b"/".join(names))
    if error.errno == errno.ENOENT:
        return NotFound(
            f"there is no file {path!a} in the workspace",
            code="FILE_NOT_FOUND",
            hint="paths are relative to the workspace, such as src/main.py",
        )
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EXDEV):
        return Refused(
            f"{path!a} is not a regular file, or leads through a link",
            code="NOT_A_FILE",
            hint="links, folders and devices of a workspace are not followed",
        )
    return cannot_write(root / path, error)


def _disk_full(limit: int) -> Refused:
    return Refused(
        f"the workspace would have more than {limit:,} bytes, which tasks.limits.disk allows",
        code="DISK_LIMIT",
        hint="remove files with a command, or raise tasks.limits.disk",
    )


def _too_large(names: list[bytes], size: int) -> Refused:
    path = os.fsdecode(b"/".join(names))
    return Refused(
        f"{path!a} has {size:,} bytes, and {MAX_FILE_BYTES:,} are allowed",
        code="TOO_LARGE",
        hint="split it, or copy it on the machine of the task",
    )
