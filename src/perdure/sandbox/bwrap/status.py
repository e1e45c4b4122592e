"""Status reports of bwrap: JSON that it writes in pieces into a socket."""

import asyncio
import json
import os
import socket
from contextlib import suppress
from typing import Any, Final

MAX_BYTES: Final = 64 * 1024


class StatusSocket:
    """The reports of one bwrap: the first process of the sandbox, and at the end the exit code.

    Without an exit code the sandbox has failed, not the command. bwrap itself exits with 1 in both
    cases. The socket is read when its content is needed, because each of its many pieces would
    wake the event loop. It is not a pipe: a command of our own user could open a pipe of the first
    process again, through /proc, and write reports of its own.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._reader, self.writer = ours.detach(), theirs.detach()
        os.set_blocking(self._reader, False)
        self._text = ""
        self._size = 0
        self.first_pid: int | None = None
        self.pid_namespace: int | None = None
        self.net_namespace: int | None = None
        self.exit_code: int | None = None

    async def wait_started(self, timeout_s: float) -> None:
        """Wait until the first process is reported, or bwrap has ended, or the time is up."""
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.read() and self.first_pid is None:
                    await _readable(loop, self._reader)

    def copy_reader(self) -> int:
        """Return a copy of our end for the first process of the sandbox, which does not read it.

        If the runtime dies before the first report, bwrap would end at that report, and leave that
        process waiting for it forever.
        """
        return os.dup(self._reader)

    def close_writer(self) -> None:
        """Close our copy of bwrap's end, once bwrap has it."""
        if self.writer >= 0:
            os.close(self.writer)
        self.writer = -1

    def close(self) -> None:
        """Release the socket."""
        self.close_writer()
        if self._reader >= 0:
            os.close(self._reader)
        self._reader = -1

    def read(self) -> bool:
        """Take what has arrived, and return whether more can come."""
        while self._reader >= 0:
            try:
                chunk = os.read(self._reader, 4096)
            except BlockingIOError:
                return True
            self._size += len(chunk)
            if not chunk or self._size > MAX_BYTES:
                self.close()
            else:
                self._take(chunk.decode(errors="replace"))
        return False

    def _take(self, text: str) -> None:
        self._text += text
        while self._text:
            try:
                report, end = json.JSONDecoder().raw_decode(self._text)
            except ValueError:
                return  # the rest has not arrived yet
            self._text = self._text[end:].lstrip()
            if isinstance(report, dict):
                self._report(report)

    def _report(self, report: dict[str, Any]) -> None:
        pid, namespace = report.get("child-pid"), report.get("pid-namespace")
        if isinstance(pid, int) and isinstance(namespace, int) and self.first_pid is None:
            self.first_pid, self.pid_namespace = pid, namespace
            network = report.get("net-namespace")
            self.net_namespace = network if isinstance(network, int) else None
        code = report.get("exit-code")
        if isinstance(code, int) and self.exit_code is None:
            self.exit_code = code


async def _readable(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
