"""Control groups: limits over all processes of a command, where the host delegates a subtree.

Version 2 needs a group that perdure may write to, with the controllers enabled for its children:
the parent of perdure's own group (systemd: Delegate=yes and DelegateSubgroup=). Version 1 needs
write access to perdure's own group of each controller.
"""

import asyncio
import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perdure.sandbox.base import ExecLimits, Guarantee

CONTROLLERS: Final[tuple[str, ...]] = ("memory", "pids", "cpu")
PERIOD_US: Final = 100_000
GROUPS: Final = Path("/sys/fs/cgroup")
OWN_GROUPS: Final = Path("/proc/self/cgroup")
REMOVE_ROUNDS: Final = 100


@dataclass(frozen=True, slots=True)
class DelegatedGroups:
    """Folders in which groups of commands can be created, by controller."""

    version: int
    folders: Mapping[str, Path]

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """Return what a group can guarantee if the limit is set."""
        guarantees: set[Guarantee] = set()
        if "memory" in self.folders:
            guarantees.add("mem_total")
        if "cpu" in self.folders:
            guarantees.add("cpu_total")
        return frozenset(guarantees)

    def applied(self, limits: ExecLimits) -> frozenset[Guarantee]:
        """Return which limits over all processes a group enforces."""
        applied: set[Guarantee] = set()
        if limits.memory_bytes is not None:
            applied.add("mem_total")
        if limits.cpus is not None:
            applied.add("cpu_total")
        return self.guarantees & applied

    def create(self, run_id: str, limits: ExecLimits) -> "CommandGroup":
        """Create the group of one command. Raises OSError."""
        name = group_name(run_id)
        folders = {key: folder / name for key, folder in self.folders.items()}
        group = CommandGroup(self.version, folders)
        try:
            for folder in set(folders.values()):
                folder.mkdir()
            group.limit(limits)
        except OSError:
            group.remove_now()
            raise
        return group

    def left(self, run_id: str) -> "CommandGroup":
        """Return the group that a crashed process may have left."""
        name = group_name(run_id)
        return CommandGroup(self.version, {k: path / name for k, path in self.folders.items()})


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """The control group of one command."""

    version: int
    folders: Mapping[str, Path]

    def limit(self, limits: ExecLimits) -> None:
        """Set the limits that are not None."""
        for controller, folder in self.folders.items():
            for name, value in _settings(self.version, controller, limits).items():
                (folder / name).write_text(value)

    def add(self, pid: int) -> None:
        """Move a process into the group. Its children will be in it as well. Raises OSError."""
        for folder in set(self.folders.values()):
            (folder / "cgroup.procs").write_text(str(pid))

    def oom_kills(self) -> int:
        """Return how many processes the kernel killed for lack of memory."""
        folder = self.folders.get("memory")
        if folder is None:
            return 0
        return _field(folder / ("memory.events" if self.version == 2 else "memory.oom_control"))

    def pids(self) -> list[int]:
        """Return the processes in the group."""
        pids: set[int] = set()
        for folder in set(self.folders.values()):
            with suppress(OSError):
                pids |= set(map(int, (folder / "cgroup.procs").read_text().split()))
        return sorted(pids)

    def remove_now(self) -> bool:
        """Remove the group if it has no processes, and return whether it is gone."""
        for folder in set(self.folders.values()):
            with suppress(OSError):
                folder.rmdir()
        return not any(folder.exists() for folder in self.folders.values())

    async def remove(self) -> None:
        """Remove the group; the kernel can take a moment to notice that it has no processes."""
        for _ in range(REMOVE_ROUNDS):
            if self.remove_now():
                return
            await asyncio.sleep(0.01)


def group_name(run_id: str) -> str:
    """Return the name of the group of a run, whatever characters its id has."""
    return f"perdure-{hashlib.sha256(run_id.encode()).hexdigest()[:32]}"


def find_delegated_groups(
    groups: Path = GROUPS, own_groups: Path = OWN_GROUPS
) -> DelegatedGroups | None:
    """Return where groups can be created, or None if the host delegates nothing."""
    try:
        lines = [line.split(":", 2) for line in own_groups.read_text().splitlines()]
    except OSError:
        return None
    own = {name: path for _, names, path in lines for name in names.split(",")}
    if (groups / "cgroup.controllers").exists():
        return _version_2(groups / own.get("", "/").lstrip("/"), groups)
    folders = {
        name: folder
        for name in CONTROLLERS
        if name in own and _is_open(folder := groups / name / own[name].lstrip("/"))
    }
    return DelegatedGroups(1, folders) if folders else None


def _version_2(own: Path, groups: Path) -> DelegatedGroups | None:
    """Look at the parent: a group with processes of its own cannot limit its children."""
    parent = own.parent
    if own == groups or not _is_open(parent):
        return None
    with suppress(OSError):
        enabled = (parent / "cgroup.subtree_control").read_text().split()
        folders = {name: parent for name in CONTROLLERS if name in enabled}
        return DelegatedGroups(2, folders) if folders else None
    return None


def _is_open(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)


def _settings(version: int, controller: str, limits: ExecLimits) -> dict[str, str]:
    quota = None if limits.cpus is None else round(limits.cpus * PERIOD_US)
    memory = limits.memory_bytes
    match version, controller:
        case _, "pids":
            return {"pids.max": str(limits.processes + 2)}  # bwrap's own process counts as well
        case 1, "memory" if memory is not None:
            return {"memory.limit_in_bytes": str(memory)}
        case 1, "cpu" if quota is not None:
            return {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota)}
        case 2, "memory" if memory is not None:
            return {"memory.max": str(memory), "memory.swap.max": "0", "memory.oom.group": "0"}
        case 2, "cpu" if quota is not None:
            return {"cpu.max": f"{quota} {PERIOD_US}"}
        case _:
            return {}


def _field(path: Path) -> int:
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
    return 0
