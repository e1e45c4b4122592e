"""The file tree that a command sees: system folders read-only, its workspace, nothing else."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from perdure.sandbox.ro_paths import WORKSPACE, ReadOnlyPath

SYSTEM_LINKS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC: Final = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime"),
    *("ssl/certs", "ssl/openssl.cnf", "ca-certificates", "pki/tls/certs", "pki/ca-trust/extracted"),
)
OTHER: Final = ("/nix/store",)
FILES: Final[Mapping[str, str]] = {
    "/etc/passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\n"
    f"task:x:1000:1000:task:{WORKSPACE}:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "/etc/group": "root:x:0:\ntask:x:1000:\nnogroup:x:65534:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "/etc/hosts": "127.0.0.1 localhost task\n::1 localhost\n",
}


@cache
def system_options() -> tuple[str, ...]:
    """Return the options of bwrap for the programs and libraries of the host."""
    options = ["--ro-bind", "/usr", "/usr"]
    for name in SYSTEM_LINKS:
        path = Path("/", name)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    for path in (*(Path("/etc", name) for name in ETC), *map(Path, OTHER)):
        if path.exists():
            options += ["--ro-bind", str(path.resolve()), str(path)]
    return tuple(options)


def tree_options(tmp_bytes: int) -> list[str]:
    """Return the options for /proc, /dev and /tmp. What cannot be limited in size is read-only."""
    size = ["--size", str(tmp_bytes)]
    return [
        *("--proc", "/proc", "--remount-ro", "/proc"),
        *("--dev", "/dev", *size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),  # noqa: S108
        *(*size, "--tmpfs", "/tmp"),  # noqa: S108 - inside the sandbox
        *("--dir", "/run", "--dir", "/var", "--symlink", "/tmp", "/var/tmp"),  # noqa: S108
    ]


def workspace_options(workspace: Path | None, ro_paths: Sequence[ReadOnlyPath]) -> list[str]:
    """Return the options for the workspace and the read-only paths; the root is closed last."""
    options: list[str] = []
    for path in ro_paths:
        for target in dict.fromkeys((str(path.target), str(path.source))):
            options += ["--ro-bind", str(path.source), target]
    place = ("--tmpfs", WORKSPACE) if workspace is None else ("--bind", str(workspace), WORKSPACE)
    return [*options, *place, "--chdir", WORKSPACE, "--remount-ro", "/"]
