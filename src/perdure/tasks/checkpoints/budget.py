"""Limits of one checkpoint, and what a tree that is walked or built takes of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perdure.errors import Refused
from perdure.tasks.files.place import free_bytes
from perdure.tasks.model.manifest import MAX_DEPTH

MAX_FILES: Final = 200_000
MAX_BYTES: Final = 10 * 2**30
_BLOCK: Final = 4096  # bytes that a file or folder takes on most file systems, at least
_LOOK: Final = 64 * 2**20  # bytes that are written between two looks at the free space


@dataclass(frozen=True, slots=True)
class CheckpointLimits:
    """Limits of one checkpoint: a workspace may be hostile, or simply large."""

    files: int = MAX_FILES
    size: int = MAX_BYTES
    depth: int = MAX_DEPTH
    disk: int | None = None  # space of the workspace, as for commands


class TreeBudget:
    """Counter of one tree against the limits.

    Hard links and sparse files count with all of their bytes: a restore writes them.
    """

    def __init__(self, subject: str, limits: CheckpointLimits) -> None:
        self._subject = subject
        self._limits = limits
        self.files_left = limits.files
        self.bytes_left = limits.size
        self._space_left = limits.disk

    @property
    def file_left(self) -> int:
        """Bytes that one more file may have."""
        return (
            self.bytes_left if self._space_left is None else min(self.bytes_left, self._space_left)
        )

    def add(self, size: int) -> None:
        """Count one more file, folder or link. Raises Refused CHECKPOINT_TOO_LARGE."""
        self.files_left -= 1
        self.bytes_left -= size
        if self.files_left < 0:
            raise self.too_many()
        if self.bytes_left < 0:
            raise self._too_large(f"{self._limits.size:,} bytes, the limit of a checkpoint")
        if self._space_left is not None:
            self._space_left -= _space(size)
            if self._space_left < 0:
                limit = f"{self._limits.disk:,} bytes of disk space, which tasks.limits.disk allows"
                raise self._too_large(limit)

    def check(self, size: int) -> None:
        """Check one more file before it is read, or while it is. Raises Refused."""
        if size > self.file_left:
            self.add(size)

    def too_many(self) -> Refused:
        """Return the error for too many files."""
        return self._too_large(f"{self._limits.files:,} files")

    def _too_large(self, limit: str) -> Refused:
        return Refused(
            f"{self._subject} has more than {limit}",
            code="CHECKPOINT_TOO_LARGE",
            hint="remove large files, or many small ones, and take another checkpoint",
        )


class FreeSpace:
    """Free space of a disk, of which a tree leaves a tenth to the store and to others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        free = free_bytes(folder)
        self.usable = free * 9 // 10
        self._reserve = free - self.usable
        self._unseen = 0

    def check_all(self, sizes: Iterable[int]) -> None:
        """Check files, folders and links before they are written. Raises Refused."""
        if sum(map(_space, sizes)) > self.usable:
            raise _disk_full()

    def spend(self, size: int) -> None:
        """Count bytes that are written, beside others who write. Raises Refused."""
        self._unseen += size
        if self._unseen >= _LOOK:
            self._unseen = 0
            if free_bytes(self._folder) < self._reserve:
                raise _disk_full()


def _space(size: int) -> int:
    return max(_BLOCK, -(-size // _BLOCK) * _BLOCK)


def _disk_full() -> Refused:
    return Refused(
        "the checkpoint takes more space than the disk of the task has left",
        code="CHECKPOINT_TOO_LARGE",
        hint="free some space on the disk of tasks.root",
    )
