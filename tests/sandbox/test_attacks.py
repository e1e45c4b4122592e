"""Attacks from inside a sandbox, each with a run in which the same attack succeeds.

An attack that a plain process of the same user carries out must succeed without a sandbox. Any
other must succeed when the part of the sandbox that stops it is left out, or it is listed in
NEVER_SEEN_TO_SUCCEED with the reason.
"""

import asyncio
import json
import os
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from tests.sandbox.decoys import PROGRAM, Decoys, decoys
from tests.support.sandboxes import RUN_AS, require_bwrap, run

from perdure.sandbox.base import ExecLimits, Sandbox
from perdure.sandbox.bwrap import BwrapSandbox, command_line
from perdure.sandbox.bwrap import run as bwrap_run
from perdure.sandbox.none import NoSandbox
from perdure.sandbox.process import ProcessSpec
from perdure.sandbox.ro_paths import resolve_ro_paths
from perdure.sandbox.seccomp import ALLOW, RETURN

Reports = dict[str, dict[str, Any]]
LeaveOut = Callable[[pytest.MonkeyPatch, Decoys], None]

LIMITS: Final = ExecLimits(
    file_bytes=16 * 1024**2, tmp_bytes=4 * 1024**2, address_space_bytes=2 * 1024**3
)
ATTACKS: Final = re.findall(r"^@attack\ndef (\w+)", PROGRAM.read_text(), re.MULTILINE)

BREACHES_WITHOUT_SANDBOX: Final = {
    *("see_shadow", "read_host_file", "ask_for_existence", "escape_by_path", "open_by_handle"),
    *("read_sibling_workspace", "write_sibling_workspace", "delete_in_sibling_workspace"),
    *("write_outside", "follow_link_out", "link_outside_file", "change_mode_outside"),
    *("read_environments", "read_memory_of_host_process", "signal_host_process"),
    *("use_sysv_memory", "create_user_namespace", "gain_privileges", "keep_capabilities"),
    *("connect_tcp", "send_udp", "connect_abstract_socket", "connect_path_socket"),
    *("open_socket_family", "call_keyctl", "call_bpf", "call_perf", "push_terminal_input"),
    *("call_userfaultfd", "fill_memory_disks", "fork_bomb"),
}
NEVER_SEEN_TO_SUCCEED: Final = {
    "make_device": "only root of the host can make one, and no sandbox here runs as root",
    "open_host_setting": "the modes of the files stop every user but root as well",
    "open_terminal": "a command never has a terminal: it is started in a session of its own",
    "call_newer": "no kernel has these calls yet",
    "read_kernel_log": "most hosts refuse it to users",
}


def no_seccomp(patch: pytest.MonkeyPatch, _: Decoys) -> None:
    everything = struct.pack("=HBBI", RETURN, 0, 0, ALLOW)
    patch.setattr(command_line, "seccomp_filter", lambda: everything)


def no_read_only_mounts(patch: pytest.MonkeyPatch, _: Decoys) -> None:
    for name in ("tree_options", "workspace_options"):
        original = getattr(command_line, name)
        patch.setattr(
            command_line,
            name,
            lambda *words, original=original: (
                re.sub(r"--remount-ro\n[^\n]+\n?", "", "\n".join(original(*words)))
                .rstrip("\n")
                .split("\n")
            ),
        )


def no_limits(patch: pytest.MonkeyPatch, _: Decoys) -> None:
    patch.setattr(command_line, "limit_arguments", lambda *_, **__: ())


def capabilities(patch: pytest.MonkeyPatch, decoy: Decoys) -> None:
    no_seccomp(patch, decoy)
    # Otherwise bwrap enters a second user namespace, which does not own the mounts.
    words = [word for word in command_line.NAMESPACES if word != "--disable-userns"]
    words = ["0" if word == "1000" else word for word in words]
    words[words.index("--cap-drop")] = "--cap-add"
    patch.setattr(command_line, "NAMESPACES", tuple(words))


def leaked_descriptor(patch: pytest.MonkeyPatch, decoy: Decoys) -> None:
    descriptor = os.open(decoy.targets["file"], os.O_RDONLY)

    def leak(*words: Any) -> ProcessSpec:
        return replace(spec := ProcessSpec(*words), pass_fds=[*spec.pass_fds, descriptor])

    patch.setattr(bwrap_run, "ProcessSpec", leak)


PARTS: Final[dict[LeaveOut, set[str]]] = {
    no_seccomp: {
        *("open_socket_family", "load_protocol_module", "call_bpf", "call_perf", "call_keyctl"),
        *("call_userfaultfd", "call_io_uring", "call_32_bit", "call_x32", "push_terminal_input"),
        *("control_first_process", "open_by_handle"),
    },
    no_read_only_mounts: {"open_own_setting", "write_outside", "fill_memory_disks"},
    no_limits: {
        *("fork_bomb", "raise_limits", "open_many_files", "map_memory", "write_large_file"),
    },
    capabilities: {"mount_file_system", "set_host_name", "keep_capabilities"},
    leaked_descriptor: {"use_inherited_descriptor"},
}
# What a kernel may not offer to anybody; then the attack cannot succeed anywhere.
MAY_BE_MISSING: Final = {"call_32_bit", "call_io_uring", "load_protocol_module"}


@pytest.fixture(scope="module")
def decoy() -> Iterator[Decoys]:
    require_bwrap()
    with decoys() as planted:
        yield planted


def attack(sandbox: Sandbox, decoy: Decoys, only: list[str] | None = None) -> Reports:
    """Run attacks, many per sandbox, and return what each one reports."""
    decoy.arm(only)
    command = "exec python3 attack_program.py targets.json"
    ran = asyncio.run(run(sandbox, decoy.workspace, command, limits=LIMITS, timeout_ms=120_000))
    assert (ran.result.exit_code, ran.stderr) == (0, "")
    assert ran.result.sandbox == sandbox.name
    reports = [json.loads(line) for line in ran.stdout.splitlines()]
    return {report["name"]: report for report in reports}


def confined(decoy: Decoys) -> BwrapSandbox:
    return BwrapSandbox(RUN_AS, ro_paths=resolve_ro_paths([decoy.folder / "programs"]))


@pytest.fixture(scope="module")
def under_bwrap(decoy: Decoys) -> Reports:
    return attack(confined(decoy), decoy)


@pytest.fixture(scope="module")
def without_sandbox(decoy: Decoys) -> Reports:
    return attack(NoSandbox(RUN_AS), decoy, sorted(BREACHES_WITHOUT_SANDBOX))


@pytest.mark.parametrize("name", ATTACKS)
def test_bwrap_contains_the_attack(under_bwrap: Reports, name: str) -> None:
    """S3.7"""
    report = under_bwrap[name]
    assert report["ran"]
    assert report.get("stopped"), report


@pytest.mark.parametrize("name", sorted(BREACHES_WITHOUT_SANDBOX))
def test_without_a_sandbox_the_attack_succeeds(without_sandbox: Reports, name: str) -> None:
    assert without_sandbox[name].get("breach"), without_sandbox[name]


@pytest.mark.parametrize("leave_out", PARTS, ids=lambda part: part.__name__)
def test_without_the_part_that_stops_it_the_attack_succeeds(
    decoy: Decoys, monkeypatch: pytest.MonkeyPatch, leave_out: LeaveOut
) -> None:
    leave_out(monkeypatch, decoy)
    reports = attack(confined(decoy), decoy, sorted(PARTS[leave_out]))
    stopped = {name for name, report in reports.items() if not report.get("breach")}
    assert stopped <= MAY_BE_MISSING, [reports[name] for name in stopped]


def test_every_attack_was_seen_to_succeed_or_is_listed_with_the_reason() -> None:
    proven = BREACHES_WITHOUT_SANDBOX.union(*PARTS.values())
    assert set(ATTACKS) == proven | set(NEVER_SEEN_TO_SUCCEED)
    assert not proven & set(NEVER_SEEN_TO_SUCCEED)


def test_a_setuid_file_that_a_command_leaves_belongs_to_its_own_user(decoy: Decoys) -> None:
    command = "cp /usr/bin/id own-id && chmod 4755 own-id && echo done"
    ran = asyncio.run(run(confined(decoy), decoy.workspace, command))
    assert ran.stdout == "done\n"
    assert Path(decoy.workspace, "own-id").stat().st_uid == (RUN_AS.uid if RUN_AS else os.getuid())
