"""Backup of a SQLite file that other processes may be using."""

import os
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from perdure.errors import Corrupt, Refused, StoreError
from perdure.store.shared.private_files import create_file
from perdure.store.sqlite.open import UNREADABLE, check_database, open_read_only


def backup(path: Path, target: Path) -> int:
    """Copy the present state of a database that may be in use; returns the size of the copy.

    The copy is checked and synced before it gets its name. Raises Refused if the target exists.
    """
    if target.exists():
        raise Refused(
            f"{target} exists", code="FILE_EXISTS", hint="name a new file: it is never overwritten"
        )
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        create_file(part)  # its error is clearer than SQLite's
        with open_read_only(path) as source, closing(sqlite3.connect(part)) as copy:
            check_database(source, path, new=False)
            source.backup(copy)
        _check_copy(part)
        shutil.copymode(path, part)
        _sync(part)
        part.rename(target)
        _sync(target.parent)
    except OSError as error:
        raise StoreError(
            f"{target} cannot be written: {error.strerror}", hint="name another file"
        ) from error
    finally:
        for leftover in (part, Path(f"{part}-journal")):
            leftover.unlink(missing_ok=True)
    return target.stat().st_size


def _check_copy(part: Path) -> None:
    """Raise Corrupt if the copy is damaged; opened as immutable, so that SQLite creates no log."""
    uri = f"{part.absolute().as_uri()}?immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as copy:
            result = copy.execute("PRAGMA integrity_check").fetchone()[0]
    except UNREADABLE as error:
        result = str(error)
    if result != "ok":
        raise Corrupt(
            f"the copy would be damaged: {result}",
            hint="the database itself may be damaged: run perdure doctor",
        )


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems cannot sync a directory
            os.fsync(fd)
    finally:
        os.close(fd)
