"""The lock of the process that writes: an flock on a file beside the data."""

import contextlib
import fcntl
import os
import time
from pathlib import Path

_SIGNATURE = 12  # bytes of a process id
_MARK = b"data\n"


def has_mark(path: Path) -> bool:
    """Return whether there were data beside this lock file."""
    try:
        with path.open("rb") as file:
            file.seek(_SIGNATURE)
            return file.read(len(_MARK)) == _MARK
    except OSError:
        return False


class WriteLock:
    """Lock for which all writing processes queue; the kernel serves them in turn.

    SQLite's own lock waits by polling, which starves some writers. The file holds the process id
    of the last holder, for the error message of a process that waits too long, and a mark once
    there are data beside it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._signature = b"%-11d\n" % os.getpid()
        self.waiting_since: float | None = None  # monotonic seconds

    def open(self) -> None:
        """Open the file. Raises OSError."""
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def close(self) -> None:
        """Close the file without removing it, since other processes may use it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def acquire(self) -> None:
        """Wait for the lock as long as it takes; meanwhile `waiting_since` is set."""
        if self.try_acquire():
            return
        self.waiting_since = time.monotonic()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        finally:
            self.waiting_since = None
        self._sign()

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._sign()
        return True

    def acquire_within(self, timeout_s: float) -> bool:
        """Take the lock if it becomes free in time, by polling, which keeps no order."""
        until = time.monotonic() + timeout_s
        while not self.try_acquire():
            if time.monotonic() > until:
                return False
            time.sleep(0.005)
        return True

    def release(self) -> None:
        """Release the lock to the next process."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def holder(self) -> str:
        """Return the process id of the last holder."""
        return os.pread(self._fd, _SIGNATURE, 0).decode("ascii", "replace").strip() or "unknown"

    def mark(self) -> None:
        """Note durably that there are data beside the file: see `has_mark`."""
        with contextlib.suppress(OSError):
            if os.pread(self._fd, len(_MARK), _SIGNATURE) != _MARK:
                os.pwrite(self._fd, _MARK, _SIGNATURE)
                os.fsync(self._fd)

    def _sign(self) -> None:
        # Reads first: a write would make every fsync also write this file's timestamps.
        with contextlib.suppress(OSError):  # the lock is taken, even if the disk is full
            if os.pread(self._fd, _SIGNATURE, 0) != self._signature:
                os.pwrite(self._fd, self._signature, 0)
