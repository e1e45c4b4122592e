"""Checkpoints as archives: exported into a file or a stream, and imported into any task."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, cast

from anyio import to_thread
from msgspec.structs import replace

from perdure.errors import PerdureError, Refused
from perdure.ids import new_id
from perdure.store.shared.private_files import FILE
from perdure.tasks.checkpoints.archive import read_archive, write_archive
from perdure.tasks.checkpoints.budget import CheckpointLimits
from perdure.tasks.checkpoints.catalog import Checkpoints
from perdure.tasks.checkpoints.targets import (
    CheckpointRecord,
    CheckpointTarget,
    CheckpointTargets,
)
from perdure.tasks.files.place import cannot_write, make_workspace
from perdure.tasks.model.manifest import Manifest
from perdure.tasks.values import TaskRef, invalid

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class CheckpointTransfer:
    """Export and import of the checkpoints of tasks whose folders are here."""

    def __init__(
        self, targets: CheckpointTargets, checkpoints: Checkpoints, limits: CheckpointLimits
    ) -> None:
        self._targets = targets
        self._checkpoints = checkpoints
        self._limits = limits

    async def export(self, ref: TaskRef, checkpoint_id: str, path: Path) -> None:
        """Write a checkpoint into a new file; a failure leaves none. Raises Refused, Corrupt."""
        with new_file(path) as file:
            await self.write(ref, checkpoint_id, file)

    async def write(self, ref: TaskRef, checkpoint_id: str, file: IO[bytes]) -> None:
        """Write a checkpoint into an open file. Raises NotFound, Corrupt, OSError."""
        target = await self._targets.find(ref)
        manifest = await self._targets.manifest(target, checkpoint_id)
        await to_thread.run_sync(write_archive, file, manifest, target.manifests)

    async def open_archive(self, ref: TaskRef, checkpoint_id: str) -> IO[bytes]:
        """Return a checkpoint as an open file without a name. Raises NotFound, Corrupt."""
        target = await self._targets.find(ref)
        file = await to_thread.run_sync(self._unnamed_file, target)
        try:
            await self.write(ref, checkpoint_id, file)
        except BaseException as error:
            file.close()
            if isinstance(error, OSError):
                raise cannot_write(target.folder, error) from error
            raise
        return file

    @staticmethod
    def _unnamed_file(target: CheckpointTarget) -> IO[bytes]:
        try:
            make_workspace(target.folder)
            return cast("IO[bytes]", TemporaryFile(dir=target.folder))
        except OSError as error:
            raise cannot_write(target.folder, error) from error

    async def receive(self, ref: TaskRef, pieces: AsyncIterator[bytes]) -> CheckpointRecord:
        """Add a checkpoint that arrives in pieces, which are kept on disk meanwhile."""
        target = await self._targets.find(ref)
        with await to_thread.run_sync(self._unnamed_file, target) as file:
            async for piece in pieces:
                try:
                    await to_thread.run_sync(file.write, piece)
                except OSError as error:
                    raise cannot_write(target.folder, error) from error
            return await self.import_file(ref, file)

    async def import_file(self, ref: TaskRef, file: IO[bytes]) -> CheckpointRecord:
        """Add the checkpoint in an open file. Raises Refused; then nothing was added."""
        target = await self._targets.find(ref)
        marked = self._targets.mirror.marked(target.stream)
        async with self._targets.exclusive(target), marked:
            entries = await self._targets.entries_of(target.stream)
            at = max(self._targets.store.now(), entries[0].at + 1 if entries else 0)
            try:
                manifest, digest = await to_thread.run_sync(self._read_archive, target, file, at)
            except PerdureError:
                await self._checkpoints.collect(target.stream, target.manifests)
                raise
            checkpoint = CheckpointRecord.of(manifest, digest)
            await self._checkpoints.record_new(target, checkpoint)
            return checkpoint

    def _read_archive(
        self, target: CheckpointTarget, file: IO[bytes], at: int
    ) -> tuple[Manifest, str]:
        """Store an archive as a checkpoint of this task, under a new id."""
        try:
            target.manifests.create()
            manifest = read_archive(file, target.manifests, self._limits)
            files = tuple(replace(item, stat=None) for item in manifest.entries)
            own = replace(
                manifest,
                id=new_id("cp"),
                task_id=target.ref.task_id,
                at=at,
                entries=files,
                walked_ns=0,
            )
            return own, target.manifests.write(own)
        except OSError as error:
            raise cannot_write(target.folder, error) from error


def file_path(value: Any) -> Path:
    """Return the path of a file that a caller names. Raises Refused INVALID_REQUEST."""
    try:
        path = Path(value)
        if b"\0" not in os.fsencode(path):
            return path
    except (TypeError, UnicodeEncodeError):
        pass
    raise invalid("the path of a file must be text or a Path, without NUL and surrogates")


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Create a file that does not exist yet; a failure removes it. Raises Refused."""
    try:
        file = os.fdopen(os.open(path, _NEW, FILE), "wb")
    except FileExistsError:
        raise Refused(
            f"{path} exists already", code="FILE_EXISTS", hint="name another file"
        ) from None
    except OSError as error:
        raise _not_written(path, error) from error
    try:
        with file:
            yield file
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _not_written(path, error) from error
        raise


def _not_written(path: Path, error: OSError) -> Refused:
    return Refused(
        f"{path} cannot be written: {error.strerror or error}",
        code="FILE_NOT_WRITABLE",
        hint="name a file in a folder that exists, that you may write, and that has space",
    )


def open_file(path: Path) -> IO[bytes]:
    """Open a file to import. Raises Refused FILE_UNREADABLE."""
    try:
        return path.open("rb")
    except OSError as error:
        raise Refused(
            f"{path} cannot be read: {error.strerror}",
            code="FILE_UNREADABLE",
            hint="check the path",
        ) from error
