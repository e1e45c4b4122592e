"""Comparison of the readable files of a folder with its database, without changes."""

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from perdure.errors import Corrupt
from perdure.store.files.layout import DATABASE, INDEX, Layout, log_path
from perdure.store.files.mirrored_files import Database, content_of
from perdure.store.files.session_log import is_log_current
from perdure.store.sqlite.open import open_read_only

_BEHIND_S: Final = 1.0  # the files may be behind for as long


def different_files(base: Path, layout: Layout) -> list[str]:
    """Return the files that differ from the database, and not only for a moment. Raises Corrupt."""
    with open_read_only(base / DATABASE) as connection:
        first = set(_different(base, layout, connection))
        if first:
            time.sleep(_BEHIND_S)
            first &= set(_different(base, layout, connection))
    return sorted(first)


def _different(base: Path, layout: Layout, connection: sqlite3.Connection) -> Iterator[str]:
    database = Database(connection)
    for state in database.streams():
        path = log_path(layout, state.stream)
        if (
            path is not None
            and not state.gone
            and not _is_current(base / path, database, state.stream)
        ):
            yield path
    for kind in layout.kinds:
        for entry in database.entries(kind):
            path = layout.file_path(entry)
            if path is not None and content_of(f"{base}/{path}") != layout.content(entry):
                yield path
    if layout.indexed_kind is not None:
        content = layout.index(database.entries(layout.indexed_kind))
        if content_of(f"{base}/{INDEX}") != content:
            yield INDEX


def _is_current(path: Path, database: Database, stream: str) -> bool:
    try:
        return is_log_current(path, database.records(stream))
    except Corrupt:  # the database is damaged, which is another finding
        return True
