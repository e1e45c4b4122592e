"""Removal of folder trees of any depth, without following a link."""

import os
import stat
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path) -> None:
    """Remove a folder with everything in it. Raises OSError.

    A workspace may be nested deeper than a path or a stack can be long, so every inner folder is
    first moved up to the top one, which keeps the depth at two. A folder that its owner has closed
    also to itself is opened.
    """
    _make_usable(path)
    top = os.open(path, _FOLDER)
    try:
        names = count()
        inner = _remove_files(top)
        while inner:
            name = inner.pop()
            child = _open_folder(top, name)
            if child is None:
                continue
            try:
                for nested in _remove_files(child):
                    new_name = _unused(top, names)
                    os.rename(nested, new_name, src_dir_fd=child, dst_dir_fd=top)
                    inner.append(new_name)
            finally:
                os.close(child)
            with suppress(FileNotFoundError):
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    path.rmdir()


def _remove_files(folder: int) -> list[bytes]:
    """Remove everything in a folder that is not a folder; return the names of its folders."""
    folders: list[bytes] = []
    for text in os.listdir(folder):
        name = os.fsencode(text)
        with suppress(FileNotFoundError):  # another process removes it too
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                _make_usable(name, folder)
                folders.append(name)
            else:
                os.unlink(name, dir_fd=folder)
    return folders


def _make_usable(path: Path | bytes, folder: int | None = None) -> None:
    """Let the owner of a folder list, change and move it. Raises OSError."""
    fd = os.open(path, _LOOK, dir_fd=folder)
    try:
        if os.fstat(fd).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)  # noqa: PTH101 - by descriptor, never by a link
    finally:
        os.close(fd)


def _open_folder(top: int, name: bytes) -> int | None:
    try:
        return os.open(name, _FOLDER, dir_fd=top)
    except FileNotFoundError:
        return None


def _unused(top: int, names: "count[int]") -> bytes:
    while True:
        name = b".perdure-%d" % next(names)
        try:
            os.stat(name, dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            return name
