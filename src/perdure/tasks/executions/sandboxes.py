"""The sandbox that an operator configured: chosen once, probed, and never replaced by a weaker."""

import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from perdure.sandbox.base import Guarantee, Probe, Sandbox
from perdure.tasks.executions.options import ExecutionOptions
from perdure.tasks.model.executions import ExecutionRecord

EXEC: Final = "exec"  # required by a task that is useless without commands
FAILURE_S: Final = 10.0  # how long answers about tasks repeat why commands cannot run


class ConfiguredSandbox:
    """The sandbox of a runtime's commands, with what it guarantees on this host."""

    def __init__(self, options: ExecutionOptions, root: Path | None) -> None:
        self.options = options
        self._root = root
        self._created: Sandbox | None = None
        self._failure: tuple[Probe, float] | None = None  # until when (monotonic)

    @property
    def name(self) -> str:
        """The name that the operator configured."""
        return self.options.sandbox

    @property
    def _sandbox(self) -> Sandbox:
        if self._created is None:
            self._created = _create(self.options, self._root)
        return self._created

    @property
    def _unused(self) -> set[Guarantee]:
        """Guarantees that the host could give, and the settings do not make use of."""
        network, limits = self.options.network, self.options.limits
        unused: dict[Guarantee, bool] = {
            "net": network.mode == "host",
            "mem_total": limits.memory_bytes is None,
            "cpu_total": limits.cpus is None,
        }
        return {guarantee for guarantee, is_unused in unused.items() if is_unused}

    async def probe(self) -> Probe:
        """Return whether commands can run here and what they are guaranteed, or why not."""
        probe = await self._sandbox.probe()
        probe = replace(probe, guarantees=probe.guarantees - self._unused)
        self._failure = None if probe.ok else (probe, time.monotonic() + FAILURE_S)
        return probe

    async def ready(self, require: Collection[str] = ()) -> Sandbox:
        """Return the sandbox. Raises SandboxUnavailable without it or these guarantees."""
        (await self.probe()).require([name for name in require if name != EXEC])
        return self._sandbox

    async def sweep(self, execution: ExecutionRecord) -> None:
        """Kill what a process that died has left of a command."""
        await self._sandbox.sweep([execution.id])

    def close(self) -> None:
        """Release what the sandbox keeps between commands."""
        if self._created is not None:
            self._created.close()

    async def availability(self) -> dict[str, Any]:
        """Return what the answer about a task says about commands."""
        probe = None
        if self._failure is not None and time.monotonic() < self._failure[1]:
            probe = self._failure[0]
        probe = probe or await self.probe()
        answer = {"available": probe.ok, "sandbox": self.name}
        if not probe.ok:
            return {**answer, "reason": probe.reason, "remedy": probe.remedy}
        return {**answer, "guarantees": sorted(probe.guarantees)}


def _create(options: ExecutionOptions, root: Path | None) -> Sandbox:
    match options.sandbox:
        case "bwrap":
            from perdure.sandbox.bwrap import BwrapSandbox
            from perdure.tasks.proxy.server import AllowListProxy

            return BwrapSandbox(options.run_as, root, options.ro_paths, AllowListProxy().serve)
        case "landlock":
            from perdure.sandbox.landlock import LandlockSandbox

            return LandlockSandbox(options.run_as, options.ro_paths)
        case "none":
            from perdure.sandbox.none import NoSandbox

            return NoSandbox(options.run_as)
