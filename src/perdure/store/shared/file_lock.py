"""The lock of the process that writes: an flock on a file beside the data."""

import contextlib
import fcntl
import logging
import os
import time
from pathlib import Path
from typing import Final

from perdure.store.shared.private_files import FILE

logger = logging.getLogger("perdure")

REPORT_S: Final = 2.0  # a lock that is waited for longer than this is reported
_POLL_S: Final = 0.005
_LOCKS: Final = Path("/proc/locks")  # the locks of the machine, on Linux
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


def take_within(fd: int, path: str | Path, timeout_s: float) -> bool:
    """Take an flock if it becomes free in time, by polling, which keeps no order.

    Blocks the calling thread. A wait of more than two seconds is logged.
    """
    since = time.monotonic()
    is_reported = False
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        waited_s = time.monotonic() - since
        if waited_s > timeout_s:
            return False
        if waited_s > REPORT_S and not is_reported:
            is_reported = True
            report_wait(fd, path)
        time.sleep(_POLL_S)


def report_wait(fd: int, path: str | Path) -> None:
    """Log which lock is waited for, and who has it."""
    logger.warning("waiting for the lock on %s, which %s holds", path, lock_holder(fd))


def lock_holder(fd: int) -> str:
    """Return "process N", or "another process" if the system does not say which has the flock."""
    status = os.fstat(fd)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with contextlib.suppress(OSError, IndexError):
        for line in _LOCKS.read_text("ascii", "replace").splitlines():
            words = line.split()
            # The number, the kind, ADVISORY, WRITE, the process, the file; "->" marks who waits.
            if words[1] == "FLOCK" and words[5] == device and words[4].isdigit():
                return f"process {words[4]}" if words[4] != "0" else "another process"
    return "another process"


class WriteLock:
    """Lock for which all writing processes queue; the kernel serves them in turn.

    SQLite's own lock waits by polling, which starves some writers. The file holds the process id
    of the last holder, for the error message of a process that waits too long, and a mark once
    there are data beside it.
    """

    def __init__(self, path: str, mode: int = FILE) -> None:
        self.path = path
        self._mode = mode
        self._fd = -1
        self._signature = b"%-11d\n" % os.getpid()
        self.waiting_since: float | None = None  # monotonic seconds
        self.is_held = False

    def open(self) -> None:
        """Open the file. Raises OSError."""
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self._mode)

    def close(self) -> None:
        """Close the file without removing it, since other processes may use it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self.is_held = False

    def acquire(self) -> None:
        """Wait for the lock as long as it takes; meanwhile `waiting_since` is set."""
        if self.try_acquire():
            return
        self.waiting_since = time.monotonic()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        finally:
            self.waiting_since = None
        self._hold()

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._hold()
        return True

    def acquire_within(self, timeout_s: float) -> bool:
        """Take the lock if it becomes free in time, by polling, which keeps no order."""
        if not take_within(self._fd, self.path, timeout_s):
            return False
        self._hold()
        return True

    def release(self) -> None:
        """Release the lock to the next process."""
        self.is_held = False
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def report_wait(self) -> None:
        """Log that the lock is waited for, and who has it."""
        report_wait(self._fd, self.path)

    def holder(self) -> str:
        """Return "process N": the holder as the system knows it, or else the last one that wrote.

        A program that is not perdure's can hold the lock without writing its id.
        """
        holder = lock_holder(self._fd)
        signature = os.pread(self._fd, _SIGNATURE, 0).decode("ascii", "replace").strip()
        if holder != "another process" or not signature.isdigit():
            return holder
        return f"process {signature}"

    def mark(self) -> None:
        """Note durably that there are data beside the file: see `has_mark`."""
        with contextlib.suppress(OSError):
            if os.pread(self._fd, len(_MARK), _SIGNATURE) != _MARK:
                os.pwrite(self._fd, _MARK, _SIGNATURE)
                os.fsync(self._fd)

    def _hold(self) -> None:
        """Note that the lock is held, also in the file."""
        self.is_held = True
        # Reads first: a write would make every fsync also write this file's timestamps.
        with contextlib.suppress(OSError):  # the lock is taken, even if the disk is full
            if os.pread(self._fd, _SIGNATURE, 0) != self._signature:
                os.pwrite(self._fd, self._signature, 0)
