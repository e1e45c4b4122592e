"""A child process on the event loop: its end by a pidfd, its output by its pipes.

The end is never taken from the pipes: a daemon that the command left behind can hold them open.
"""

import asyncio
import errno
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from perdure.errors import Refused, SandboxUnavailable
from perdure.sandbox.base import DRAIN_S, Channel, OnOutput, RunAs

READ_BYTES: Final = 64 * 1024
ERROR_TAIL_BYTES: Final = 4096
POLL_S: Final = 0.02  # only where there is no pidfd


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """Arguments of a spawn: a program, its environment, and the descriptors that it inherits."""

    argv: Sequence[str]
    env: dict[str, str]
    cwd: Path
    run_as: RunAs | None = None
    stdin: int = subprocess.DEVNULL
    pass_fds: Sequence[int] = ()


@dataclass(slots=True)
class Inheritance:
    """Descriptors that a program inherits; close them once it has started."""

    descriptors: list[int] = field(default_factory=list)

    def content(self, data: bytes) -> str:
        """Return the number of a descriptor from which this content is read."""
        descriptor = os.memfd_create("perdure", os.MFD_CLOEXEC)
        self.descriptors.append(descriptor)
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        return str(descriptor)

    def add(self, descriptor: int) -> str:
        """Hand over a descriptor, and return its number."""
        self.descriptors.append(descriptor)
        return str(descriptor)

    def close(self) -> None:
        """Close our copies."""
        while self.descriptors:
            os.close(self.descriptors.pop())


@dataclass(slots=True)
class _Pipe:
    channel: Channel
    fd: int
    closed: asyncio.Future[None]
    size: int = 0


class ChildProcess:
    """A spawned program. Close it when it has ended."""

    def __init__(self, process_spec: ProcessSpec, on_output: OnOutput) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_output = on_output
        self._failure: BaseException | None = None
        self.error_tail = b""  # the end of stderr, for the reason of a failed start
        self.started_at = time.monotonic()
        self._process = _spawn(process_spec)
        self.pid = self._process.pid
        self.exited: asyncio.Future[int] = self._loop.create_future()
        try:
            self._pidfd = self._watch_end()
        except OSError:  # too many open files: nobody would notice its end, or stop it
            with self._process:  # which closes its pipes, and waits for its end
                self._process.kill()
            raise
        self._pipes = [self._watch_pipe("stdout"), self._watch_pipe("stderr")]

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the program has ended, at most `timeout_s`. Return whether it has."""
        await asyncio.wait([self.exited], timeout=timeout_s)
        return self.exited.done()

    async def drain(self) -> bool:
        """Wait a second at most for the ends of the pipes. Return whether output may be lost."""
        ends = [pipe.closed for pipe in self._pipes]
        await asyncio.wait(ends, timeout=DRAIN_S)
        if self._failure is not None:
            raise self._failure
        return not all(end.done() for end in ends)

    def kill(self) -> None:
        """Kill the program itself, if it has not ended; not what it has started."""
        if not self.exited.done():
            self._process.kill()

    def size(self, channel: Channel) -> int:
        """Return how many bytes the program has written."""
        return next(pipe.size for pipe in self._pipes if pipe.channel == channel)

    def close(self) -> None:
        """Release the descriptors."""
        for pipe in self._pipes:
            self._end_pipe(pipe)
        if self._pidfd is not None and self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        self._pidfd = -1

    def _watch_end(self) -> int | None:
        if sys.platform != "linux":
            self._loop.call_soon(self._poll)
            return None
        pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(pidfd, self._end, pidfd)
        return pidfd

    def _end(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        if not self.exited.done():
            self.exited.set_result(self._process.wait())

    def _poll(self) -> None:
        if (code := self._process.poll()) is None:
            self._loop.call_later(POLL_S, self._poll)
        elif not self.exited.done():
            self.exited.set_result(code)

    def _watch_pipe(self, channel: Channel) -> _Pipe:
        stream = self._process.stdout if channel == "stdout" else self._process.stderr
        assert stream is not None  # noqa: S101 - both are opened as pipes
        pipe = _Pipe(channel, stream.fileno(), self._loop.create_future())
        os.set_blocking(pipe.fd, False)
        self._loop.add_reader(pipe.fd, self._read, pipe)
        return pipe

    def _read(self, pipe: _Pipe) -> None:
        try:
            chunk = os.read(pipe.fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._end_pipe(pipe)
            return
        pipe.size += len(chunk)
        if pipe.channel == "stderr":
            self.error_tail = (self.error_tail + chunk)[-ERROR_TAIL_BYTES:]
        if self._failure is None:
            self._deliver(pipe.channel, chunk)

    def _deliver(self, channel: Channel, chunk: bytes) -> None:
        try:
            self._on_output(channel, chunk)
        except Exception as error:  # noqa: BLE001 - handed to the caller of exec by `drain`
            self._failure = error

    def _end_pipe(self, pipe: _Pipe) -> None:
        if pipe.fd >= 0:
            self._loop.remove_reader(pipe.fd)
            stream = self._process.stdout if pipe.channel == "stdout" else self._process.stderr
            if stream is not None:
                stream.close()
            pipe.fd = -1
            pipe.closed.set_result(None)


def _spawn(process_spec: ProcessSpec) -> subprocess.Popen[bytes]:
    """Spawn in the calling thread: bwrap ends its command when that thread ends."""
    run_as = process_spec.run_as if os.geteuid() == 0 else None
    try:
        return subprocess.Popen(  # noqa: S603 - the argv is the point of a sandbox
            process_spec.argv,
            stdin=process_spec.stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=process_spec.env,
            cwd=process_spec.cwd,
            pass_fds=process_spec.pass_fds,
            start_new_session=True,
            user=None if run_as is None else run_as.uid,
            group=None if run_as is None else run_as.gid,
            extra_groups=None if run_as is None else [],
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        if isinstance(error, ValueError) or getattr(error, "errno", 0) == errno.E2BIG:
            raise Refused(
                f"the command cannot be started: {error}",
                code="EXECUTION_FAILED",
                hint="a command has at most 128 KB and no NUL byte: put more into a file",
            ) from error
        raise SandboxUnavailable(
            f"{process_spec.argv[0]} could not be started: {error}",
            hint="run `perdure doctor`, which says what is missing",
            details={"started": False},
        ) from error
