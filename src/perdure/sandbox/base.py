"""The contract of sandboxes: what to run, under which limits, and what is reported about it.

A sandbox runs one program in a workspace. It never degrades: where it cannot confine the program,
`probe` says why, and `exec` raises SandboxUnavailable before anything has started.
"""

import asyncio
import socket
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from perdure.errors import SandboxUnavailable

Reason = Literal["exited", "timeout", "cancelled", "oom", "disk_limit", "interrupted"]
Channel = Literal["stdout", "stderr"]
Guarantee = Literal[
    "fs",  # sees and changes only its workspace, its /tmp and read-only system folders
    "net",  # reaches the network only as its settings allow
    "pidns",  # neither sees nor signals processes outside
    "syscalls",  # cannot make the kernel calls that a command does not need
    "kill_tree",  # everything that it started ends with it, daemons included
    "die_with_runtime",  # ends when the process that runs it is killed
    "nproc",  # has a limit of processes of its own
    "mem_total",  # has a limit of memory over all of its processes
    "cpu_total",  # has a limit of CPU time over all of its processes
    "disk_total",  # has a hard limit of disk space; without it, the use is polled
]
OnOutput = Callable[[Channel, bytes], None]
ServeProxy = Callable[[socket.socket, Sequence[str]], Coroutine[Any, Any, None]]

GRACE_S: Final = 2.0  # between SIGTERM and SIGKILL
DRAIN_S: Final = 1.0  # for output that is still in the pipes after the end
TIMEOUT_EXIT_CODE: Final = 124
RUN_ID_VARIABLE: Final = "PERDURE_RUN_ID"  # marks processes, so that `sweep` recognizes them


@dataclass(frozen=True, slots=True)
class ExecLimits:
    """Limits of one command. None means that there is no limit of this kind."""

    processes: int = 256
    open_files: int = 1024
    file_bytes: int = 1024**3  # of each file
    tmp_bytes: int = 64 * 1024**2  # of /tmp and of /dev/shm, each
    disk_bytes: int | None = 10 * 1024**3  # of the workspace, polled
    memory_bytes: int | None = None  # over all processes; needs a delegated cgroup
    cpus: float | None = None  # over all processes; needs a delegated cgroup
    address_space_bytes: int | None = None  # of each process; breaks Go, Java and Node.js


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """The network that a command may use; `allow` has the entries of the allow-list."""

    mode: Literal["off", "host", "allow"] = "off"
    allow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecSpec:
    """One program to run. Its environment is `env` and a few fixed variables, nothing else."""

    argv: Sequence[str]
    run_id: str  # 1 to 200 characters, unique; marks its processes
    timeout_ms: int = 30_000
    env: Mapping[str, str] = field(default_factory=dict)
    network: NetworkSettings = NetworkSettings()
    limits: ExecLimits = ExecLimits()


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The end of a program.

    The exit code of a program that was stopped by a timeout is 124. A program that a signal ended
    has `signal`, and the exit code 128 + `signal`. `truncated` says that output was lost because
    the pipes were still open a second after the end.
    """

    exit_code: int
    signal: int | None
    reason: Reason
    stdout_bytes: int
    stderr_bytes: int
    truncated: bool
    duration_ms: int
    sandbox: str
    guarantees: frozenset[Guarantee]


@dataclass(frozen=True, slots=True)
class Probe:
    """The outcome of running `true` in a sandbox: usable with guarantees, or why not."""

    sandbox: str
    ok: bool
    reason: str = ""
    remedy: str = ""
    guarantees: frozenset[Guarantee] = frozenset()

    def require(self, guarantees: Collection[str] = ()) -> None:
        """Raise SandboxUnavailable unless the sandbox can be used and gives these guarantees."""
        if not self.ok:
            raise SandboxUnavailable(
                f"commands cannot run here: {self.reason}",
                hint=self.remedy,
                details={"sandbox": self.sandbox, "reason": self.reason, "remedy": self.remedy},
            )
        if missing := sorted(set(guarantees) - self.guarantees):
            raise SandboxUnavailable(
                f"the sandbox {self.sandbox} does not guarantee {', '.join(missing)} on this host",
                hint="see docs/sandbox.md for what each guarantee needs, or do not require it",
                details={"sandbox": self.sandbox, "missing": missing},
            )


@dataclass(frozen=True, slots=True)
class RunAs:
    """The user that commands run as if perdure runs as root."""

    uid: int
    gid: int


class Sandbox(Protocol):
    """A place to run programs. Call it from the thread of the event loop only."""

    @property
    def name(self) -> str:
        """The name that results and records carry."""
        ...

    async def probe(self) -> Probe:
        """Run `true` for real and say whether that works. A success is remembered."""
        ...

    async def exec(
        self,
        workspace: Path,
        spec: ExecSpec,
        on_output: OnOutput,
        *,
        cancel: asyncio.Event | None = None,
    ) -> ExecResult:
        """Run a program to its end, or stop it at its timeout or when `cancel` is set.

        Every byte of output goes to `on_output`, in the thread of the event loop. When the call
        returns or raises, every process that the sandbox can reach has ended, also if the caller's
        asyncio task was cancelled. Raises SandboxUnavailable if the sandbox itself failed: then
        the program has not run, or its end is unknown (`details["started"]`).
        """
        ...

    async def sweep(self, run_ids: Collection[str]) -> int:
        """Kill what a crashed process left of these runs, and return how many processes."""
        ...

    def close(self) -> None:
        """Release what the sandbox keeps between commands; it can be used again."""
        ...
