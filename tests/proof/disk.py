"""Disk that can lose its power: synced data survives, unsynced data at random.

Ordinary files hold what a process sees. The disk also remembers what would exist after a power
loss: the synced bytes, and every write, truncation, creation and deletion since. A survivor is
those bytes plus a random choice of the others, sector by sector.
"""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import apsw

SECTOR = 512

# Files whose directory SQLite promises to sync at the file's first sync.
_JOURNALS = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL


@dataclass(slots=True)
class Cached:
    """Write or truncation without a sync after it; `data` is None for a truncation."""

    offset: int
    data: bytes | None


@dataclass(slots=True)
class OnDisk:
    """File as the disk has it."""

    synced: bytearray = field(default_factory=bytearray)
    cached: list[Cached] = field(default_factory=list)
    syncs_folder: bool = False

    def sync(self) -> None:
        for change in self.cached:
            _apply(self.synced, change.offset, change.data)
        self.cached.clear()

    def survivor(self, luck: random.Random, share: float) -> bytes:
        """Return the content after a power loss, with about this share of the unsynced writes."""
        left = bytearray(self.synced)
        for change in self.cached:
            if change.data is None:
                if luck.random() < share:
                    _apply(left, change.offset, None)
                continue
            start, end = change.offset, change.offset + len(change.data)
            while start < end:
                stop = min(end, (start // SECTOR + 1) * SECTOR)
                if luck.random() < share:
                    _apply(left, start, change.data[start - change.offset : stop - change.offset])
                start = stop
        return bytes(left)


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


Image = dict[str, bytes]  # the files of a directory, by name


class Disk:
    """Disk of one directory. `before` is called before each operation."""

    def __init__(self, files: Image | None = None) -> None:
        self.operations = 0
        self.before: Callable[[str], None] = lambda operation: None
        self._lock = threading.RLock()
        self._seen = {name: OnDisk(bytearray(data)) for name, data in (files or {}).items()}
        self._named = dict(self._seen)  # the directory at its last sync

    def survivor(self, luck: random.Random) -> Image:
        """Return the files after a power loss at this moment."""
        with self._lock:
            share = luck.choice([0.0, 0.1, 0.5, 0.9, 1.0])
            image: Image = {}
            for name in sorted(self._named.keys() | self._seen.keys()):
                # Every unsynced creation or deletion has happened or not, independently.
                folder = self._seen if luck.random() < share else self._named
                if name in folder:
                    image[name] = folder[name].survivor(luck, share)
            return image

    def created(self, name: str, *, journal: bool) -> None:
        with self._lock:
            if name not in self._seen:
                self._operation("create")
                self._seen[name] = OnDisk(syncs_folder=journal)

    def changed(self, name: str, offset: int, data: bytes | None) -> None:
        with self._lock:
            self._operation("write")
            self._seen[name].cached.append(Cached(offset, data))

    def synced(self, name: str) -> None:
        with self._lock:
            self._operation("sync")
            file = self._seen[name]
            file.sync()
            if file.syncs_folder:
                file.syncs_folder = False
                self._named = dict(self._seen)

    def deleted(self, name: str, *, synced: bool) -> None:
        with self._lock:
            self._operation("delete")
            self._seen.pop(name, None)
            if synced:
                self._named = dict(self._seen)

    def _operation(self, name: str) -> None:
        self.operations += 1
        self.before(name)


class DiskVfs(apsw.VFS):
    """VFS of SQLite's own files that reports every operation to a disk. Nothing is fsynced."""

    def __init__(self, name: str, disk: Disk) -> None:
        self._disk = disk
        super().__init__(name, "unix")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        assert path is not None, "a temporary file: not what the store should need"
        self._disk.created(Path(path).name, journal=bool(flags[0] & _JOURNALS))
        return DiskFile(name, flags, Path(path).name, self._disk)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, False)
        self._disk.deleted(Path(filename).name, synced=syncdir)


class DiskFile(apsw.VFSFile):
    """File of such a disk."""

    def __init__(
        self, path: str | apsw.URIFilename | None, flags: list[int], name: str, disk: Disk
    ) -> None:
        self._name = name
        self._disk = disk
        super().__init__("unix", path, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._disk.changed(self._name, offset, bytes(data))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._disk.changed(self._name, newsize, None)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.synced(self._name)
