"""Commands under Landlock: what the weak sandbox stops, and exactly what it does not."""

from pathlib import Path

import pytest
from tests.sandbox.decoys import decoys
from tests.sandbox.test_attacks import ATTACKS, attack
from tests.support.sandboxes import RUN_AS, run

from perdure.errors import SandboxUnavailable
from perdure.sandbox import landlock
from perdure.sandbox.base import NetworkSettings
from perdure.sandbox.landlock import LEAST_ABI, LandlockSandbox
from perdure.sandbox.launcher import abi_version

# The page docs/sandbox.md lists them.
WEAKNESSES = {
    *("see_shadow", "ask_for_existence", "change_mode_outside", "connect_path_socket"),
    *("use_sysv_memory", "keep_capabilities", "fork_bomb"),
}
NEEDS_VERSION_6 = {"signal_host_process", "connect_abstract_socket"}

pytestmark = pytest.mark.skipif(
    abi_version() < LEAST_ABI, reason=f"this kernel has no Landlock of version {LEAST_ABI}"
)
SANDBOX = LandlockSandbox(RUN_AS)


def test_landlock_stops_all_attacks_but_the_listed_ones() -> None:
    with decoys() as planted:
        reports = attack(SANDBOX, planted)
    breaches = {name for name, report in reports.items() if report.get("breach")}
    allowed = WEAKNESSES | (NEEDS_VERSION_6 if abi_version() < 6 else set())
    assert set(reports) == set(ATTACKS)
    assert breaches <= allowed
    assert breaches >= WEAKNESSES
    assert not [report for report in reports.values() if report.get("error")]


async def test_a_result_names_landlock_and_claims_only_the_filter(workspace: Path) -> None:
    ran = await run(SANDBOX, workspace, "echo $A; cat; exit 3", env={"A": "b"})
    assert (ran.stdout, ran.result.exit_code) == ("b\n", 3)
    assert ran.result.sandbox == "landlock"
    assert ran.result.guarantees == frozenset({"syscalls"})


async def test_a_stopped_command_gets_its_grace(workspace: Path) -> None:
    command = "trap 'echo cleaned; exit 3' TERM; echo ready; while :; do sleep 0.1; done"
    ran = await run(SANDBOX, workspace, command, timeout_ms=3_000)
    assert (ran.result.exit_code, ran.stdout) == (124, "ready\ncleaned\n")


async def test_an_allow_list_is_refused(workspace: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="allow-list"):
        await run(SANDBOX, workspace, "true", network=NetworkSettings("allow", ("a.example",)))


async def test_a_command_that_cannot_be_confined_does_not_start(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = LandlockSandbox(RUN_AS)
    assert (await sandbox.probe()).ok
    monkeypatch.setattr(landlock, "seccomp_filter", lambda **_: b"12345678")
    with pytest.raises(SandboxUnavailable, match="seccomp: Invalid argument"):
        await run(sandbox, workspace, "touch ran")
    assert not (workspace / "ran").exists()


async def test_a_kernel_without_landlock_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(landlock, "abi_version", lambda: 2)
    probe = await LandlockSandbox(RUN_AS).probe()
    assert (probe.ok, "Linux 6.2" in probe.remedy) == (False, True)
