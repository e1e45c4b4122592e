"""Checksum over the lines of an exported session, in its end line.

It detects values that a person or a disk has changed; it does not prove who wrote the file. The
end line of an export by an older perdure has none, and its lines are accepted as they are.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

_BOM: Final = b"\xef\xbb\xbf"
_FIRST: Final = b'{"perdure":'
_END: Final = b'{"end":'
_KEY: Final = b',"checksum":"'


class SessionChecksum:
    """Checksum of the lines of one session, in their order."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, line: bytes) -> bytes:
        """Return the next line as it is written: the end line with the checksum of all lines."""
        self._digest.update(plain_line(line) + b"\n")
        if not line.startswith(_END):
            return line
        return b'%s%s%s"}\n' % (line.rstrip()[:-1], _KEY, self._digest.hexdigest().encode())


def changed_sessions(lines: Iterable[bytes]) -> Iterator[int]:
    """Yield the number of each end line whose checksum is not that of its session's lines."""
    checksum = SessionChecksum()
    for number, line in enumerate(lines, 1):
        if line.startswith(_FIRST):
            checksum = SessionChecksum()
        body, has_checksum, _ = line.partition(_KEY) if line.startswith(_END) else (line, b"", b"")
        expected = checksum.add(body + b"}" if has_checksum else line)
        if has_checksum and expected.rstrip() != line:
            yield number


def plain_line(line: bytes) -> bytes:
    """Return a line without what editors and other systems add around it."""
    return line.strip().removeprefix(_BOM)
