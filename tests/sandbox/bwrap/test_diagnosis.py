"""Hosts on which bwrap does not work: execution is refused with the reason and the remedy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.sandboxes import RUN_AS, UID, require_bwrap, run

from perdure.errors import SandboxUnavailable
from perdure.sandbox import rlimits, users
from perdure.sandbox.base import RunAs, Sandbox
from perdure.sandbox.bwrap import BwrapSandbox, diagnosis
from perdure.sandbox.bwrap.diagnosis import explain, find_obstacle
from perdure.sandbox.landlock import LandlockSandbox

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop to another user")

# Becomes an unprivileged user in a user namespace of its own whose limit of namespaces is 0. The
# limit of the host is not touched.
EXHAUSTED = """
import asyncio, ctypes, dataclasses, json, os, sys, tempfile
from pathlib import Path
from perdure.errors import SandboxUnavailable
from perdure.sandbox.base import ExecSpec
from perdure.sandbox.bwrap import BwrapSandbox
uid = int(sys.argv[1])
workspace = Path(sys.argv[2])
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
else:
    uid = os.geteuid()
assert ctypes.CDLL(None).unshare(0x10000000) == 0
open("/proc/self/setgroups", "w").write("deny")
open("/proc/self/uid_map", "w").write(f"1000 {uid} 1")
open("/proc/self/gid_map", "w").write(f"1000 {os.getgid() if uid == os.geteuid() else uid} 1")
open("/proc/sys/user/max_user_namespaces", "w").write("0")

async def main():
    sandbox = BwrapSandbox()
    probe = await sandbox.probe()
    try:
        await sandbox.exec(workspace, ExecSpec(["touch", "ran"], "run"), lambda *_: None)
    except SandboxUnavailable as error:
        print(json.dumps({"ok": probe.ok, "reason": probe.reason, "error": error.to_json()}))

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def needs_bwrap() -> None:
    require_bwrap()


async def test_without_bwrap_on_the_path_nothing_starts(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SandboxUnavailable, match="bwrap is not installed") as caught:
        await run(BwrapSandbox(RUN_AS), workspace, "touch ran")
    assert "apt install bubblewrap" in (caught.value.hint or "")
    assert not (workspace / "ran").exists()


async def test_bwrap_that_is_removed_while_perdure_runs_is_reported(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = BwrapSandbox(RUN_AS)
    assert (await sandbox.probe()).ok
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SandboxUnavailable, match="no longer installed"):
        await run(sandbox, workspace, "touch ran")
    monkeypatch.undo()
    assert (await run(sandbox, workspace, "true")).result.exit_code == 0


@pytest.mark.parametrize("sandbox", [BwrapSandbox(RUN_AS), LandlockSandbox(RUN_AS)])
async def test_without_the_program_that_sets_limits_nothing_starts(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox
) -> None:
    """A guarantee of an earlier probe would not hold."""
    assert (await sandbox.probe()).ok
    monkeypatch.setattr(rlimits, "prlimit_program", lambda: None)
    with pytest.raises(SandboxUnavailable, match="prlimit"):
        await run(sandbox, workspace, "touch ran")
    assert not (workspace / "ran").exists()


def test_with_all_user_namespaces_in_use_nothing_starts(workspace: Path) -> None:
    program = [sys.executable, "-c", EXHAUSTED, str(UID), str(workspace)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert not report["ok"]
    assert "namespaces" in report["reason"]
    assert report["error"]["code"] == "SANDBOX_UNAVAILABLE"
    assert "max_user_namespaces" in report["error"]["hint"]
    assert not (workspace / "ran").exists()


@ROOT_ONLY
async def test_a_root_folder_that_the_user_cannot_enter_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    probe = await BwrapSandbox(RUN_AS, root=closed).probe()
    assert not probe.ok
    assert probe.reason.startswith(f"uid {UID} cannot enter {closed}")
    assert "tasks.root" in probe.remedy
    assert not list(closed.iterdir())


async def test_the_probe_runs_in_the_folder_of_the_workspaces(workspace: Path) -> None:
    probe = await BwrapSandbox(RUN_AS, root=workspace.parent).probe()
    assert (probe.ok, probe.sandbox) == (True, "bwrap")
    assert list(workspace.parent.iterdir()) == [workspace]


@ROOT_ONLY
@pytest.mark.parametrize("run_as", [None, RunAs(0, 0), RunAs(0, UID), RunAs(UID, 0)])
def test_root_is_refused_as_the_user_of_commands(run_as: RunAs | None) -> None:
    reason, remedy = find_obstacle(run_as) or ("", "")
    assert "root" in reason
    assert "tasks.run_as" in remedy


@ROOT_ONLY
async def test_without_the_program_that_drops_root_nothing_starts(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bwrap must not run as root then, also if the program is removed while perdure runs."""
    sandbox = BwrapSandbox(RUN_AS)
    assert (await sandbox.probe()).ok
    monkeypatch.setattr(users, "PATH", "/nonexistent")
    with pytest.raises(SandboxUnavailable, match="setpriv is not installed"):
        await run(sandbox, workspace, "touch ran")
    assert not (workspace / "ran").exists()
    assert find_obstacle(RUN_AS) == ("the program setpriv is not installed", "install util-linux")


def test_another_user_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    reason, _ = find_obstacle(RunAs(2000, 2000)) or ("", "")
    assert reason == "perdure runs as uid 1000 and cannot run commands as uid 2000"
    assert find_obstacle(RunAs(1000, 1000)) is None


@pytest.mark.parametrize("platform, name", [("darwin", "macOS"), ("win32", "Windows")])
async def test_other_systems_are_refused_honestly(
    monkeypatch: pytest.MonkeyPatch, platform: str, name: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    probe = await BwrapSandbox(RUN_AS).probe()
    assert not probe.ok
    assert probe.reason == f"the sandbox bwrap needs Linux, and this is {name}"
    assert "Linux virtual machine or container" in probe.remedy


@pytest.mark.parametrize(
    "text, reason, remedy",
    [
        ("bwrap: Unknown option --disable-userns", "older than 0.8", "apt install bubblewrap"),
        ("bwrap: setting up uid map: Permission denied", "AppArmor", "bwrap-userns-restrict"),
        (
            "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
            "AppArmor",
            "bwrap-userns-restrict",
        ),
        (
            "bwrap: Can't mount proc on /newroot/proc: Operation not permitted",
            "masks parts of /proc",
            "systempaths=unconfined",
        ),
        (
            "bwrap: Creating new namespace failed: /proc/sys/user/max_*_namespaces (ENOSPC)",
            "limit of namespaces",
            "max_user_namespaces",
        ),
        (
            "bwrap: Can't find source path /root/ws: Permission denied",
            "uid 7 cannot enter /root/ws",
            "tasks.root",
        ),
        (
            "bwrap: Can't find source path /opt/x: No such file or directory",
            "/opt/x does not exist",
            "tasks.ro_paths",
        ),
        ("bwrap: prctl(PR_SET_SECCOMP): Invalid argument", "seccomp", "CONFIG_SECCOMP_FILTER"),
        ("bwrap: something new", "bwrap failed: something new", "docs/sandbox.md"),
        ("", "without a word", "docs/sandbox.md"),
    ],
)
def test_an_error_of_bwrap_becomes_a_reason_and_a_remedy(
    text: str, reason: str, remedy: str
) -> None:
    explained = explain(text, "uid 7")
    assert reason in explained[0]
    assert remedy in explained[1]


def test_in_a_container_the_remedy_is_a_setting_of_the_container(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "bwrap: No permissions to create a new namespace, likely because the kernel does not"
    monkeypatch.setattr(diagnosis, "in_container", lambda: True)
    assert "seccomp=unconfined" in explain(text, "uid 7")[1]
    monkeypatch.setattr(diagnosis, "in_container", lambda: False)
    assert "unprivileged_userns_clone" in explain(text, "uid 7")[1]
