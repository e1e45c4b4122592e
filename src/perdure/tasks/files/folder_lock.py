"""Lock of a task's folder: processes of one machine write its files one at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from perdure.errors import StoreError
from perdure.store.shared.file_lock import lock_holder, take_within

WAIT_S: Final = 30.0  # for another process; one that was stopped holds the lock until it continues


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
        if not take_within(fd, folder, wait_s):
            holder = lock_holder(fd)
            raise FolderLocked(
                f"{holder} has locked {folder.name!a} in the folder of tasks for {wait_s:g} s",
                hint=f"it may be stopped or hung: check {holder} on this machine",
            )
        yield fd
    finally:
        os.close(fd)
