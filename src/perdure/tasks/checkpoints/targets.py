"""Tasks whose checkpoints can be changed here: found, locked, and committed to."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from anyio import to_thread

from perdure.core.session.naming import check_id
from perdure.errors import Conflict, NotFound, Refused
from perdure.store.base import Entry, Gone, NoStream, Put, Store
from perdure.store.shared.private_files import make_folder
from perdure.tasks.checkpoints.manifests import ManifestFolder
from perdure.tasks.checkpoints.trees import WorkspaceTrees
from perdure.tasks.entries import find_task, live_stream, missing_task
from perdure.tasks.files.folder_lock import FolderLocked, folder_lock
from perdure.tasks.files.mirror import TaskMirror
from perdure.tasks.files.place import EXECUTIONS, cannot_write, make_workspace
from perdure.tasks.model import record
from perdure.tasks.model.executions import SLOT, decode_slot
from perdure.tasks.model.facts import FactType, TaskFact
from perdure.tasks.model.manifest import Manifest
from perdure.tasks.model.record import TaskRecord
from perdure.tasks.model.state_file import TaskState
from perdure.tasks.values import TaskRef, task_not_found
from perdure.tasks.writer import TaskCommit, TaskWriter


class CheckpointRecord(msgspec.Struct, frozen=True):
    """A checkpoint as its entry stores it."""

    id: str
    timestamp: str
    description: str
    digest: str  # of its manifest
    files: int
    size: int
    at: int

    @classmethod
    def of(cls, manifest: Manifest, digest: str) -> "CheckpointRecord":
        """Return the record of a checkpoint with this manifest."""
        count, size = manifest.file_count, manifest.total_bytes
        texts = manifest.timestamp, manifest.description
        return cls(manifest.id, *texts, digest, count, size, manifest.at)


@dataclass(frozen=True, slots=True)
class CheckpointTarget:
    """A task whose folder is here."""

    ref: TaskRef
    stream: str
    row: TaskRecord | None
    folder: Path
    manifests: ManifestFolder


class CheckpointTargets:
    """Access to the tasks whose folders are here, for everything that handles checkpoints."""

    def __init__(
        self,
        store: Store,
        writer: TaskWriter,
        mirror: TaskMirror,
        settle: Callable[[str], Awaitable[bool]],
    ) -> None:
        self.store = store
        self.mirror = mirror
        self._writer = writer
        self._settle = settle  # the command of a process that has died

    async def find(self, ref: TaskRef) -> CheckpointTarget:
        """Return the task if its folder is here. Raises NotFound, Refused TASK_ELSEWHERE."""
        try:
            entry = await find_task(self.store, ref)
            stream, exists = (entry.stream, True) if entry else await live_stream(self.store, ref)
        except Refused:
            raise task_not_found(ref.task_id) from None
        if not exists:
            raise await missing_task(self.store, ref)
        row = None if entry is None else entry.record
        if row is not None:
            self.mirror.place.check_here(row)
        folder = self.mirror.place.folder(stream)
        return CheckpointTarget(ref, stream, row, folder, ManifestFolder(folder))

    def trees(self, folder: Path) -> WorkspaceTrees:
        """Return the trees in the folder of a task."""
        return WorkspaceTrees(folder, self.mirror.discard)

    @asynccontextmanager
    async def exclusive(self, target: CheckpointTarget) -> AsyncIterator[None]:
        """Let one caller at a time change the checkpoints of a task, in any process here."""
        lock = folder_lock(target.manifests.folder)

        def enter() -> None:
            try:
                make_workspace(target.folder)
                target.manifests.create()
                lock.__enter__()
            except OSError as error:
                raise cannot_write(target.folder, error) from error

        await to_thread.run_sync(enter)
        try:
            yield
        finally:
            lock.__exit__(None, None, None)

    @asynccontextmanager
    async def quiet(self, target: CheckpointTarget) -> AsyncIterator[None]:
        """Keep commands out of the workspace. Raises Conflict TASK_BUSY while one runs."""
        folder = target.folder / EXECUTIONS
        with ExitStack() as stack:
            try:
                make_workspace(target.folder)
                make_folder(folder)
                stack.enter_context(folder_lock(folder, 0))
            except FolderLocked:
                raise command_runs(target.ref.task_id) from None
            except OSError as error:
                raise cannot_write(target.folder, error) from error
            await self._check_free(target)
            yield

    async def _check_free(self, target: CheckpointTarget) -> None:
        """Settle a command whose process has died: it would hold the lock if it were alive."""
        entry = await self.store.get(SLOT, target.stream)
        if entry is None or decode_slot(entry.data).is_free:
            return
        if not await self._settle(target.stream):
            raise command_runs(target.ref.task_id)

    async def entries_of(self, stream: str) -> Sequence[CheckpointRecord]:
        """Return the checkpoints of a task, newest first."""
        entries = await self.store.entries_of(stream)
        kept = sorted((e for e in entries if e.kind == record.CHECKPOINT), key=lambda e: e.key)
        return [msgspec.json.decode(entry.data, type=CheckpointRecord) for entry in kept]

    async def index_entry(self, target: CheckpointTarget, checkpoint_id: str) -> Entry:
        check_id(checkpoint_id, "checkpoint id")
        for entry in await self.store.entries_of(target.stream):
            if entry.kind == record.CHECKPOINT and entry.key.endswith(f"|{checkpoint_id}"):
                return entry
        raise NotFound(
            f"task {target.ref.task_id} has no checkpoint {checkpoint_id!r}",
            code="CHECKPOINT_NOT_FOUND",
            hint=f"perdure tasks checkpoints {target.ref.task_id}",
        )

    async def entry(self, target: CheckpointTarget, checkpoint_id: str) -> CheckpointRecord:
        entry = await self.index_entry(target, checkpoint_id)
        return msgspec.json.decode(entry.data, type=CheckpointRecord)

    async def manifest(self, target: CheckpointTarget, checkpoint_id: str) -> Manifest:
        entry = await self.entry(target, checkpoint_id)
        return await to_thread.run_sync(target.manifests.read, entry.id, entry.digest)

    async def commit(
        self,
        target: CheckpointTarget,
        facts: Sequence[tuple[FactType, TaskFact]],
        *,
        puts: Sequence[Put] = (),
        state: tuple[TaskState, int] | None = None,
    ) -> None:
        """Commit to a task's stream. Raises NotFound, VersionMoved."""
        commit = TaskCommit(
            target.stream,
            target.ref.tenant,
            facts,
            state=state,
            puts=puts,
            home=target.row,
        )
        try:
            await self._writer.commit(commit)
        except (Gone, NoStream):
            raise task_not_found(target.ref.task_id) from None


def command_runs(task_id: str) -> Conflict:
    """Return the error for a workspace that a command is using."""
    return Conflict(
        f"task {task_id} is busy: a command runs in its workspace",
        code="TASK_BUSY",
        hint=f"wait for its end, or cancel it: perdure tasks executions {task_id}",
    )
