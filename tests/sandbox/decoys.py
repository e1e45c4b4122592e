"""Decoys outside a sandbox: files, a process, sockets and shared memory for attacks to reach."""

import ctypes
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.sandboxes import PYTHON, RUN_AS

PROGRAM: Final = Path(__file__).with_name("attack_program.py")
OTHER_PROCESS: Final = """
import ctypes, signal, sys
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(2**64 - 1), 0, 0, 0)  # may be traced by anybody
secret = ctypes.create_string_buffer(b"decoy memory")
print(ctypes.addressof(secret), flush=True)
sys.stdin.read()
"""


@dataclass
class Decoys:
    """The folder of the decoys, and what attacks are told about them."""

    folder: Path
    targets: dict[str, Any] = field(default_factory=dict)

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    def arm(self, attacks: list[str] | None = None) -> None:
        """Put the program and its targets into the workspace."""
        shutil.copy(PROGRAM, self.workspace)
        targets = self.workspace / "targets.json"
        targets.write_text(json.dumps({**self.targets, "only": attacks}))
        victim = self.folder / "sibling" / "victim"
        victim.write_text("decoy victim")
        own(victim)


def own(path: Path) -> None:
    """Give a path to the user that commands run as."""
    if RUN_AS is not None:
        os.chown(path, RUN_AS.uid, RUN_AS.gid)


@contextmanager
def decoys() -> Iterator[Decoys]:
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="perdure-attacks-"))
        stack.callback(subprocess.run, ["rm", "-rf", str(folder)], check=True)
        folder.chmod(0o755)
        planted = Decoys(folder)
        _plant_files(planted)
        _plant_process(planted, stack)
        _plant_sockets(planted, stack)
        _plant_memory(planted, stack)
        yield planted


def _plant_files(planted: Decoys) -> None:
    for name in ("workspace", "sibling", "outside", "programs"):
        (planted.folder / name).mkdir()
        own(planted.folder / name)
    for name in ("sibling/file", "outside/file"):
        (planted.folder / name).write_text("decoy content")
        own(planted.folder / name)
    planted.targets |= {
        "file": str(planted.folder / "outside" / "file"),
        "folder": str(planted.folder / "outside"),
        "sibling": str(planted.folder / "sibling"),
        "setuid": _plant_setuid(planted.folder / "programs" / "id"),
    }


def _plant_setuid(program: Path) -> str:
    """Plant a program that can only say who it runs as."""
    shutil.copy("/usr/bin/id", program)
    if os.geteuid() == 0:
        os.chown(program, 0, 0)
    program.chmod(0o4755 if os.geteuid() == 0 else 0o755)
    return str(program)


def _plant_process(planted: Decoys, stack: ExitStack) -> None:
    process = subprocess.Popen(
        [PYTHON, "-I", "-c", OTHER_PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"SECRET": "decoy-secret"},
        user=None if RUN_AS is None else RUN_AS.uid,
        group=None if RUN_AS is None else RUN_AS.gid,
        extra_groups=None if RUN_AS is None else [],
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    assert process.stdout is not None
    planted.targets |= {"pid": process.pid, "address": int(process.stdout.readline())}


def _plant_sockets(planted: Decoys, stack: ExitStack) -> None:
    tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    abstract, path = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    name, place = f"perdure-{os.getpid()}", planted.folder / "outside" / "socket"
    abstract.bind(f"\0{name}")
    path.bind(str(place))
    place.chmod(0o777)
    for server in (abstract, path):
        stack.enter_context(server).listen()
    udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    udp.bind(("127.0.0.1", 0))
    for server in (tcp, udp):
        threading.Thread(target=_answer, args=(server,), daemon=True).start()
        stack.callback(server.shutdown, socket.SHUT_RDWR) if server is tcp else None
    planted.targets |= {
        "tcp": tcp.getsockname()[1],
        "udp": udp.getsockname()[1],
        "abstract": name,
        "socket": str(place),
        "addresses": ["::1", "169.254.169.254", "10.0.2.2", "192.0.2.1"],
    }


def _answer(server: socket.socket) -> None:
    """Answer with a word, until the socket is closed."""
    while True:
        try:
            if server.type == socket.SOCK_DGRAM:
                _, sender = server.recvfrom(64)
                server.sendto(b"decoy", sender)
            else:
                connection, _ = server.accept()
                connection.sendall(b"decoy")
                connection.close()
        except OSError:
            return


def _plant_memory(planted: Decoys, stack: ExitStack) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x70657200 | (os.getpid() & 0xFF)
    segment = libc.shmget(key, ctypes.c_size_t(4096), 0o1000 | 0o666)
    stack.callback(libc.shmctl, segment, 0, None)
    planted.targets["shm_key"] = key
