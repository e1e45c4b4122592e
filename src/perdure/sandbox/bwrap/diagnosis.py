"""Reasons why bwrap does not work on a host, and what the operator can do about each."""

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from perdure.sandbox.base import RunAs
from perdure.sandbox.probe import host_obstacle
from perdure.sandbox.users import Obstacle, setpriv_program

INSTALL: Final = (
    "install bubblewrap 0.8 or newer: apt install bubblewrap (Debian, Ubuntu), dnf install "
    "bubblewrap (Fedora), apk add bubblewrap (Alpine)"
)
CONTAINER: Final = (
    "start the container with --security-opt seccomp=unconfined --security-opt "
    "apparmor=unconfined --security-opt systempaths=unconfined (Docker, Podman), or with "
    "seccompProfile Unconfined and procMount Unmasked (Kubernetes); docs/sandbox.md says what a "
    "narrower profile must allow"
)
CONTAINER_MARKS: Final = (Path("/.dockerenv"), Path("/run/.containerenv"))


def find_obstacle(run_as: RunAs | None) -> Obstacle | None:
    """Return why bwrap cannot be tried at all; None if it can."""
    if sys.platform != "linux":
        return (
            f"the sandbox bwrap needs Linux, and this is {_system_name()}",
            "run perdure in a Linux virtual machine or container; docs/sandbox.md says how",
        )
    program = bwrap_program()
    if program is None:
        return "the program bwrap is not installed, or not on the PATH", INSTALL
    if Path(program).stat().st_mode & 0o4000:
        return f"{program} is setuid, which makes mistakes in it mistakes of root", (
            f"remove the bit: chmod u-s {program}"
        )
    if os.geteuid() == 0 and setpriv_program() is None:
        return "the program setpriv is not installed", "install util-linux"
    return host_obstacle(run_as)


def bwrap_program() -> str | None:
    """Return the path of bwrap on our own PATH."""
    return shutil.which("bwrap")


def explain(text: str, user: str) -> Obstacle:
    """Return the reason and the remedy for an error message of bwrap."""
    line = next((line for line in text.splitlines() if line.strip()), "bwrap ended without a word")
    for pattern, diagnose in _CASES:
        if match := re.search(pattern, text):
            return diagnose(match, user)
    return f"bwrap failed: {line.removeprefix('bwrap: ')}", "see docs/sandbox.md"


def _version(_: re.Match[str], __: str) -> Obstacle:
    return "bwrap is older than 0.8", INSTALL


def _exhausted(_: re.Match[str], __: str) -> Obstacle:
    return "the limit of namespaces on this host is used up or 0", (
        "raise it: sysctl -w user.max_user_namespaces=15000 (docs/sandbox.md)"
    )


def _masked_proc(_: re.Match[str], __: str) -> Obstacle:
    return "the container masks parts of /proc, so that a new /proc cannot be mounted", CONTAINER


def _app_armor(_: re.Match[str], __: str) -> Obstacle:
    return "AppArmor restricts user namespaces (Ubuntu 23.10 and newer)", (
        "load the profile for bwrap: apt install apparmor-profiles && ln -s "
        "/usr/share/apparmor/extra-profiles/bwrap-userns-restrict /etc/apparmor.d/ && "
        "apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict"
    )


def _forbidden(_: re.Match[str], __: str) -> Obstacle:
    if in_container():
        return "the container's seccomp profile forbids user namespaces", CONTAINER
    return "this host forbids user namespaces to unprivileged users", (
        "allow them: sysctl -w kernel.unprivileged_userns_clone=1 (Debian 10), or load the "
        "AppArmor profile bwrap-userns-restrict (Ubuntu); docs/sandbox.md"
    )


def _unreachable(match: re.Match[str], user: str) -> Obstacle:
    return f"{user} cannot enter {match['path']}", (
        "give it and the folders above it the mode o+x, or let tasks.root name a folder such as "
        "/var/lib/perdure"
    )


def _missing(match: re.Match[str], _: str) -> Obstacle:
    return f"{match['path']} does not exist", "create the folder, or correct tasks.ro_paths"


def _seccomp(_: re.Match[str], __: str) -> Obstacle:
    return "the kernel does not accept a seccomp filter", "use a kernel with CONFIG_SECCOMP_FILTER"


_CASES: Final[tuple[tuple[str, Callable[[re.Match[str], str], Obstacle]], ...]] = (
    (r"Unknown option --(disable-userns|size|json-status-fd)", _version),
    (r"ENOSPC|max_\*_namespaces|No space left on device", _exhausted),
    (r"Can't mount proc", _masked_proc),
    (r"uid map: Permission denied|RTM_NEWADDR|gid map: Permission denied", _app_armor),
    (
        r"(find source path|bind mount|open) (?P<path>/\S+?)( on \S+)?: Permission denied",
        _unreachable,
    ),
    (r"(find source path|bind mount) (?P<path>/\S+?)( on \S+)?: No such file", _missing),
    (r"SECCOMP", _seccomp),
    (r"[Cc]reating new namespace failed|No permissions to creat|slave: Permission", _forbidden),
)


def in_container(marks: tuple[Path, ...] = CONTAINER_MARKS) -> bool:
    """Return whether this process seems to run in a container."""
    return any(mark.exists() for mark in marks) or "KUBERNETES_SERVICE_HOST" in os.environ


def _system_name() -> str:
    return {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
