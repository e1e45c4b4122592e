"""Objects of checkpoints: content by its SHA-256, stored once."""

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

from perdure.errors import Corrupt, Refused
from perdure.ids import secret_id
from perdure.store.shared.private_files import make_folder

_PIECE: Final = 1024 * 1024
_NEW: Final = "new-"  # prefix of files that are not complete
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class ObjectStore:
    """Objects in a folder, each in a file that is named after its content."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._prefix = f"{folder}{os.sep}"
        self._present: set[str] = set()

    def path(self, digest: str) -> Path:
        """Return the file of an object."""
        return self._folder / digest[:2] / digest[2:]

    def has(self, digest: str) -> bool:
        """Return True if the object is there."""
        if digest in self._present:
            return True
        # Once per unchanged file of a workspace: a Path would take longer than the call itself.
        if not os.access(f"{self._prefix}{digest[:2]}/{digest[2:]}", os.R_OK):
            return False
        self._present.add(digest)
        return True

    def put(self, data: bytes) -> str:
        """Store content, unless it is there, and return its digest."""
        digest = hashlib.sha256(data).hexdigest()
        if not self.has(digest):
            temporary, fd = self._create()
            with os.fdopen(fd, "wb") as file:
                file.write(data)
            self._keep(temporary, digest)
        return digest

    def put_file(self, source: int, limit: int) -> tuple[str, int]:
        """Store what can be read from a descriptor; return digest and size. Raises Refused."""
        return self._put_pieces(lambda: os.read(source, _PIECE), limit)

    def put_stream(self, read: Callable[[int], bytes], limit: int) -> str:
        """Store what a function reads, so many bytes at a time; return its digest."""
        return self._put_pieces(lambda: read(_PIECE), limit)[0]

    def _put_pieces(self, read: Callable[[], bytes], limit: int) -> tuple[str, int]:
        first = read()
        second = read() if first else b""
        if not second:  # the content of most files fits into one piece
            check_size(len(first), limit)
            return self.put(first), len(first)
        temporary, fd = self._create()
        try:
            digest, size = _copy(fd, chain((first, second), iter(read, b"")), limit)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        if self.has(digest):
            temporary.unlink()
        else:
            self._keep(temporary, digest)
        return digest, size

    def _create(self) -> tuple[Path, int]:
        temporary = self._folder / f"{_NEW}{secret_id('o')[2:14]}"
        try:
            return temporary, os.open(temporary, _CREATE, 0o400)
        except FileNotFoundError:
            make_folder(self._folder)
            return temporary, os.open(temporary, _CREATE, 0o400)

    def _keep(self, temporary: Path, digest: str) -> None:
        path = self.path(digest)
        try:
            temporary.rename(path)
        except FileNotFoundError:
            make_folder(path.parent)
            temporary.rename(path)
        self._present.add(digest)

    def read(self, digest: str, limit: int) -> bytes:
        """Return a small object. Raises Corrupt if it is missing or damaged, Refused if large."""
        check_size(self.size(digest), limit)
        return b"".join(self.pieces(digest))

    def size(self, digest: str) -> int:
        """Return the bytes of an object. Raises Corrupt if it is missing."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            raise missing_object(digest) from None

    def pieces(self, digest: str) -> Iterator[bytes]:
        """Yield an object, and raise Corrupt at its end if it is damaged.

        An object that grows meanwhile is damaged: no more is read than it had at the beginning.
        """
        try:
            file: BinaryIO = self.path(digest).open("rb")
        except FileNotFoundError:
            raise missing_object(digest) from None
        content = hashlib.sha256()
        with file:
            left = os.fstat(file.fileno()).st_size
            while left > 0 and (piece := file.read(min(_PIECE, left))):
                left -= len(piece)
                content.update(piece)
                yield piece
        if content.hexdigest() != digest:
            raise damaged_object(digest)

    def problem(self, digest: str) -> str | None:
        """Return why an object cannot be used, or None."""
        try:
            for _ in self.pieces(digest):
                pass
        except Corrupt as error:
            return error.message
        return None

    def has_left_files(self) -> bool:
        """Return True if a process died while it wrote an object."""
        return any(self._folder.glob(f"{_NEW}*"))

    def collect(self, kept: Collection[str]) -> int:
        """Remove the objects that no checkpoint refers to, and return their number."""
        removed = 0
        self._present.clear()
        for path in list(self._folder.glob("*/*")):
            if path.parent.name + path.name not in kept:
                path.unlink(missing_ok=True)
                removed += 1
        for path in self._folder.glob(f"{_NEW}*"):
            with suppress(OSError):
                path.unlink()
        return removed


def _copy(target: int, pieces: Iterable[bytes], limit: int) -> tuple[str, int]:
    content, size = hashlib.sha256(), 0
    for piece in pieces:
        size += len(piece)
        check_size(size, limit)
        content.update(piece)
        view = memoryview(piece)
        while view:
            view = view[os.write(target, view) :]
    return content.hexdigest(), size


def check_size(size: int, limit: int) -> None:
    """Check the bytes of a checkpoint. Raises Refused CHECKPOINT_TOO_LARGE."""
    if size > limit:
        raise Refused(
            f"a file has more than the {limit:,} bytes that the checkpoint may still have",
            code="CHECKPOINT_TOO_LARGE",
            hint="remove large files from the workspace",
        )


def missing_object(digest: str) -> Corrupt:
    """Return the error for an object that is not there."""
    return Corrupt(
        f"object {digest[:12]} is missing",
        code="CHECKPOINT_DAMAGED",
        hint="restore another checkpoint: perdure tasks checkpoints TASK",
    )


def damaged_object(digest: str) -> Corrupt:
    """Return the error for an object whose content was changed."""
    return Corrupt(
        f"object {digest[:12]} was changed",
        code="CHECKPOINT_DAMAGED",
        hint="restore another checkpoint: perdure tasks checkpoints TASK",
    )
