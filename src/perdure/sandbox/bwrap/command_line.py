"""The command line of bwrap. All options go through a descriptor, out of sight of `ps`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from perdure.errors import Refused
from perdure.sandbox.base import RUN_ID_VARIABLE, ExecSpec
from perdure.sandbox.bwrap.layout import (
    FILES,
    system_options,
    tree_options,
    workspace_options,
)
from perdure.sandbox.bwrap.listener import PROXY_ENVIRONMENT
from perdure.sandbox.process import Inheritance
from perdure.sandbox.rlimits import PATH, limit_arguments
from perdure.sandbox.ro_paths import WORKSPACE, ReadOnlyPath
from perdure.sandbox.seccomp import seccomp_filter

NAMESPACES: Final = (
    *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
    *("--uid", "1000", "--gid", "1000", "--hostname", "task", "--clearenv"),
)
ENVIRONMENT: Final = {
    "PATH": PATH,
    "HOME": WORKSPACE,  # so that the caches of pip and npm survive a command
    "USER": "task",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "TMPDIR": "/tmp",  # noqa: S108 - inside the sandbox
}
NSSWITCH_HOST: Final = "passwd: files\ngroup: files\nhosts: files dns\n"
HOST_NETWORK_FILES: Final = ("/etc/resolv.conf", "/etc/hosts", "/etc/services")


def command_line(
    program: str,
    spec: ExecSpec,
    workspace: Path | None,
    ro_paths: Sequence[ReadOnlyPath],
    inheritance: Inheritance,
    pipes: Sequence[str],
) -> list[str]:
    """Return the argv of bwrap; `pipes` are the options for its status and its start."""
    options = [
        *NAMESPACES,
        *_network_options(spec, inheritance),
        *_environment_options(spec),
        *tree_options(spec.limits.tmp_bytes),
        *workspace_options(workspace, ro_paths),
        *("--seccomp", inheritance.content(seccomp_filter() or b"")),
        *pipes,
    ]
    if any("\0" in option for option in options):
        raise Refused(
            "a variable of the command's environment has a NUL byte",
            code="EXECUTION_FAILED",
            hint="remove it from tasks.env",
        )
    arguments = b"".join(os.fsencode(option) + b"\0" for option in options)
    limits = limit_arguments(spec.limits, processes=True)
    return [program, "--args", inheritance.content(arguments), "--", *limits, *spec.argv]


def bwrap_environment(run_id: str) -> dict[str, str]:
    """Return the environment of bwrap itself: the mark by which `sweep` recognizes it."""
    return {"PATH": PATH, RUN_ID_VARIABLE: run_id}


def _network_options(spec: ExecSpec, inheritance: Inheritance) -> list[str]:
    """Return the options for the network and for the files that describe host and users."""
    host = spec.network.mode == "host"
    options = [] if host else ["--unshare-net"]
    options += system_options()
    files = dict(FILES)
    if host:
        for name in HOST_NETWORK_FILES:
            if Path(name).exists():
                files.pop(name, None)
                options += ["--ro-bind", str(Path(name).resolve()), name]
        files["/etc/nsswitch.conf"] = NSSWITCH_HOST
    for name, text in files.items():
        options += ["--ro-bind-data", inheritance.content(text.encode()), name]
    return options


def _environment_options(spec: ExecSpec) -> list[str]:
    proxy = PROXY_ENVIRONMENT if spec.network.mode == "allow" else {}
    options: list[str] = []
    for name, value in {**ENVIRONMENT, **spec.env, **proxy}.items():
        options += ["--setenv", name, value]
    return options
