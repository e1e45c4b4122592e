"""Limits of commands, their output, and the guarantees that a host cannot give."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.sandboxes import RUN_AS, require_bwrap, run

from perdure.sandbox.base import ExecLimits
from perdure.sandbox.bwrap import BwrapSandbox
from perdure.sandbox.cgroup import find_delegated_groups

THREE_PROCESSES = """
for n in 1 2 3; do python3 -c 'x = bytearray(60 << 20); import time; time.sleep(1)' & done
wait %1 && wait %2 && wait %3
"""
DEEP = """
import os
for _ in range(800):
    os.mkdir("d")
    os.chdir("d")
open("file", "wb").write(bytes(6_000_000))
"""
MEASURE = """
import asyncio, sys
from pathlib import Path
from perdure.sandbox.base import ExecSpec, RunAs
from perdure.sandbox.bwrap import BwrapSandbox

def memory(name):
    line = next(line for line in open("/proc/self/status") if line.startswith(name))
    return int(line.split()[1]) * 1024

async def main(workspace, uid):
    sandbox = BwrapSandbox(RunAs(int(uid), int(uid)) if uid != "own" else None)
    await sandbox.exec(Path(workspace), ExecSpec(["true"], "first"), lambda *_: None)
    sizes = []
    before = memory("VmRSS")
    spec = ExecSpec(["head", "-c", "300000000", "/dev/zero"], "second", timeout_ms=120_000)
    result = await sandbox.exec(Path(workspace), spec, lambda _, chunk: sizes.append(len(chunk)))
    assert result.stdout_bytes == sum(sizes) == 300_000_000, result
    print(memory("VmHWM") - before)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def needs_bwrap() -> None:
    require_bwrap()


async def test_without_a_control_group_the_missing_guarantees_are_reported(
    workspace: Path,
) -> None:
    sandbox = BwrapSandbox(RUN_AS, groups=None)
    limits = ExecLimits(memory_bytes=100 * 1024**2, cpus=1)
    result = (await run(sandbox, workspace, "true", limits=limits)).result
    probe = await sandbox.probe()
    for guarantees in (result.guarantees, probe.guarantees):
        assert not {"mem_total", "cpu_total", "disk_total"} & guarantees
        assert {"fs", "net", "pidns", "kill_tree", "die_with_runtime", "nproc"} <= guarantees


async def test_a_control_group_limits_the_memory_of_all_processes_together(
    workspace: Path,
) -> None:
    groups = find_delegated_groups()
    if groups is None or "memory" not in groups.folders:
        pytest.skip("this host delegates no control group with memory to the tests")
    sandbox = BwrapSandbox(RUN_AS, groups=groups)
    limits = ExecLimits(memory_bytes=120 * 1024**2)
    result = (await run(sandbox, workspace, THREE_PROCESSES, limits=limits)).result
    assert (result.reason, "mem_total" in result.guarantees) == ("oom", True)
    assert not list(groups.folders["memory"].glob("perdure-*"))

    unlimited = BwrapSandbox(RUN_AS, groups=None)
    assert (await run(unlimited, workspace, THREE_PROCESSES)).result.exit_code == 0


async def test_the_disk_space_of_many_files_is_limited_by_polling(workspace: Path) -> None:
    command = "for n in 1 2 3 4 5 6; do head -c 2000000 /dev/zero > file-$n; done; sleep 60"
    limits = ExecLimits(disk_bytes=10_000_000)
    result = (await run(BwrapSandbox(RUN_AS), workspace, command, limits=limits)).result
    assert (result.reason, "disk_total" in result.guarantees) == ("disk_limit", False)


async def test_files_in_a_deep_and_closed_folder_count(workspace: Path) -> None:
    command = f"python3 -c '{DEEP}'; chmod 000 d; echo deep; sleep 60"
    limits = ExecLimits(disk_bytes=8_000_000)  # more than the folders need, without the file
    ran = await run(BwrapSandbox(RUN_AS), workspace, command, limits=limits)
    if RUN_AS is None:
        (workspace / "d").chmod(0o700)
    assert (ran.result.reason, ran.stdout) == ("disk_limit", "deep\n")


async def test_a_file_that_grows_too_large_ends_the_command_by_a_signal(workspace: Path) -> None:
    limits = ExecLimits(file_bytes=1_000_000)
    command = "exec head -c 2000000 /dev/zero > file"
    result = (await run(BwrapSandbox(RUN_AS), workspace, command, limits=limits)).result
    assert (result.exit_code, result.signal, result.reason) == (153, 25, "exited")
    assert (workspace / "file").stat().st_size == 1_000_000


async def test_output_arrives_as_the_bytes_that_were_written(workspace: Path) -> None:
    command = r"printf 'a\000\377\033[2Jb'; printf 'e\377' >&2"
    ran = await run(BwrapSandbox(RUN_AS), workspace, command)
    assert ran.chunks == {"stdout": b"a\x00\xff\x1b[2Jb", "stderr": b"e\xff"}
    assert (ran.result.stdout_bytes, ran.result.stderr_bytes) == (8, 2)


def test_300_mb_of_output_take_less_than_16_mb_of_memory(workspace: Path) -> None:
    uid = "own" if RUN_AS is None else str(RUN_AS.uid)
    program = [sys.executable, "-c", MEASURE, str(workspace), uid]
    growth = int(subprocess.run(program, check=True, capture_output=True, timeout=120).stdout)
    assert growth < 16 * 1024**2


async def test_50_sandboxes_at_once_succeed(workspace: Path) -> None:
    sandbox = BwrapSandbox(RUN_AS)
    calls = [run(sandbox, workspace, "sleep 0.3; echo ok") for _ in range(50)]
    results = await asyncio.gather(*calls)
    assert [ran.stdout for ran in results] == ["ok\n"] * 50
