"""Index entries of tasks: found, decoded and put."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from perdure.core.session.naming import MAX_ID
from perdure.core.tasks import locks, record
from perdure.core.tasks.record import TaskRecord
from perdure.errors import Corrupt, Refused
from perdure.runtime.tasks.locks.values import LockInfo
from perdure.runtime.tasks.values import TaskRef, check_task_id, task_not_found
from perdure.store.base import Check, Entry, Gone, NoStream, Put, Store, VersionMoved, Write


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """A task's row, with the stream and the version of its entries."""

    record: TaskRecord
    stream: str
    version: int

    @classmethod
    def decode(cls, entry: Entry) -> "TaskEntry":
        """Decode an index entry. Raises Corrupt."""
        return cls(record.decode(entry.data), entry.stream, entry.version)

    def changed(self, now: int, **changes: object) -> "TaskEntry":
        """Return the next version of the row; its instant always increases."""
        updated_at = max(now, self.record.updated_at + 1)
        row = replace(self.record, updated_at=updated_at, **changes)
        return TaskEntry(row, self.stream, self.version + 1)

    @property
    def puts(self) -> list[Put]:
        """The puts that replace the previous version of its entries by this one."""
        return row_puts(self.record, self.version - 1, self.stream)


def row_puts(row: TaskRecord, expect: int, stream: str) -> list[Put]:
    """Return the puts of a task's three entries."""
    data = record.encode(row)
    by_status, by_owner = record.list_states(row)
    key = record.list_key(row)
    return [
        Put(record.ROW, record.task_key(row.tenant, row.id), expect, stream, row.kind, None, data),
        Put(record.BY_STATUS, key, expect, stream, by_status, None, data),
        Put(record.BY_OWNER, key, expect, stream, by_owner, None, data),
    ]


async def find_task(store: Store, ref: TaskRef) -> TaskEntry | None:
    """Return the entry of a task, or None. Raises Corrupt."""
    task_id = ref.task_id
    if not isinstance(task_id, str) or not 0 < len(task_id) <= MAX_ID or not task_id.isprintable():
        check_task_id(task_id)
    entry = await store.get(record.ROW, record.task_key(ref.tenant, task_id))
    return None if entry is None else TaskEntry.decode(entry)


async def get_task(store: Store, ref: TaskRef) -> TaskEntry:
    """Return the entry of a task. Raises NotFound."""
    try:
        entry = await find_task(store, ref)
    except Refused:
        entry = None
    if entry is None:
        raise task_not_found(ref.task_id)
    return entry


async def live_stream(store: Store, ref: TaskRef) -> tuple[str, bool]:
    """Return the stream of a task with or without a row, and whether it exists.

    A stream that was erased is never used again: then it is the next generation's.
    """
    entry = await find_task(store, ref)
    if entry is not None:
        return entry.stream, True
    generation = 1
    while True:
        stream = record.task_stream(ref.tenant, ref.task_id, generation)
        try:
            await store.read(stream, limit=0)
        except Gone:
            generation += 1
        except NoStream:
            return stream, False
        else:
            return stream, True


async def commit_guarded(
    store: Store,
    writes: Sequence[Write],
    puts: Sequence[Put],
    guard: LockInfo | None,
    tenant: str,
) -> dict[str, int]:
    """Commit while a lock still belongs to its holder. Raises Conflict VERSION_CONFLICT.

    Without a guard it is a plain commit. Every other refusal of the store is raised as it is.
    """
    if guard is None:
        return await store.commit(writes, puts)
    key, stream = locks.lock_key(tenant, guard.resource), locks.lock_stream(tenant, guard.resource)
    while True:
        entry = await store.get(locks.KIND, key)
        present = None if entry is None else locks.decode(entry.data)
        if entry is None or present is None or present.holder(guard.key) is None:
            raise locks.stale_lock(guard.resource, guard.version, present.version if present else 0)
        check = Check(locks.KIND, key, entry.version, stream)
        try:
            return await store.commit([*writes, Write(stream)], puts, [check])
        except VersionMoved as error:
            if error.stream != stream:
                raise


def readable(entry: Entry) -> TaskEntry | None:
    """Return a decoded entry for a list; None if it is damaged, which `doctor` reports."""
    try:
        return TaskEntry.decode(entry)
    except Corrupt:
        return None
