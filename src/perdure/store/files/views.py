"""Views: JSON files of entries for people and other programs, written from the store's state."""

import logging
from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from typing import Final

from perdure.store.base import Entry
from perdure.store.files.layout import INDEX, Layout
from perdure.store.shared.line_files import replace_file
from perdure.store.shared.tables import Tables

logger = logging.getLogger("perdure")

_SHARE: Final = 20  # the index takes at most 1/20 of the time


class Views:
    """One JSON file per entry that has a file in the layout, and an index of them."""

    def __init__(self, base: Path, layout: Layout) -> None:
        self._base = base
        self._layout = layout
        self._is_behind = False
        self._next_index = 0.0

    def restore(self, tables: Tables) -> None:
        """Write the files that are missing or out of date."""
        for entry in self._entries_with_file(tables):
            path = self._path(entry)
            content = self._layout.content(entry)
            if path is not None and _content(path) != content:
                replace_file(path, content)
        self._is_behind = _content(self._base / INDEX) != self._index(tables)
        self.write_index(tables)

    def update(self, old: Iterable[Entry], new: Iterable[Entry]) -> None:
        """Update the files of changed entries, given their old and new versions."""
        written = set()
        for entry in new:
            path = self._path(entry)
            if path is not None:
                replace_file(path, self._layout.content(entry))
                written.add(path)
                self._is_behind = True
        for entry in old:
            path = self._path(entry)
            if path is not None and path not in written:
                path.unlink(missing_ok=True)
                self._is_behind = True

    def write_index(self, tables: Tables, *, now: bool = True) -> None:
        """Update the index; without `now` at intervals, since it lists all entries."""
        started_at = monotonic()
        if not self._is_behind or (started_at < self._next_index and not now):
            return
        replace_file(self._base / INDEX, self._index(tables))
        self._is_behind = False
        self._next_index = monotonic() + _SHARE * (monotonic() - started_at)

    def _index(self, tables: Tables) -> bytes:
        return self._layout.index(self._entries_with_file(tables))

    def _entries_with_file(self, tables: Tables) -> list[Entry]:
        kinds = list(tables.entries.values())
        return [
            entry
            for entries in kinds
            for entry in list(entries.values())
            if self._layout.file_path(entry) is not None
        ]

    def _path(self, entry: Entry) -> Path | None:
        path = self._layout.file_path(entry)
        return None if path is None else self._base / path


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
