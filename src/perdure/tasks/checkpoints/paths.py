"""Opening files below a folder that another program may change at any moment.

Nothing here follows a link, and nothing but a regular file is ever opened for reading: opening a
pipe may hang, and opening a device may have effects.
"""

import ctypes
import os
import stat
from typing import Final

FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_OPENAT2: Final = 437  # the same number on every architecture
_RENAMEAT2_EXCHANGE: Final = 2
_RESOLVE: Final = 0x08 | 0x04 | 0x02  # beneath the folder, no links at all, no magic links

_libc: Final = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def open_folder_beneath(root: int, path: bytes) -> int:
    """Open the folder with a path below a folder, through no link. Raises OSError."""
    if not path:
        return os.dup(root)
    options = _OpenHow(FOLDER, 0, _RESOLVE)
    fd = _libc.syscall(_OPENAT2, root, path, ctypes.byref(options), ctypes.sizeof(options))
    if fd >= 0:
        return int(fd)
    # Also for a kernel that does not have it, or a filter that forbids it: name by name.
    return _open_by_names(root, path.split(b"/"))


def _open_by_names(root: int, names: list[bytes]) -> int:
    if any(name in (b"", b".", b"..") for name in names):
        raise NotADirectoryError(b"/".join(names))
    fd = os.dup(root)
    try:
        for name in names:
            inner = os.open(name, FOLDER, dir_fd=fd)
            os.close(fd)
            fd = inner
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_regular(folder: int, name: bytes) -> tuple[int, os.stat_result] | None:
    """Open a regular file for reading; None if it is something else. Raises OSError.

    The file is first opened without any effect, and only then for reading, through that
    descriptor: nobody can put a pipe or a device in its place in between.
    """
    look = os.open(name, _LOOK, dir_fd=folder)
    try:
        status = os.fstat(look)
        if not stat.S_ISREG(status.st_mode):
            return None
        fd = os.open(f"/proc/self/fd/{look}", _READ)
    finally:
        os.close(look)
    return fd, status


def exchange(folder: int, first: str, second: str) -> bool:
    """Exchange two names of a folder at once; False if the file system cannot. Raises OSError."""
    if not hasattr(_libc, "renameat2"):
        return False
    names = first.encode(), second.encode()
    result = _libc.renameat2(folder, names[0], folder, names[1], _RENAMEAT2_EXCHANGE)
    if result == 0:
        return True
    code = ctypes.get_errno()
    if code in _NOT_SUPPORTED:
        return False
    raise OSError(code, os.strerror(code), first)


_NOT_SUPPORTED: Final = frozenset({22, 38, 95})  # EINVAL, ENOSYS, EOPNOTSUPP


def sync_file_system(fd: int) -> None:
    """Make everything durable that was written to the file system of a descriptor."""
    if hasattr(_libc, "syncfs") and _libc.syncfs(fd) == 0:
        return
    os.sync()
