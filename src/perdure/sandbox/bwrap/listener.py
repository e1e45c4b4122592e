"""Listening sockets inside the empty networks of sandboxes, served by the runtime outside.

While bwrap waits, a process of the same user enters the sandbox's user and network namespaces,
listens on the loopback address, and passes the socket out. Nothing of ours runs inside. A process
cannot leave such a namespace again, and starting Python takes longer than the rest of a command:
each sandbox therefore gets a fork of one small process, which is kept for the next commands.
"""

import asyncio
import os
import socket
import subprocess
import sys
import weakref
from typing import Final

from perdure.errors import SandboxUnavailable
from perdure.sandbox.base import RunAs

PORT: Final = 3128
PROXY_URL: Final = f"http://127.0.0.1:{PORT}"
DEADLINE_S: Final = 20.0
END_S: Final = 5.0

# Runs without perdure, site-packages and the environment. It drops root after its imports, because
# the user may be unable to enter the folder of the interpreter. It ends with the thread that
# started it, or when its channel is closed; a fork ends after its reply.
PROGRAM: Final = """
import _signal, _socket, array, ctypes, fcntl, os, sys
descriptor, port, uid, gid, parent = map(int, sys.argv[1:])
channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, descriptor)
libc = ctypes.CDLL(None, use_errno=True)

def check(result, name):
    if result:
        raise OSError(ctypes.get_errno(), name + ": " + os.strerror(ctypes.get_errno()))

def listen(pid, namespace):
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if os.fstat(network).st_ino != namespace:
        raise OSError("the sandbox has ended")
    owner = fcntl.ioctl(network, 0xB701)  # NS_GET_USERNS: bwrap's second one does not own it
    check(libc.setns(owner, 0x10000000), "user namespace")
    check(libc.setns(network, 0x40000000), "network namespace")
    listener = _socket.socket()
    listener.setsockopt(_socket.IPPROTO_IP, 15, 1)  # IP_FREEBIND: lo may not be set up yet
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener

def answer(request, reply):
    if pid := os.fork():
        os.waitpid(pid, 0)
        return
    try:
        listener = listen(*map(int, request.split()))
        rights = array.array("i", [listener.fileno()])
        reply.sendmsg([b" "], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    except BaseException as error:
        reply.send(str(error).encode())
    os._exit(0)

if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
check(libc.prctl(1, 9, 0, 0, 0), "prctl")  # PR_SET_PDEATHSIG, SIGKILL
_signal.signal(_signal.SIGINT, _signal.SIG_IGN)
while os.getppid() == parent:
    request, ancillary, _, _ = channel.recvmsg(64, _socket.CMSG_SPACE(4))
    if not ancillary:
        break
    reply = _socket.socket(fileno=array.array("i", ancillary[0][2])[0])
    try:
        answer(request, reply)
    except OSError as error:  # no more processes
        reply.send(str(error).encode())
    reply.close()
"""

PROXY_ENVIRONMENT: Final = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), PROXY_URL),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1"),
    "NODE_USE_ENV_PROXY": "1",  # Node.js 24 and newer
}


class NetworkListeners:
    """Opens sockets in the networks of sandboxes. Its process starts with the first of them."""

    def __init__(self, run_as: RunAs | None) -> None:
        self._user = run_as or RunAs(os.geteuid(), os.getegid())
        self._process: _ListenerProcess | None = None

    async def open(self, pid: int, namespace: int) -> socket.socket:
        """Return a socket that listens in the network of a process.

        `namespace` is the number of that network: a process id can be used again. Raises
        SandboxUnavailable.
        """
        failure = ""
        for _ in range(2):  # the process that was kept may have ended meanwhile
            process = self._process
            try:
                process = self._process = process or _ListenerProcess(self._user)
                async with asyncio.timeout(DEADLINE_S):
                    failure, descriptors = await process.request(f"{pid} {namespace}")
            except (OSError, TimeoutError, subprocess.SubprocessError) as error:
                failure, descriptors = str(error) or "it does not respond", []
            else:
                if failure:
                    break
            if descriptors:
                listener = socket.socket(fileno=descriptors[0])
                listener.setblocking(False)
                return listener
            if self._process is process:
                self.close()
        raise SandboxUnavailable(
            f"the proxy of the sandbox could not listen in its network: {failure or 'it ended'}",
            hint="run `perdure doctor`, or set tasks.network to off",
            details={"started": False},
        )

    def close(self) -> None:
        """End the process; the next socket starts another one."""
        if self._process is not None:
            self._process.close()
        self._process = None


class _ListenerProcess:
    """The process that forks for each socket. It ends with this object."""

    def __init__(self, user: RunAs) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        numbers = map(str, (theirs.fileno(), PORT, user.uid, user.gid, os.getpid()))
        try:
            process = subprocess.Popen(  # noqa: S603 - a program of ours
                [sys.executable, "-I", "-S", "-c", PROGRAM, *numbers],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                pass_fds=[theirs.fileno()],
            )
        except BaseException:
            self._channel.close()
            raise
        finally:
            theirs.close()
        self.close = weakref.finalize(self, _end, self._channel, process)

    async def request(self, text: str) -> tuple[str, list[int]]:
        """Return the error of a fork, or its descriptor; neither if the process has ended."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            ours.setblocking(False)
            with theirs:
                socket.send_fds(self._channel, [text.encode()], [theirs.fileno()])
            await _readable(loop, ours)
            reply, descriptors, _, _ = socket.recv_fds(ours, 1024, 1)
        return reply.decode(errors="replace").strip(), descriptors


def _end(channel: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    channel.close()
    process.kill()
    process.wait(END_S)


async def _readable(loop: asyncio.AbstractEventLoop, channel: socket.socket) -> None:
    ready = asyncio.Event()
    loop.add_reader(channel, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(channel)
