"""Lock of a task's folder: processes of one machine write its files one at a time."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from perdure.errors import StoreError

WAIT_S: Final = 30.0  # for another process; one that was stopped holds the lock until it continues
_POLL_S: Final = 0.005


class FolderLocked(StoreError):
    """Another process writes the files of the task."""

    code = "FOLDER_LOCKED"


@contextmanager
def folder_lock(folder: Path, wait_s: float = WAIT_S) -> Iterator[int]:
    """Hold the flock of a folder, and yield a descriptor of it. Raises StoreError, OSError.

    Blocks the calling thread. The kernel frees the lock when the process ends.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise FolderLocked(
                        f"another process has locked {folder} for {wait_s:g} s",
                        hint="look for a stopped perdure process on this machine",
                    ) from None
                time.sleep(_POLL_S)
        yield fd
    finally:
        os.close(fd)
