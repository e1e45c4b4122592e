"""The sandbox bwrap: namespaces of the kernel, made by the program bubblewrap without privileges.

bwrap never runs as uid 0: root in a user namespace of its own can still write settings of the host.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from perdure.errors import SandboxUnavailable
from perdure.sandbox.base import (
    ExecResult,
    ExecSpec,
    Guarantee,
    OnOutput,
    Probe,
    RunAs,
    ServeProxy,
)
from perdure.sandbox.bwrap.diagnosis import find_obstacle
from perdure.sandbox.bwrap.listener import NetworkListeners
from perdure.sandbox.bwrap.run import GUARANTEES, HostParts, run_confined
from perdure.sandbox.cgroup import DelegatedGroups, find_delegated_groups
from perdure.sandbox.members import has_run_id, sweep_members
from perdure.sandbox.probe import run_probe
from perdure.sandbox.ro_paths import ReadOnlyPath
from perdure.sandbox.workspace import give_workspace


@dataclass(slots=True)
class BwrapSandbox:
    """Runs each command in namespaces of its own."""

    run_as: RunAs | None = None
    root: Path | None = None  # the folder of the workspaces, which the user must be able to enter
    ro_paths: tuple[ReadOnlyPath, ...] = ()
    serve_proxy: ServeProxy | None = None
    groups: DelegatedGroups | None = field(default_factory=find_delegated_groups)
    _probe: Probe | None = field(default=None, init=False)
    _listeners: NetworkListeners = field(init=False)

    def __post_init__(self) -> None:
        self._listeners = NetworkListeners(self.run_as)

    @property
    def name(self) -> str:
        """The name that results and records carry."""
        return "bwrap"

    async def probe(self) -> Probe:
        """Run `true` in the sandbox. A success is remembered; a failure can be repaired."""
        if self._probe is not None:
            return self._probe
        groups = self.groups.guarantees if self.groups else frozenset[Guarantee]()
        obstacle = find_obstacle(self.run_as)
        probe = await run_probe(self.name, obstacle, self._try, GUARANTEES | groups)
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
        """Run a program in the sandbox; see the contract."""
        (await self.probe()).require()
        if spec.network.mode == "allow" and self.serve_proxy is None:
            raise SandboxUnavailable(
                "the allow-list of the network has no proxy",
                hint="open the runtime from its configuration",
                details={"started": False},
            )
        await give_workspace(workspace, self.run_as)
        return await run_confined(self._parts, workspace, spec, on_output, cancel)

    async def sweep(self, run_ids: Collection[str]) -> int:
        """Kill what is left of these runs: at most a bwrap that was not set up at the crash."""
        count = await sweep_members(has_run_id(run_ids))
        if self.groups is not None:
            for run_id in run_ids:
                await self.groups.left(run_id).remove()
        return count

    def close(self) -> None:
        """End the process that opens sockets in the networks of commands."""
        self._listeners.close()

    @property
    def _parts(self) -> HostParts:
        proxy = None if self.serve_proxy is None else (self._listeners, self.serve_proxy)
        return HostParts(self.run_as, self.ro_paths, proxy, self.groups)

    async def _try(self, spec: ExecSpec, on_output: OnOutput) -> ExecResult:
        async with _probe_workspace(self.root, self.run_as) as workspace:
            return await run_confined(self._parts, workspace, spec, on_output)


@asynccontextmanager
async def _probe_workspace(root: Path | None, run_as: RunAs | None) -> AsyncIterator[Path | None]:
    """Create a workspace where tasks have theirs; None if there is no such folder yet."""
    if root is None or not os.path.isdir(root):  # noqa: ASYNC240, PTH112 - one call of the kernel
        yield None
        return
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=root) as folder:
        await give_workspace(Path(folder), run_as)
        yield Path(folder)
