"""The files that show entries to people and programs: made from the store's own."""

import logging
from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from typing import Final

from perdure.store.base import Entry
from perdure.store.files.layout import INDEX, Layout
from perdure.store.shared.line_files import replace
from perdure.store.shared.tables import Tables

logger = logging.getLogger("perdure")

_SHARE: Final = 20  # the index takes at most one part in so many of the time


class Views:
    """One JSON file per entry that has one, and an index of them."""

    def __init__(self, base: Path, layout: Layout) -> None:
        self._base = base
        self._layout = layout
        self._is_behind = False
        self._next_index = 0.0

    def restore(self, tables: Tables) -> None:
        """Make what is missing, and make again what says something else."""
        for entry in self._shown(tables):
            path = self._path(entry)
            if path is not None and _content(path) != entry.data:
                replace(path, entry.data)
        self._is_behind = _content(self._base / INDEX) != self._index(tables)
        self.write_index(tables)

    def show(self, old: Iterable[Entry], new: Iterable[Entry]) -> None:
        """Entries that have changed: as they were, and as they are."""
        kept = set()
        for entry in new:
            path = self._path(entry)
            if path is not None:
                replace(path, entry.data)
                kept.add(path)
                self._is_behind = True
        for entry in old:
            path = self._path(entry)
            if path is not None and path not in kept:
                path.unlink(missing_ok=True)
                self._is_behind = True

    def write_index(self, tables: Tables, *, now: bool = True) -> None:
        """Bring the index up to date; soon, if not now: it is as large as all there is."""
        began = monotonic()
        if not self._is_behind or (began < self._next_index and not now):
            return
        replace(self._base / INDEX, self._index(tables))
        self._is_behind = False
        self._next_index = monotonic() + _SHARE * (monotonic() - began)

    def _index(self, tables: Tables) -> bytes:
        return self._layout.index(self._shown(tables))

    def _shown(self, tables: Tables) -> list[Entry]:
        kinds = list(tables.entries.values())
        return [
            entry
            for entries in kinds
            for entry in list(entries.values())
            if self._layout.place(entry) is not None
        ]

    def _path(self, entry: Entry) -> Path | None:
        place = self._layout.place(entry)
        return None if place is None else self._base / place


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
