"""Modes of the files and folders that perdure creates: for its own user only.

Whatever exists keeps its mode: an operator may have opened it to a group. Who may read a file may
also lock it, and so stop the processes that wait for the lock.
"""

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

FILE: Final = 0o600
FOLDER: Final = 0o700


def make_folder(path: Path, mode: int = FOLDER) -> None:
    """Create a folder and the missing ones above it; one that exists is left as it is."""
    try:
        path.mkdir(mode, exist_ok=True)
    except FileNotFoundError:
        make_folder(path.parent, mode)
        path.mkdir(mode, exist_ok=True)


def create_file(path: Path) -> None:
    """Create an empty file if there is none.

    A file that exists is not opened: to close it would release the locks that SQLite has taken on
    it for other connections of this process.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE))


def replacement_mode(path: Path) -> int:
    """Return the mode for a file that replaces another: that of the other, if it exists."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return FILE


def mode_beside(path: Path) -> int:
    """Return the mode for files beside another: whoever may use that one needs them too."""
    return replacement_mode(path) & 0o666


def folder_mode(mode: int) -> int:
    """Return the mode of a folder for files of a mode: whoever may read them may enter it."""
    return mode | (mode & 0o444) >> 2
