"""The start of a command: it begins only if the runtime is still there when its sandbox is.

bwrap asks the kernel for its death with the runtime, and its first process for its death with
bwrap. The kernel ignores such a request if the parent has died before it. So a shell inside waits
until the runtime, which is alive then, has seen that both requests were made; if the runtime dies
before, the shell reads the end of its input and exits.
"""

import asyncio
import socket
from pathlib import Path
from typing import Final

from perdure.errors import SandboxUnavailable
from perdure.sandbox.bwrap.status import StatusSocket

WAIT_WORDS: Final = ("/bin/sh", "-c", 'echo >&0 && read -r _ && exec "$@" </dev/null', "sh")
START_S: Final = 30.0
POLL_S: Final = 0.001
FILTERED: Final = b"\nSeccomp:\t2\n"  # which the first process does after its request


class StartSignal:
    """The socket between the runtime and the waiting shell, which is the shell's input."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self.was_sent = False  # then the command may have started

    @property
    def stdin(self) -> int:
        """The input of the shell."""
        return self._theirs.fileno()

    def close_theirs(self) -> None:
        """Close our copy of the shell's end, once bwrap has it."""
        self._theirs.close()

    def close(self) -> None:
        """Release the socket; a shell that still waits ends."""
        self._theirs.close()
        self._ours.close()

    async def send(self, status: StatusSocket) -> None:
        """Let the command start; nothing happens if bwrap has failed, which its end says.

        Raises SandboxUnavailable if the sandbox does not get ready.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(START_S):
                if not await loop.sock_recv(self._ours, 1):
                    return
                status.read()
                while not _dies_with_bwrap(status.first_pid):  # noqa: ASYNC110 - of the kernel
                    await asyncio.sleep(POLL_S)
            self.was_sent = True
            self._ours.send(b"\n")
        except TimeoutError:
            raise SandboxUnavailable(
                f"the sandbox was not ready within {START_S:.0f} seconds",
                hint="the host may be overloaded: try again, and see docs/sandbox.md",
                details={"started": False},
            ) from None
        except OSError:  # the shell has ended, and bwrap says why
            return


def _dies_with_bwrap(pid: int | None) -> bool:
    """Return whether the first process has made its request, or has ended."""
    try:
        return FILTERED in Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return True
