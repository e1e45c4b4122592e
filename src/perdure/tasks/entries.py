"""Index entries of tasks: found, decoded and put."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from perdure.core.session import child_tasks
from perdure.core.session.naming import check_id
from perdure.errors import Conflict, Corrupt, PerdureError, Refused
from perdure.store.base import Check, Entry, Gone, Heads, NoStream, Put, Store, VersionMoved, Write
from perdure.tasks.locks.values import LockInfo
from perdure.tasks.model import locks, record
from perdure.tasks.model.record import TaskRecord
from perdure.tasks.values import TaskRef, check_task_id, task_not_found
from perdure.views.literals import MAX_ID


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
        raise await missing_task(store, ref)
    return entry


async def missing_task(store: Store, ref: TaskRef) -> PerdureError:
    """Return the error for a task that is not a shared one: it may be a background agent."""
    try:
        key = child_tasks.task_key(ref.tenant, check_id(ref.task_id, "task id"))
        child = await store.get(child_tasks.TASK, key)
    except Refused:  # an id that no task can have
        child = None
    if child is None or child.state == child_tasks.CLEARED:
        return task_not_found(ref.task_id)
    return Conflict(
        f"task {ref.task_id} is a background agent, not a shared task",
        code="WRONG_KIND",
        hint=f"perdure tasks show {ref.task_id}; background agents have output, resume, cancel, "
        "clear and delete",
        details={"taskId": ref.task_id, "kind": "background"},
    )


async def live_stream(store: Store, ref: TaskRef) -> tuple[str, bool]:
    """Return the stream of a task with or without a row, and whether it exists.

    A stream that was erased is never used again: then it is the next generation's. Raises Refused
    for an id that no task can have.
    """
    entry = await find_task(store, ref)
    if entry is not None:
        return entry.stream, True
    check_task_id(ref.task_id)
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
    checks: Sequence[Check] = (),
) -> Heads:
    """Commit while a lock still belongs to its holder. Raises Conflict VERSION_CONFLICT.

    Without a guard it is a plain commit. Every other refusal of the store is raised as it is.
    """
    if guard is None:
        return await store.commit(writes, puts, checks)
    if not isinstance(guard, LockInfo):
        raise Refused(
            f"a guard is a lock, not {type(guard).__name__}",
            code="INVALID_REQUEST",
            hint="pass what acquire_lock_with_retry returned",
        )
    key, stream = locks.lock_key(tenant, guard.resource), locks.lock_stream(tenant, guard.resource)
    while True:
        entry = await store.get(locks.KIND, key)
        present = None if entry is None else locks.decode(entry.data)
        if entry is None or present is None or present.holder(guard.key) is None:
            raise locks.stale_lock(guard.resource, guard.version, present.version if present else 0)
        check = Check(locks.KIND, key, entry.version, stream)
        try:
            return await store.commit([*writes, Write(stream)], puts, [*checks, check])
        except VersionMoved as error:
            if error.stream != stream:
                raise


def readable(entry: Entry) -> TaskRecord | None:
    """Return the row of an entry for a list; None if it is damaged, which `doctor` reports."""
    try:
        return record.decode(entry.data)
    except Corrupt:
        return None
