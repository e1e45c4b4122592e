"""What stands beside a database file: the lock of writers, signs of life, and the doorbell."""

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

from perdure.store.shared.signal import Overheard

_ADDRESS_LIMIT = 100  # bytes; a unix socket's address has 104 or 108, by system
_LIST_AGAIN_S = 1.0
_LOOK_AGAIN_S = 0.1
_RING = b"!"
_WHISPER = b"~"  # then the topic, a zero byte, and the data
_LARGEST = 64 * 1024  # bytes of one whisper
_IN_A_ROW = 64  # whispers that are taken before the watch looks around again


class LivenessLock:
    """Tells which holders' processes have died, sooner than their lease can run out.

    Each holder keeps an flock on a file of its own, which the kernel frees when its process ends,
    however it ends. A frozen process keeps it. Where there can be no such file, or somebody
    removed it, the lease alone decides.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ours: dict[str, int] = {}
        self._looked_at = 0.0

    def begin(self, holder: str) -> None:
        """From now on this holder is seen to be alive; before others can know of it."""
        if holder in self._ours:  # its transaction is done again
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            fd = os.open(self._path(holder), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._ours[holder] = fd
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def end(self, holder: str) -> None:
        """The holder has left."""
        fd = self._ours.pop(holder, None)
        if fd is not None:
            self._remove(holder)
            os.close(fd)

    def close(self) -> None:
        """Let go of everything, and of the directory if nobody else is in it."""
        for holder in list(self._ours):
            self.end(holder)
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def is_time_to_look(self) -> bool:
        """Whether the last look is long enough ago."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_AGAIN_S:
            return False
        self._looked_at = now
        return True

    def dead(self, holders: Iterable[str]) -> list[str]:
        """Those whose process has certainly ended."""
        return [holder for holder in holders if self._is_dead(holder)]

    def _is_dead(self, holder: str) -> bool:
        if holder in self._ours:
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
    """Tells the other processes on one database that something was committed, and whispers.

    Each listener has a datagram socket in a directory beside the database. A ring may get lost:
    whoever listens also polls. Where there can be no socket, there is only the polling. `overheard`
    is called by the thread that waits.
    """

    def __init__(self, folder: Path, overheard: Overheard | None = None) -> None:
        self._overheard = overheard
        self._came = bytearray(_LARGEST)
        self._folder = folder
        self._where = str(folder)
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._folder_fd: int | None = None
        self._ears: socket.socket | None = None
        self._mouth: socket.socket | None = None
        self._closing = threading.Event()
        self._others: list[str] = []
        self._listed_at = (0, 0.0)  # the directory's change time, and our clock then

    def open(self) -> None:
        """Hang the bell, if that is possible here."""
        try:
            self._folder.mkdir(exist_ok=True)
            self._folder_fd = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
            ears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._ears = ears
            ears.bind(self._address(self._name))
            self._mouth = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._mouth.setblocking(False)
        except OSError:
            self._take_down()

    def ring(self) -> None:
        """Tell the others; never waits, never fails."""
        self._send(_RING)

    def broadcast(self, topic: str, data: bytes) -> None:
        """Tell the others something that may get lost; never waits, never fails."""
        said = _WHISPER + topic.encode() + b"\0" + data
        if len(said) <= _LARGEST:
            self._send(said)

    def _send(self, said: bytes) -> None:
        mouth = self._mouth
        if mouth is None:
            return
        try:
            names = self._listeners()
        except OSError:  # somebody removed the directory: then there is only the polling
            return
        for name in names:
            try:
                mouth.sendto(said, self._address(name))
            except (ConnectionRefusedError, FileNotFoundError):  # its process is dead
                self._remove(name)
            except OSError:  # its queue is full (then it is awake), or it is not ours to ring
                continue

    def wait(self, timeout_s: float) -> bool:
        """Whether it rang within this time; at the latest it ends when something was whispered."""
        if self._ears is None:
            self._closing.wait(timeout_s)
            return False
        rang = False
        with contextlib.suppress(OSError):  # timed out, or all was heard
            self._ears.settimeout(timeout_s)
            rang = self._took_ring(self._ears)
            self._ears.setblocking(False)
            for _ in range(_IN_A_ROW):
                rang = self._took_ring(self._ears) or rang
        return rang

    def _took_ring(self, ears: socket.socket) -> bool:
        """Take what came; False if it was a whisper, which is handed on."""
        size = ears.recv_into(self._came)
        if not self._came.startswith(_WHISPER, 0, size):
            return True
        topic, _, data = bytes(memoryview(self._came)[1:size]).partition(b"\0")
        if self._overheard is not None:
            self._overheard(topic.decode(errors="replace"), data)
        return False

    def stop(self) -> None:
        """End a wait in another thread."""
        self._closing.set()
        if self._mouth is not None:
            with contextlib.suppress(OSError):
                self._mouth.sendto(_RING, self._address(self._name))

    def close(self) -> None:
        """Take the bell down, and the directory if nobody else has one in it."""
        self._take_down()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _take_down(self) -> None:
        if self._ears is not None:
            self._ears.close()
            self._remove(self._name)
        if self._mouth is not None:
            self._mouth.close()
        if self._folder_fd is not None:
            os.close(self._folder_fd)
        self._ears = self._mouth = self._folder_fd = None

    def _address(self, name: str) -> str:
        address = f"{self._folder}/{name}"
        if len(os.fsencode(address)) <= _ADDRESS_LIMIT:
            return address
        # Deep directories do not fit into a socket's address; by descriptor they do.
        return f"/proc/self/fd/{self._folder_fd}/{name}"

    def _listeners(self) -> list[str]:
        changed_at, now = os.stat(self._where).st_mtime_ns, time.monotonic()  # noqa: PTH116 - often
        # The change time is coarse, so a newcomer can hide behind it: list again now and then.
        if changed_at != self._listed_at[0] or now - self._listed_at[1] > _LIST_AGAIN_S:
            self._others = [f.name for f in self._folder.iterdir() if f.name != self._name]
            self._listed_at = (changed_at, now)
        return self._others

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self._folder / name).unlink()
