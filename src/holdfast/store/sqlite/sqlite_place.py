"""Where a database file lies: which file system, and whether a write-ahead log works there."""

import os
from pathlib import Path
from typing import Final, Literal

from holdfast.errors import StoreError

MOUNTS: Final = Path("/proc/self/mounts")

# A write-ahead log is shared memory: it cannot span machines, and such a file system does.
# fmt: off
_NETWORK: Final = frozenset({
    "nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "ceph", "glusterfs", "lustre",
    "beegfs", "gpfs", "pvfs2", "orangefs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph",
    "fuse.davfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.juicefs", "fuse.blobfuse",
    "fuse.blobfuse2",
})
# Folders of the host's, seen from inside a virtual machine: locks and shared memory often fail.
_DOUBTFUL: Final = frozenset({"9p", "virtiofs", "vboxsf", "fuse.vmhgfs-fuse", "fuse.grpcfuse"})
# fmt: on

Place = Literal["local", "doubtful", "network"]


def file_system(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The type of the file system under a path; None where the system does not say."""
    try:
        table = mounts.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    where = os.path.realpath(path)
    best, found = -1, None
    for row in table.splitlines():
        _, point, kind, *_ = [*row.split(" "), "", "", ""]
        point = _plain(point)
        # The last one wins among equals: it lies over the others.
        if len(point) >= best and _is_under(where, point):
            best, found = len(point), kind
    return found


def judged(kind: str | None) -> Place:
    """What a file system of that type means for a database."""
    if kind in _NETWORK:
        return "network"
    return "doubtful" if kind in _DOUBTFUL else "local"


def check_file_system(path: Path, mounts: Path = MOUNTS) -> None:
    """Raise StoreError where a write-ahead log cannot work."""
    kind = file_system(path, mounts)
    if judged(kind) == "network":
        raise StoreError(
            f"{path} is on a network file system ({kind}), where SQLite's write-ahead log "
            "does not work",
            code="NETWORK_FILE_SYSTEM",
            hint="put the database on a local disk",
        )


def _plain(point: str) -> str:
    """A mount point as a path: spaces and the like are written as octal numbers there."""
    for mark, letter in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        point = point.replace(mark, letter)
    return point


def _is_under(path: str, point: str) -> bool:
    return bool(point) and (point in ("/", path) or path.startswith(f"{point}/"))
