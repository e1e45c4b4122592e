"""Manifest files of a task's checkpoints, and the objects that they refer to."""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from perdure.errors import Corrupt
from perdure.store.shared.private_files import FILE, make_folder
from perdure.tasks.checkpoints.objects import ObjectStore
from perdure.tasks.checkpoints.paths import sync_file_system
from perdure.tasks.files.place import CHECKPOINTS
from perdure.tasks.model import manifest as manifests
from perdure.tasks.model.manifest import Manifest
from perdure.tasks.model.state_file import TaskState, parse_state

_NEW: Final = ".new"  # end of the name of a manifest that is not complete
CHUNK: Final = 64 * 1024  # bytes of a log per object: the objects of its beginning stay the same
_MAX_STATE: Final = 128 * 2**20  # bytes of a state.json that are read into memory
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class ManifestFolder:
    """The folder `checkpoints` of one task."""

    def __init__(self, task_folder: Path) -> None:
        self.folder = task_folder / CHECKPOINTS
        self.objects = ObjectStore(self.folder / "objects")

    def create(self) -> None:
        """Create the folder."""
        make_folder(self.folder / "objects")

    def path(self, checkpoint_id: str) -> Path:
        """Return the file of a manifest."""
        return self.folder / f"{checkpoint_id}.json"

    def write(self, manifest: Manifest) -> str:
        """Write a manifest after its objects, both durable; return its digest."""
        content = manifests.encode(manifest)
        temporary = self.folder / f".{manifest.id}{_NEW}"
        with os.fdopen(os.open(temporary, _WRITE, FILE), "wb") as file:
            file.write(content)
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync_file_system(fd)
            temporary.rename(self.path(manifest.id))
            os.fsync(fd)
        finally:
            os.close(fd)
        return manifests.digest_of(content)

    def read(self, checkpoint_id: str, digest: str | None = None) -> Manifest:
        """Return a manifest. Raises Corrupt, also if it is not the one that was recorded."""
        path = self.path(checkpoint_id)
        try:
            return manifests.decode(path.read_bytes(), digest)
        except (OSError, Corrupt) as error:
            reason = error.message if isinstance(error, Corrupt) else error.strerror
            raise Corrupt(
                f"the manifest of checkpoint {checkpoint_id} cannot be used: {reason}",
                code="CHECKPOINT_DAMAGED",
                hint="restore another checkpoint, and delete this one",
            ) from error

    def state(self, digest: str) -> TaskState:
        """Return the state that a manifest names. Raises Corrupt, Refused CHECKPOINT_TOO_LARGE."""
        return parse_state(self.objects.read(digest, _MAX_STATE))

    def remove(self, checkpoint_id: str) -> None:
        """Remove a manifest."""
        self.path(checkpoint_id).unlink(missing_ok=True)

    def has_left_files(self) -> bool:
        """Return True if a process died while it wrote a manifest or an object."""
        return any(self.folder.glob(f".*{_NEW}")) or self.objects.has_left_files()

    def collect(self, kept: Collection[str]) -> int:
        """Remove manifests that are not recorded, then unreferenced objects; return these.

        If a manifest that must be kept cannot be read, no object is removed.
        """
        for path in self.folder.glob("*.json"):
            if path.stem not in kept:
                path.unlink(missing_ok=True)
        for path in self.folder.glob(f".*{_NEW}"):
            with suppress(OSError):
                path.unlink()
        try:
            referenced = {digest for name in kept for digest in self.read(name).digests()}
        except Corrupt:
            return 0
        return self.objects.collect(referenced)

    def put_chunks(self, data: bytes) -> tuple[str, ...]:
        """Store text that only grows, in pieces of a fixed size."""
        return tuple(
            self.objects.put(data[start : start + CHUNK]) for start in range(0, len(data), CHUNK)
        )
