"""The pid namespace of a sandbox: everything in it ends with its first process."""

import asyncio
import os
import signal
from contextlib import suppress

from perdure.sandbox.bwrap.status import StatusSocket
from perdure.sandbox.members import in_pid_namespace, signal_members
from perdure.sandbox.process import ChildProcess


class PidNamespace:
    """The processes of one sandbox, by the first of them, which bwrap reports."""

    def __init__(self, bwrap: ChildProcess, status: StatusSocket) -> None:
        self._bwrap = bwrap
        self._status = status
        self._pidfd: int | None = None
        self._is_empty = False

    def terminate(self) -> None:
        """Send SIGTERM to every member; the first process ignores it."""
        if self._open() is not None and self._status.pid_namespace is not None:
            signal_members(in_pid_namespace(self._status.pid_namespace), signal.SIGTERM)
        else:
            self._bwrap.kill()  # it has not started the command

    def kill(self) -> None:
        """Kill the first process, and with it the kernel kills the others."""
        pidfd = self._open()
        if pidfd is None:
            self._bwrap.kill()
            return
        with suppress(OSError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    async def wait_empty(self) -> None:
        """Wait until the first process has ended, which it does after all others."""
        if self._is_empty or self._open() is None or self._pidfd is None:
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self._pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._pidfd)
        self._is_empty = True

    def close(self) -> None:
        """Release the descriptor."""
        if self._pidfd is not None:
            # bwrap may have ended first. In a container without init, its child is ours then.
            with suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
            os.close(self._pidfd)
        self._pidfd = None

    def _open(self) -> int | None:
        """Open the first process once. Outside the reported namespace, its id was used again."""
        self._status.read()
        pid, namespace = self._status.first_pid, self._status.pid_namespace
        if self._pidfd is None and pid is not None and namespace is not None:
            with suppress(OSError):
                pidfd = os.pidfd_open(pid)
                if in_pid_namespace(namespace)(pid):
                    self._pidfd = pidfd
                else:
                    os.close(pidfd)
        return self._pidfd
