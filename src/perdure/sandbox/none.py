"""No sandbox: a plain process of the configured user. Used only if configured by name."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perdure.errors import SandboxUnavailable
from perdure.sandbox.base import (
    RUN_ID_VARIABLE,
    TIMEOUT_EXIT_CODE,
    ExecResult,
    ExecSpec,
    OnOutput,
    Probe,
    RunAs,
)
from perdure.sandbox.members import (
    has_run_id,
    in_process_group,
    kill_until_none,
    signal_members,
    sweep_members,
)
from perdure.sandbox.process import ChildProcess, ProcessSpec
from perdure.sandbox.rlimits import PATH, limit_arguments
from perdure.sandbox.stop import Stopper, exit_of, run_to_end
from perdure.sandbox.users import user_obstacle
from perdure.sandbox.workspace import give_workspace, watch_disk


@dataclass(frozen=True, slots=True)
class NoSandbox:
    """Runs programs without confinement: only rlimits, an empty environment and a process group."""

    run_as: RunAs | None = None

    @property
    def name(self) -> str:
        """The name that results and records carry."""
        return "none"

    async def probe(self) -> Probe:
        """Refuse root without a configured user; everything else works everywhere."""
        if (obstacle := user_obstacle(self.run_as)) is not None:
            return Probe(self.name, ok=False, reason=obstacle[0], remedy=obstacle[1])
        return Probe(self.name, ok=True)

    async def exec(
        self,
        workspace: Path,
        spec: ExecSpec,
        on_output: OnOutput,
        *,
        cancel: asyncio.Event | None = None,
    ) -> ExecResult:
        """Run a program; a timeout stops its process group and what carries its run id."""
        (await self.probe()).require()
        if spec.network.mode == "allow":
            raise SandboxUnavailable(
                "without a sandbox the network cannot be limited to an allow-list",
                hint="set tasks.network to host, or use the sandbox bwrap",
                details={"started": False},
            )
        await give_workspace(workspace, self.run_as)
        argv = [*limit_arguments(spec.limits, processes=False, required=False), *spec.argv]
        process_spec = ProcessSpec(argv, _environment(workspace, spec), workspace, self.run_as)
        return await run_child(workspace, process_spec, spec, on_output, cancel)

    async def sweep(self, run_ids: Collection[str]) -> int:
        """Kill processes whose environment names one of the runs."""
        return await sweep_members(has_run_id(run_ids))

    def close(self) -> None:
        """Do nothing: nothing is kept between commands."""


async def run_child(
    workspace: Path,
    process_spec: ProcessSpec,
    spec: ExecSpec,
    on_output: OnOutput,
    cancel: asyncio.Event | None,
) -> ExecResult:
    """Run a program without a pid namespace of its own, and without any guarantee."""
    child = ChildProcess(process_spec, on_output)
    try:
        reason = await run_to_end(
            child,
            _stopper(child.pid, spec.run_id),
            timeout_ms=spec.timeout_ms,
            cancel=cancel,
            disk_limit=watch_disk(workspace, spec.limits.disk_bytes),
        )
        truncated = await child.drain()
        code, number = exit_of(child.exited.result())
        return ExecResult(
            exit_code=TIMEOUT_EXIT_CODE if reason == "timeout" else code,
            signal=number,
            reason=reason,
            stdout_bytes=child.size("stdout"),
            stderr_bytes=child.size("stderr"),
            truncated=truncated,
            duration_ms=round((time.monotonic() - child.started_at) * 1000),
            sandbox="none",
            guarantees=frozenset(),
        )
    finally:
        child.close()


def _stopper(group: int, run_id: str) -> Stopper:
    """Reach the process group and what carries the run id; a daemon can escape both."""
    in_group, has_id = in_process_group(group), has_run_id([run_id])

    def is_member(pid: int) -> bool:
        return in_group(pid) or has_id(pid)

    if sys.platform != "linux":
        return Stopper(
            terminate=lambda: _signal_group(group, signal.SIGTERM),
            kill=lambda: _signal_group(group, signal.SIGKILL),
        )
    return Stopper(
        terminate=lambda: signal_members(is_member, signal.SIGTERM),
        kill=lambda: kill_until_none(is_member),
    )


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # it has ended; macOS says the latter
        os.killpg(group, number)


def _environment(workspace: Path, spec: ExecSpec) -> dict[str, str]:
    return {
        "PATH": PATH,
        "HOME": str(workspace),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        **spec.env,
        RUN_ID_VARIABLE: spec.run_id,
    }
