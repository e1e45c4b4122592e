"""The sandbox landlock: file rules of the kernel and a seccomp filter, without namespaces.

It is weaker than bwrap and used only if the operator allows that: daemons survive, path sockets and
metadata of files outside are within reach. It works where namespaces are forbidden.
"""

import asyncio
import base64
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from perdure.errors import SandboxUnavailable
from perdure.sandbox.base import (
    RUN_ID_VARIABLE,
    ExecResult,
    ExecSpec,
    Guarantee,
    OnOutput,
    Probe,
    RunAs,
)
from perdure.sandbox.launcher import LAUNCHER, abi_version
from perdure.sandbox.members import has_run_id, sweep_members
from perdure.sandbox.none import run_child
from perdure.sandbox.probe import host_obstacle, run_probe
from perdure.sandbox.process import Inheritance, ProcessSpec
from perdure.sandbox.rlimits import PATH, limit_arguments
from perdure.sandbox.ro_paths import ReadOnlyPath
from perdure.sandbox.seccomp import FAMILIES, seccomp_filter
from perdure.sandbox.users import Obstacle
from perdure.sandbox.workspace import give_workspace

GUARANTEES: Final[frozenset[Guarantee]] = frozenset({"syscalls"})
LEAST_ABI: Final = 3  # older kernels let a command truncate any file of its user
AF_UNIX: Final = 1
READABLE: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/proc"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ca-certificates", "/etc/pki/tls/certs"),
    *("/etc/localtime", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts"),
    *("/dev/zero", "/dev/random", "/dev/urandom"),
)
READABLE_WITH_NETWORK: Final = ("/etc/resolv.conf", "/etc/services", "/run/systemd/resolve")
WRITABLE: Final = ("/dev/null", "/dev/full", "/dev/tty")


@dataclass(slots=True)
class LandlockSandbox:
    """Runs each command under file rules; only for operators who allow a weak sandbox."""

    run_as: RunAs | None = None
    ro_paths: tuple[ReadOnlyPath, ...] = ()
    _probe: Probe | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        """The name that results and records carry."""
        return "landlock"

    async def probe(self) -> Probe:
        """Run `true` under the rules. A success is remembered."""
        if self._probe is not None:
            return self._probe
        probe = await run_probe(self.name, _obstacle(self.run_as), self._try, GUARANTEES)
        self._probe = probe if probe.ok else None
        return probe

    async def exec(
        self,
        workspace: Path,
        spec: ExecSpec,
        on_output: OnOutput,
        *,
        cancel: asyncio.Event | None = None,
    ) -> ExecResult:
        """Run a program under the rules; see the contract."""
        (await self.probe()).require()
        if spec.network.mode == "allow":
            raise SandboxUnavailable(
                "the sandbox landlock cannot limit the network to an allow-list",
                hint="use the sandbox bwrap, or set tasks.network to off",
                details={"started": False},
            )
        await give_workspace(workspace, self.run_as)
        return await self._run(workspace, spec, on_output, cancel)

    async def sweep(self, run_ids: Collection[str]) -> int:
        """Kill processes whose environment names one of the runs."""
        return await sweep_members(has_run_id(run_ids))

    def close(self) -> None:
        """Do nothing: nothing is kept between commands."""

    async def _try(self, spec: ExecSpec, on_output: OnOutput) -> ExecResult:
        async with _folder_of(self.run_as, "probe") as workspace:
            return await self._run(workspace, spec, on_output)

    async def _run(
        self,
        workspace: Path,
        spec: ExecSpec,
        on_output: OnOutput,
        cancel: asyncio.Event | None = None,
    ) -> ExecResult:
        inheritance, errors = Inheritance(), _ErrorPipe()
        try:
            async with _folder_of(self.run_as, "tmp") as temporary:
                settings = json.dumps(self._settings(workspace, temporary, spec)).encode()
                numbers = [inheritance.content(settings), str(errors.writer)]
                process = ProcessSpec(
                    [sys.executable, "-I", "-S", "-c", LAUNCHER, *numbers],
                    {RUN_ID_VARIABLE: spec.run_id},
                    Path("/"),
                    None,  # the launcher drops root: the user may not reach the interpreter
                    pass_fds=[*inheritance.descriptors, errors.writer],
                )
                result = await run_child(workspace, process, spec, on_output, cancel)
            errors.check()
        finally:
            inheritance.close()
            errors.close()
        return replace(result, sandbox=self.name, guarantees=GUARANTEES)

    def _settings(self, workspace: Path, temporary: Path, spec: ExecSpec) -> dict[str, Any]:
        networked = spec.network.mode == "host"
        user = self.run_as or RunAs(os.geteuid(), os.getegid())
        code = seccomp_filter(families=FAMILIES if networked else (AF_UNIX,)) or b""
        readable = [*READABLE, *(READABLE_WITH_NETWORK if networked else ())]
        environment = {
            "PATH": PATH,
            "HOME": str(workspace),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "TMPDIR": str(temporary),
            **spec.env,
            RUN_ID_VARIABLE: spec.run_id,
        }
        return {
            "uid": user.uid,
            "gid": user.gid,
            "parent": os.getpid(),
            "workspace": str(workspace),
            "abi": abi_version(),
            "readable": [*readable, *(str(path.source) for path in self.ro_paths)],
            "writable": [*WRITABLE, str(workspace), str(temporary)],
            "filter": base64.b64encode(code).decode(),
            "argv": [*limit_arguments(spec.limits, processes=False), *spec.argv],
            "env": environment,
        }


class _ErrorPipe:
    """The pipe in which the launcher says why the command has not started."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)

    def check(self) -> None:
        """Raise SandboxUnavailable if the launcher has failed."""
        with suppress(BlockingIOError):
            if failure := os.read(self._reader, 4096).decode(errors="replace"):
                raise SandboxUnavailable(
                    f"the sandbox landlock failed: {failure}",
                    hint="see docs/sandbox.md",
                    details={"started": False},
                )

    def close(self) -> None:
        """Release the pipe."""
        os.close(self._reader)
        os.close(self.writer)


@asynccontextmanager
async def _folder_of(run_as: RunAs | None, name: str) -> AsyncIterator[Path]:
    """Create a folder for temporary files that the user of commands owns."""
    with tempfile.TemporaryDirectory(prefix=f"perdure-{name}-") as folder:
        await give_workspace(Path(folder), run_as)
        yield Path(folder)


def _obstacle(run_as: RunAs | None) -> Obstacle | None:
    """Return why Landlock cannot be tried at all; None if it can."""
    if (version := abi_version()) < LEAST_ABI:
        return f"the kernel has version {version} of Landlock, and {LEAST_ABI} is needed", (
            "use Linux 6.2 or newer with landlock in the list of security modules"
        )
    return host_obstacle(run_as)
