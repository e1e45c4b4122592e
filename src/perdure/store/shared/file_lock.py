"""The lock that says whose turn it is to write: an flock on a file beside the data."""

import contextlib
import fcntl
import os
import time


class WriteLock:
    """The queue of all processes that write the same data; the kernel serves them in turn.

    SQLite's own waiting is by polling and starves. The file holds the process id of the last
    holder, for those who wait too long.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._signature = b"%-11d\n" % os.getpid()
        self.waiting_since: float | None = None  # monotonic seconds

    def open(self) -> None:
        """Open the file; raises OSError."""
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def close(self) -> None:
        """Let go of the file; it stays, since others may be using it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def acquire(self) -> None:
        """Wait for as long as it takes; meanwhile `waiting_since` says since when."""
        if self.try_acquire():
            return
        self.waiting_since = time.monotonic()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        finally:
            self.waiting_since = None
        self._sign()

    def try_acquire(self) -> bool:
        """Take it if it is free."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._sign()
        return True

    def acquire_within(self, timeout_s: float) -> bool:
        """Take it, if it comes free in time; for opening, where order does not matter."""
        until = time.monotonic() + timeout_s
        while not self.try_acquire():
            if time.monotonic() > until:
                return False
            time.sleep(0.005)
        return True

    def release(self) -> None:
        """Let the next one in."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def holder(self) -> str:
        """The process id of whoever had it last."""
        return os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"

    def _sign(self) -> None:
        # Reading first: a write would make every fsync carry this file's times too.
        with contextlib.suppress(OSError):  # locked it is, also on a full disk
            if os.pread(self._fd, 32, 0) != self._signature:
                os.pwrite(self._fd, self._signature, 0)
