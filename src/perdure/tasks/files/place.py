"""Place of the folders of tasks: one folder per task below a root, on one machine."""

import hashlib
import logging
import os
import shutil
import socket
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from perdure.errors import ConfigError, Refused
from perdure.ids import secret_id
from perdure.store.shared.names import file_name
from perdure.store.shared.private_files import FOLDER, make_folder
from perdure.tasks.model.record import TaskRecord, generation_of, parse_task_stream

logger = logging.getLogger("perdure")

MARKER: Final = ".perdure"  # the file that names a root
DIRTY: Final = ".dirty"  # folder of the marks of writes that have begun
TRASH: Final = ".trash"  # folder of what is being removed
WORKSPACE: Final = "workspace"
CHECKPOINTS: Final = "checkpoints"
EXECUTIONS: Final = "executions"
# Of the folders above a workspace: root runs commands as another user, who must get through.
PASSAGE: Final = 0o711 if os.geteuid() == 0 else FOLDER
REPLACED: Final = "replaced"  # begins the names of trees that a restore has moved aside
_LONGEST: Final = 180  # bytes of a folder's name; marks append to it


class RootMarker(msgspec.Struct, frozen=True):
    """Content of the marker file: the id that the records of tasks name."""

    id: str
    host: str


@lru_cache(maxsize=1024)  # several times for each command
def folder_name(stream: str) -> str:
    """Return the name of the folder of a task's stream."""
    tenant, task_id = parse_task_stream(stream) or ("", stream)
    name = file_name(task_id)
    if tenant:
        name = f"{file_name(tenant)}@{name}"
    if len(name) > _LONGEST:
        digest = hashlib.sha256(f"{tenant}/{task_id}".encode()).hexdigest()[:32]
        name = f"{name[:100]}~{digest}"
    generation = generation_of(stream)
    return name if generation == 1 else f"{name}#{generation}"


class TaskPlace:
    """Root of the folders of tasks; None if the runtime has none."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root
        self._marker: RootMarker | None = None

    @property
    def marker(self) -> RootMarker | None:
        """The marker of the root; None if the root does not exist, or is not one."""
        if self._marker is None and self.root is not None:
            with suppress(OSError, msgspec.MsgspecError):
                data = (self.root / MARKER).read_bytes()
                self._marker = msgspec.json.decode(data, type=RootMarker)
        return self._marker

    def create(self) -> RootMarker:
        """Return the marker of the root, which is created if it does not exist.

        Raises ConfigError if there is no root, Refused if it cannot be written.
        """
        if self.root is None:
            raise ConfigError(
                "tasks have files, and no folder for them is configured",
                code="TASKS_ROOT_REQUIRED",
                hint='set tasks.root in YAML, or pass Runtime(tasks={"root": "./tasks"})',
            )
        marker = self.marker
        if marker is not None:
            return marker
        try:
            make_folder(self.root, PASSAGE)
            self._write_marker(self.root)
        except OSError as error:
            raise cannot_write(self.root, error) from error
        marker = self.marker
        if marker is None:
            logger.warning("%s cannot be read", self.root / MARKER)
            raise Refused(
                f"the file {MARKER} in the folder of tasks cannot be read",
                code="TASKS_ROOT_INVALID",
                hint="name another folder as tasks.root",
            )
        return marker

    def _write_marker(self, root: Path) -> None:
        content = RootMarker(secret_id("root"), socket.gethostname())
        fd, name = tempfile.mkstemp(dir=root, prefix=MARKER)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(msgspec.json.encode(content))
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):  # another process was faster
                os.link(name, root / MARKER)
        finally:
            os.unlink(name)  # noqa: PTH108 - a name of mkstemp

    def has(self, record: TaskRecord) -> bool:
        """Return True if the task's folder is below this root."""
        marker = self.marker
        return marker is not None and marker.id == record.root

    def folder(self, stream: str) -> Path:
        """Return the folder of a task. Raises ConfigError if there is no root."""
        if self.root is None:
            self.create()
        return Path(self.root or ".") / folder_name(stream)

    def check_here(self, record: TaskRecord) -> None:
        """Check that the task's folder is here. Raises Refused TASK_ELSEWHERE."""
        if not self.has(record):
            host = record.host or "no machine"
            raise Refused(
                f"the files of task {record.id} are on {host}",
                code="TASK_ELSEWHERE",
                hint=f"run this on {host}, with the tasks.root that the task was created in",
                details={"host": record.host},
            )


def make_workspace(folder: Path) -> None:
    """Create the folder of a task with its workspace, for this user only. Raises OSError."""
    make_folder(folder, PASSAGE)
    make_folder(folder / WORKSPACE)


def cannot_write(path: Path, error: OSError) -> Refused:
    """Return the error for a file or folder below the root that cannot be written.

    It names the last part only, since callers elsewhere need not know the disk of this machine;
    the log has the whole path.
    """
    reason = error.strerror or error
    logger.warning("%s cannot be written: %s", path, reason)
    return Refused(
        f"{path.name!a} in the folder of tasks cannot be written: {reason}",
        code="FOLDER_NOT_WRITABLE",
        hint="make it writable for this user, free some space, or set another tasks.root",
    )


def free_bytes(path: Path) -> int:
    """Return the free space of the file system of a folder that exists."""
    return shutil.disk_usage(path).free
