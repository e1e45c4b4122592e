"""Files of lines that are only ever added to: whole lines, on the disk, by one writer at a time."""

import fcntl
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from perdure.store.shared.lines import foreign_in

logger = logging.getLogger("perdure")

_BLOCK: Final = 64 * 1024


class Span(NamedTuple):
    """Where a line stands in its file, without its end."""

    offset: int
    length: int


def append(path: Path, lines: Iterable[bytes], *, sync: bool) -> list[Span]:
    """Add lines to a file, which is made if need be; several processes get in nobody's way.

    What a process that died left half written is cut off first.
    """
    is_new = not path.exists()
    if is_new:
        path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path) as fd:
        offset = _mended(fd, path)
        spans, whole = _laid_out(lines, offset)
        try:
            _write(fd, whole)
        except OSError:
            with suppress(OSError):
                os.ftruncate(fd, offset)  # all of it or nothing
            raise
        if sync:
            os.fsync(fd)
    if sync and is_new:
        sync_folder(path.parent)
        sync_folder(path.parent.parent)
    return spans


def lines_in(path: Path) -> Iterator[tuple[Span, bytes]]:
    """Every line of a file, also a last one without its end; none if there is no file."""
    try:
        whole = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return
    start = 0
    while start < len(whole):
        end = whole.find(b"\n", start)
        end = len(whole) if end < 0 else end
        if end > start:
            yield Span(start, end - start), whole[start:end]
        start = end + 1


def read_spans(path: Path, spans: Sequence[Span]) -> list[bytes]:
    """These lines, which follow each other. Raises OSError."""
    if not spans:
        return []
    first, last = spans[0].offset, spans[-1].offset + spans[-1].length
    with path.open("rb") as file:
        file.seek(first)
        whole = file.read(last - first)
    return [whole[at - first : at - first + length] for at, length in spans]


def replace(path: Path, content: bytes) -> None:
    """Give a file this content, at once and on the disk: readers see the old one or the new."""
    part = path.with_name(f".{path.name}.tmp")
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        _write(fd, content)
        os.fsync(fd)
    finally:
        os.close(fd)
    part.rename(path)


def sync_file(path: Path) -> None:
    """Let everything that a file or folder holds reach the disk; one that is gone need not."""
    with suppress(FileNotFoundError, NotADirectoryError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def sync_folder(path: Path) -> None:
    """Let the names in a folder reach the disk, where the file system can do that."""
    with suppress(OSError):
        sync_file(path)


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def _laid_out(lines: Iterable[bytes], offset: int) -> tuple[list[Span], bytes]:
    spans = []
    parts: list[bytes] = []
    for line in lines:
        spans.append(Span(offset, len(line)))
        parts += (line, b"\n")
        offset += len(line) + 1
    return spans, b"".join(parts)


def _write(fd: int, whole: bytes) -> None:
    left = memoryview(whole)
    while left:
        left = left[os.write(fd, left) :]


def _mended(fd: int, path: Path) -> int:
    """Where the next line begins, once the last one has an end."""
    size = os.fstat(fd).st_size
    if size == 0 or os.pread(fd, 1, size - 1) == b"\n":
        return size
    start = _last_line(fd, size)
    if foreign_in(os.pread(fd, size - start, start)) is not None:  # whole, only its end is not
        _write(fd, b"\n")
        return size + 1
    logger.warning("%s: %d bytes of a line that was never finished are cut", path, size - start)
    os.ftruncate(fd, start)
    return start


def _last_line(fd: int, size: int) -> int:
    at = size
    while at > 0:
        begin = max(0, at - _BLOCK)
        found = os.pread(fd, at - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        at = begin
    return 0
