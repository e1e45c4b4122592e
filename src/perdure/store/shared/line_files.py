"""Append-only files of lines: complete lines, synced to disk, by one writer at a time."""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Final, NamedTuple

from perdure.store.base import Unavailable
from perdure.store.shared.file_lock import lock_holder, take_within
from perdure.store.shared.lines import decode_foreign
from perdure.store.shared.private_files import FILE, make_folder, replacement_mode

logger = logging.getLogger("perdure")

LOCK_WAIT_S: Final = 30.0  # for another process that appends to the same file
_BLOCK: Final = 64 * 1024
_REPLACE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


class Span(NamedTuple):
    """Position of a line in its file, without its line end."""

    offset: int
    length: int


def append_lines(path: Path, lines: Iterable[bytes], *, sync: bool) -> list[Span]:
    """Append lines to a file, which is created if missing; several processes may do this at once.

    An incomplete line that a dead process left at the end is cut off first.
    """
    is_new = not path.exists()
    if is_new:
        make_folder(path.parent)
    with _lock_file(path) as fd:
        offset = _cut_incomplete_line(fd, path)
        spans, content = _join_lines(lines, offset)
        try:
            _write(fd, content)
        except OSError:
            with suppress(OSError):
                os.ftruncate(fd, offset)  # all lines or none
            raise
        if sync:
            os.fsync(fd)
    if sync and is_new:
        sync_folder(path.parent)
        sync_folder(path.parent.parent)
    return spans


def read_lines(path: Path) -> Iterator[tuple[Span, bytes]]:
    """Yield every line of a file, also an unfinished last one; none if the file is missing."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return
    start = 0
    while start < len(content):
        end = content.find(b"\n", start)
        end = len(content) if end < 0 else end
        if end > start:
            yield Span(start, end - start), content[start:end]
        start = end + 1


def read_spans(path: Path, spans: Sequence[Span]) -> list[bytes]:
    """Return these consecutive lines. Raises OSError."""
    if not spans:
        return []
    first, last = spans[0].offset, spans[-1].offset + spans[-1].length
    with path.open("rb") as file:
        file.seek(first)
        content = file.read(last - first)
    return [content[at - first : at - first + length] for at, length in spans]


def replace_file(path: Path, content: bytes, *, sync: bool = True, is_locked: bool = True) -> None:
    """Replace the content of a file atomically: readers see the old or the new one.

    With `sync`, the same is true after a loss of power. Writers that hold no lock on the file
    (`is_locked`) write to temporary files of their own.
    """
    folder, _, name = str(path).rpartition("/")
    part = f"{folder}/.{name}.{'' if is_locked else token_hex(8)}tmp"
    try:
        fd = os.open(part, _REPLACE, FILE)
    except FileNotFoundError:
        make_folder(path.parent)
        fd = os.open(part, _REPLACE, FILE)
    try:
        os.fchmod(fd, replacement_mode(path))
        _write(fd, content)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(part, path)  # noqa: PTH104 - for each file of a files store; Path takes twice as long


def sync_file(path: Path) -> None:
    """Sync a file or folder to disk; a missing one is ignored."""
    with suppress(FileNotFoundError, NotADirectoryError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def sync_folder(path: Path) -> None:
    """Sync the names in a folder to disk, where the file system supports it."""
    with suppress(OSError):
        sync_file(path)


@contextmanager
def _lock_file(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE)
    try:
        if not take_within(fd, path, LOCK_WAIT_S):
            holder = lock_holder(fd)
            text = f"{holder} has kept {path} locked for {LOCK_WAIT_S:.0f} s"
            raise Unavailable(text, hint=f"it may be stopped or hung: check {holder}")
        yield fd
    finally:
        os.close(fd)


def _join_lines(lines: Iterable[bytes], offset: int) -> tuple[list[Span], bytes]:
    spans = []
    parts: list[bytes] = []
    for line in lines:
        spans.append(Span(offset, len(line)))
        parts += (line, b"\n")
        offset += len(line) + 1
    return spans, b"".join(parts)


def _write(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _cut_incomplete_line(fd: int, path: Path) -> int:
    """Complete or cut off the last line, and return the offset of the next one."""
    size = os.fstat(fd).st_size
    if size == 0 or os.pread(fd, 1, size - 1) == b"\n":
        return size
    start = _last_line(fd, size)
    if (
        decode_foreign(os.pread(fd, size - start, start)) is not None
    ):  # complete but for its line end
        _write(fd, b"\n")
        return size + 1
    logger.warning("%s: cut %d bytes of an incomplete last line", path, size - start)
    os.ftruncate(fd, start)
    return start


def _last_line(fd: int, size: int) -> int:
    at = size
    while at > 0:
        begin = max(0, at - _BLOCK)
        line_end = os.pread(fd, at - begin, begin).rfind(b"\n")
        if line_end >= 0:
            return begin + line_end + 1
        at = begin
    return 0
