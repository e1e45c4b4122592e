"""Files beside a database: the liveness locks of holders, and the wake-up sockets of processes."""

import contextlib
import fcntl
import hashlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from perdure.store.shared.private_files import FILE, folder_mode, make_folder
from perdure.store.shared.signal import BroadcastCallback

_ADDRESS_LIMIT = 100  # bytes; a unix socket's address has 104 or 108, by system
_LIST_INTERVAL_S = 1.0
_CHECK_INTERVAL_S = 0.1
_LONGEST_LEASE_MS = 3_600_000  # assumed of a holder whose file does not say
_WAKE = b"!"
_BROADCAST = b"~"  # then the topic, a zero byte, and the data
_LARGEST = 64 * 1024  # bytes of one broadcast
_IN_A_ROW = 64  # messages that are received before the watcher continues


class LivenessLock:
    """Detects holders whose process has died, before their leases expire.

    Each holder keeps an flock on a file of its own, which the kernel frees when the process ends,
    however it ends. A frozen process keeps it. Where the file cannot be created, or was removed,
    the lease alone decides. The file contains the length of the lease, in ms.
    """

    def __init__(self, folder: Path, mode: int = FILE) -> None:
        self._folder = folder
        self._mode = mode
        self._own: dict[str, int] = {}
        self._checked_at = 0.0

    def acquire(self, holder: str, lease_ms: int) -> None:
        """Take the lock of a new holder, before other processes can see its row."""
        if holder in self._own:  # its transaction is retried
            return
        with contextlib.suppress(OSError):
            make_folder(self._folder, folder_mode(self._mode))
            fd = os.open(self._path(holder), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self._mode)
            self._own[holder] = fd
            os.pwrite(fd, b"%d" % lease_ms, 0)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def lengthen(self, holder: str, lease_ms: int) -> None:
        """Record that a holder has a longer lease than before."""
        if lease_ms > self.lease_ms(holder):
            with contextlib.suppress(OSError), self._path(holder).open("r+b") as file:
                file.write(b"%d" % lease_ms)

    def lease_ms(self, holder: str) -> int:
        """Return the length of a holder's lease, or the longest one if its file does not say."""
        try:
            return int(self._path(holder).read_bytes())
        except (OSError, ValueError):  # an earlier version left the file empty
            return _LONGEST_LEASE_MS

    def release(self, holder: str) -> None:
        """Release the lock of a holder that was removed."""
        fd = self._own.pop(holder, None)
        if fd is not None:
            self._remove(holder)
            os.close(fd)

    def close(self) -> None:
        """Release all locks, and remove the directory if it is empty."""
        for holder in list(self._own):
            self.release(holder)
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def is_check_due(self) -> bool:
        """Return whether the last check is long enough ago, and start a new interval."""
        now = time.monotonic()
        if now - self._checked_at < _CHECK_INTERVAL_S:
            return False
        self._checked_at = now
        return True

    def dead_holders(self, holders: Iterable[str]) -> list[str]:
        """Return the holders whose process has certainly ended."""
        return [holder for holder in holders if self._is_dead(holder)]

    def _is_dead(self, holder: str) -> bool:
        if holder in self._own:
            return False
        try:
            fd = os.open(self._path(holder), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            self._remove(holder)
            return True
        finally:
            os.close(fd)

    def _path(self, holder: str) -> Path:
        return self._folder / hashlib.sha256(holder.encode()).hexdigest()[:32]

    def _remove(self, holder: str) -> None:
        with contextlib.suppress(OSError):
            self._path(holder).unlink()


class WakeSocket:
    """Wakes the other processes on one database after a commit, and sends them broadcasts.

    Each process has a datagram socket in a directory beside the database. A wake-up may get lost,
    so every process also polls; where sockets are impossible, it only polls. The thread that waits
    calls `on_broadcast`.
    """

    def __init__(
        self, folder: Path, on_broadcast: BroadcastCallback | None = None, mode: int = FILE
    ) -> None:
        self._mode = mode
        self._on_broadcast = on_broadcast
        self._buffer = bytearray(_LARGEST)
        self._folder = folder
        self._folder_name = str(folder)
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._folder_fd: int | None = None
        self._receiver: socket.socket | None = None
        self._sender: socket.socket | None = None
        self._closing = threading.Event()
        self._peer_names: list[str] = []
        self._listed_at = (0, 0.0)  # the directory's change time, and our clock then

    def open(self) -> None:
        """Create the socket, if that is possible here."""
        try:
            make_folder(self._folder, folder_mode(self._mode))
            self._folder_fd = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
            receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._receiver = receiver
            receiver.bind(self._address(self._name))
            self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sender.setblocking(False)
        except OSError:
            self._remove_socket()

    def wake(self) -> None:
        """Wake the other processes; never waits, never fails."""
        self._send(_WAKE)

    def broadcast(self, topic: str, data: bytes) -> None:
        """Send a message that may get lost to the other processes; never waits, never fails."""
        message = _BROADCAST + topic.encode() + b"\0" + data
        if len(message) <= _LARGEST:
            self._send(message)

    def _send(self, message: bytes) -> None:
        sender = self._sender
        if sender is None:
            return
        try:
            names = self._peers()
        except OSError:  # the directory was removed: then processes only poll
            return
        for name in names:
            try:
                sender.sendto(message, self._address(name))
            except (ConnectionRefusedError, FileNotFoundError):  # its process is dead
                self._remove(name)
            except OSError:  # its queue is full, so it is awake; or we may not write to it
                continue

    def wait(self, timeout_s: float) -> bool:
        """Wait for a wake-up; False after the timeout, or if only broadcasts came."""
        if self._receiver is None:
            self._closing.wait(timeout_s)
            return False
        was_woken = False
        with contextlib.suppress(OSError):  # timed out, or all messages were received
            self._receiver.settimeout(timeout_s)
            was_woken = self._receive(self._receiver)
            self._receiver.setblocking(False)
            for _ in range(_IN_A_ROW):
                was_woken = self._receive(self._receiver) or was_woken
        return was_woken

    def _receive(self, receiver: socket.socket) -> bool:
        """Receive one message; False if it was a broadcast, which the callback gets."""
        size = receiver.recv_into(self._buffer)
        if not self._buffer.startswith(_BROADCAST, 0, size):
            return True
        topic, _, data = bytes(memoryview(self._buffer)[1:size]).partition(b"\0")
        if self._on_broadcast is not None:
            self._on_broadcast(topic.decode(errors="replace"), data)
        return False

    def stop(self) -> None:
        """End the wait of another thread."""
        self._closing.set()
        if self._sender is not None:
            with contextlib.suppress(OSError):
                self._sender.sendto(_WAKE, self._address(self._name))

    def close(self) -> None:
        """Remove the socket, and the directory if it is empty."""
        self._remove_socket()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _remove_socket(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
            self._remove(self._name)
        if self._sender is not None:
            self._sender.close()
        if self._folder_fd is not None:
            os.close(self._folder_fd)
        self._receiver = self._sender = self._folder_fd = None

    def _address(self, name: str) -> str:
        address = f"{self._folder}/{name}"
        if len(os.fsencode(address)) <= _ADDRESS_LIMIT:
            return address
        # A deep directory does not fit into a socket's address; through a descriptor it does.
        return f"/proc/self/fd/{self._folder_fd}/{name}"

    def _peers(self) -> list[str]:
        changed_at, now = os.stat(self._folder_name).st_mtime_ns, time.monotonic()  # noqa: PTH116 - hot
        # The change time is coarse and may hide a new process, so list again at intervals.
        if changed_at != self._listed_at[0] or now - self._listed_at[1] > _LIST_INTERVAL_S:
            self._peer_names = [f.name for f in self._folder.iterdir() if f.name != self._name]
            self._listed_at = (changed_at, now)
        return self._peer_names

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self._folder / name).unlink()
