"""Control groups: where they are found, and what is written into them."""

from pathlib import Path

import pytest

from perdure.sandbox.base import ExecLimits
from perdure.sandbox.cgroup import find_delegated_groups, group_name

LIMITS = ExecLimits(processes=10, memory_bytes=1000, cpus=1.5)


def host(folder: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Create the files of a host's control groups, and the list of a process's own ones."""
    for name, text in files.items():
        (folder / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "groups" / name).write_text(text)
    (folder / "own").write_text(own)
    return folder / "groups", folder / "own"


def test_version_2_uses_the_delegated_parent_of_the_own_group(tmp_path: Path) -> None:
    unit = "system.slice/perdure.service"
    files = {
        "cgroup.controllers": "cpu memory pids",
        f"{unit}/cgroup.procs": "",
        f"{unit}/cgroup.subtree_control": "cpu memory pids",
        f"{unit}/main/cgroup.procs": "1",
    }
    groups = find_delegated_groups(*host(tmp_path, f"0::/{unit}/main\n", files))
    assert groups is not None
    assert groups.guarantees == {"mem_total", "cpu_total"}
    group = groups.create("run", LIMITS)
    folder = tmp_path / "groups" / unit / group_name("run")
    written = {path.name: path.read_text() for path in folder.iterdir()}
    assert written == {
        "memory.max": "1000",
        "memory.swap.max": "0",
        "memory.oom.group": "0",
        "pids.max": "12",
        "cpu.max": "150000 100000",
    }
    (folder / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert group.oom_kills() == 2
    group.add(77)
    assert (folder / "cgroup.procs").read_text() == "77"


@pytest.mark.parametrize(
    "own, files",
    [
        ("0::/\n", {"cgroup.controllers": "memory", "cgroup.procs": "1"}),  # the own group
        (
            "0::/a/b\n",  # no controller is enabled for children
            {"cgroup.controllers": "memory", "a/cgroup.procs": "", "a/cgroup.subtree_control": ""},
        ),
        ("0::/a/b\n", {"cgroup.controllers": "memory"}),  # nothing may be written
        ("4:freezer:/\n", {"freezer/cgroup.procs": ""}),
        ("", {}),
    ],
)
def test_without_a_delegated_group_there_is_none(
    tmp_path: Path, own: str, files: dict[str, str]
) -> None:
    assert find_delegated_groups(*host(tmp_path, own, files)) is None


def test_version_1_uses_the_own_group_of_each_controller(tmp_path: Path) -> None:
    files = {"memory/own/cgroup.procs": "", "pids/cgroup.procs": "", "cpu/x/cgroup.procs": ""}
    own = "4:memory:/own\n3:pids:/\n2:cpu,cpuacct:/x\n"
    groups = find_delegated_groups(*host(tmp_path, own, files))
    assert groups is not None
    assert groups.version == 1
    groups.create("run", LIMITS)
    name = group_name("run")
    folder = tmp_path / "groups"
    assert (folder / "memory/own" / name / "memory.limit_in_bytes").read_text() == "1000"
    assert (folder / "pids" / name / "pids.max").read_text() == "12"
    assert (folder / "cpu/x" / name / "cpu.cfs_quota_us").read_text() == "150000"


def test_only_limits_that_are_set_are_guaranteed(tmp_path: Path) -> None:
    files = {"memory/cgroup.procs": "", "cpu/cgroup.procs": ""}
    groups = find_delegated_groups(*host(tmp_path, "1:memory:/\n2:cpu:/\n", files))
    assert groups is not None
    assert groups.applied(ExecLimits()) == frozenset()
    assert groups.applied(ExecLimits(memory_bytes=1)) == {"mem_total"}
    assert groups.applied(LIMITS) == {"mem_total", "cpu_total"}
