"""Registry of tasks: rows created, read, changed, marked, listed and deleted."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from msgspec import structs

from perdure.errors import Conflict, PerdureError, Refused
from perdure.ids import new_id
from perdure.store.base import Gone, Put, Record, Store, VersionMoved, Write
from perdure.tasks.entries import TaskEntry, find_task, get_task, readable, row_puts
from perdure.tasks.files.place import RootMarker, TaskPlace
from perdure.tasks.lifecycle import Lifecycle, Transition, check_error
from perdure.tasks.listing import TaskLists
from perdure.tasks.locks.values import LockInfo
from perdure.tasks.model import facts, record
from perdure.tasks.model.facts import FactType
from perdure.tasks.model.record import STREAM_KIND, TaskKind, TaskRecord
from perdure.tasks.model.status import MARKS, Status, TaskMove, moved
from perdure.tasks.values import (
    Task,
    TaskConfig,
    TaskFilters,
    TaskRef,
    check_kind,
    check_name,
    check_owner,
    check_require,
    check_status,
    check_task_id,
    from_mapping,
    invalid,
    json_object,
    parse_instant,
    with_code,
)
from perdure.tasks.writer import TaskCommit, TaskWriter, new_fact

_CHANGEABLE: Final = ("name", "status", "owner", "metadata")
_FIXED: Final = ("id", "created_at", "tenant", "kind")
_MARK_FACTS: Final[dict[TaskMove, FactType]] = {
    TaskMove.MARK_RUNNING: "task_started",
    TaskMove.MARK_COMPLETED: "task_completed",
    TaskMove.MARK_FAILED: "task_failed",
    TaskMove.MARK_CANCELLED: "task_cancelled",
}


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to create, checked; its instants and place are set when it is written."""

    id: str
    name: str
    owner: str
    metadata: dict[str, Any]
    kind: TaskKind = "sandbox"
    status: Status = Status.PENDING
    created_at: int | None = None
    updated_at: int | None = None
    sandbox: str = ""
    require: tuple[str, ...] = ()


def check_new_task(value: Any) -> NewTask:
    """Return a task to create from a Task, a TaskConfig or a mapping. Raises Refused."""
    fields = _fields(value)
    require = check_require(fields.pop("require", None))
    task = from_mapping({"id": None, "name": None, **fields}, Task, "a task")
    if check_kind(task.kind) != "sandbox":
        raise invalid("a background agent is not created but launched: rt.spawn, POST /tasks")
    return NewTask(
        new_id("task") if task.id is None else check_task_id(task.id),
        check_name(task.name),
        check_owner(task.owner),
        json_object({} if task.metadata is None else task.metadata, "metadata"),
        "sandbox",
        check_status(task.status),
        _instant_ms(task.created_at, "created_at"),
        _instant_ms(task.updated_at, "updated_at"),
        require=require,
    )


def _instant_ms(value: Any, label: str) -> int | None:
    return None if value is None else round(parse_instant(value, label).timestamp() * 1000)


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Task):
        return structs.asdict(value)
    if isinstance(value, TaskConfig):
        return asdict(value)
    raise invalid("a task must be a Task, a TaskConfig or a mapping of their fields")


class Registry:
    """Rows of tasks; every change of one is a commit to the task's stream."""

    def __init__(
        self, store: Store, writer: TaskWriter, place: TaskPlace, lifecycle: Lifecycle
    ) -> None:
        self._store = store
        self._writer = writer
        self._place = place
        self._lifecycle = lifecycle
        self._groups: set[str] = set()  # tenants with kinds that have an entry
        self.lists = TaskLists(store)

    # --- creation -----------------------------------------------------------------------------

    async def create(self, tenant: str, task: NewTask, *, has_files: bool) -> TaskRecord:
        """Create a task. Raises Conflict or Refused TASK_CREATE_FAILED; then nothing is there."""
        await self.add_group(tenant, task.kind)
        generation = 1
        while True:
            stream = record.task_stream(tenant, task.id, generation)
            now = self._store.now()
            row = _row(tenant, task, self._place.create(), now)
            fact = new_fact("task_created", now, data=_created_data(row))
            commit = TaskCommit(
                stream, tenant, [fact], TaskEntry(row, stream, 1), home=row, has_files=has_files
            )
            try:
                await self._writer.commit(commit)
            except Gone:
                generation += 1  # this name was used and deleted
            except VersionMoved as error:
                raise _exists(task.id) from error
            else:
                return row

    async def create_all(self, tenant: str, tasks: Sequence[NewTask]) -> list[TaskRecord]:
        """Create several tasks in one commit, all or none. Raises Conflict TASK_CREATE_FAILED."""
        _check_unique(tasks)
        for kind in {task.kind for task in tasks}:
            await self.add_group(tenant, kind)
        streams = {task.id: record.task_stream(tenant, task.id) for task in tasks}
        while True:
            marker, now = self._place.create(), self._store.now()
            rows = [_row(tenant, task, marker, now) for task in tasks]
            writes = [
                Write(streams[row.id], [_record(row, now)], create=STREAM_KIND) for row in rows
            ]
            puts = [put for row in rows for put in row_puts(row, 0, streams[row.id])]
            try:
                await self._store.commit(writes, puts)
            except Gone as error:
                name = next(name for name, stream in streams.items() if stream == error.stream)
                generation = record.generation_of(error.stream) + 1
                streams[name] = record.task_stream(tenant, name, generation)
            except VersionMoved as error:
                name = next(name for name, stream in streams.items() if stream == error.stream)
                raise _exists(name) from error
            else:
                return rows

    async def add_group(self, tenant: str, kind: TaskKind) -> None:
        """Put the entry that says that a tenant has tasks of a kind, once."""
        key, stream = record.group_key(tenant, kind), f"tasks/{record.group_key(tenant, kind)}"
        if key in self._groups:
            return
        if await self._store.get(record.GROUP, key) is None:
            put = Put(record.GROUP, key, 0, stream, "", None, b"{}")
            with suppress(VersionMoved):  # another process has put it
                await self._store.commit([Write(stream, create="tasks")], [put])
        self._groups.add(key)

    # --- reading ------------------------------------------------------------------------------

    async def find(self, ref: TaskRef) -> TaskRecord | None:
        """Return a task, or None."""
        try:
            entry = await find_task(self._store, ref)
        except Refused:
            return None
        return None if entry is None else entry.record

    async def get(self, ref: TaskRef) -> TaskRecord:
        """Return a task. Raises NotFound."""
        return (await get_task(self._store, ref)).record

    async def list(self, tenant: str | None, filters: TaskFilters) -> list[TaskRecord]:
        """Return the tasks that match, newest first; `doctor` reports damaged ones."""
        sources = await self.lists.shared(tenant, filters)
        entries = await self.lists.page(sources, filters.offset, filters.limit, filters.start)
        rows = map(readable, entries)
        return [row for row in rows if row is not None]

    async def count(self, tenant: str | None, filters: TaskFilters) -> int:
        """Return the number of all tasks that match."""
        return await self.lists.count_shared(tenant, filters)

    # --- changes ------------------------------------------------------------------------------

    async def update(self, ref: TaskRef, updates: Any, guard: LockInfo | None = None) -> TaskRecord:
        """Change the fields that are named. Raises NotFound, Conflict, Refused."""
        if isinstance(updates, Task) and updates.id != ref.task_id:
            raise invalid("id of a task never changes")
        changes = check_updates(updates)
        while True:
            entry = await get_task(self._store, ref)
            status = changes.get("status", entry.record.status)
            if status is not entry.record.status:
                moved(entry.record.status, _mark(status))
            after = entry.changed(self._store.now(), **changes)
            names = sorted(changes)
            fact = new_fact("task_updated", self._store.now(), data={"fields": names})
            if await self._lifecycle.commit(entry, after, [fact], guard) is not None:
                return after.record

    async def mark(self, ref: TaskRef, status: Status, error: str | None = None) -> TaskRecord:
        """Set a status without hooks; an error is kept in the metadata. Raises Conflict."""
        move = _mark(status)
        text = None if error is None else check_error(error)

        def changes(row: TaskRecord) -> Mapping[str, Any]:
            return {} if text is None else {"metadata": {**row.metadata, "error": text}}

        transition = Transition(
            move,
            _MARK_FACTS[move],
            level="error" if status is Status.FAILED else "info",
            data=lambda _: None if text is None else {"error": text},
            changes=changes,
        )
        return await self._lifecycle.move(ref, transition)


def _mark(status: Status) -> TaskMove:
    move = MARKS.get(status)
    if move is None:
        raise invalid(f"a task cannot be marked as {status}")
    return move


def check_updates(updates: Any) -> dict[str, Any]:
    """Return the fields of a row to change. Raises Refused."""
    if isinstance(updates, Task):
        updates = {name: getattr(updates, name) for name in _CHANGEABLE}
    if not isinstance(updates, Mapping):
        raise invalid("updates must be a mapping of fields")
    names = {"createdAt": "created_at", "updatedAt": "updated_at"}
    fields = {names.get(str(key), str(key)): value for key, value in updates.items()}
    if fixed := sorted(set(fields) & set(_FIXED)):
        raise invalid(f"{', '.join(fixed)} of a task never changes")
    fields.pop("updated_at", None)  # set by the registry
    if unknown := sorted(set(fields) - set(_CHANGEABLE)):
        raise invalid(f"a task has no field {', '.join(unknown)}; use {', '.join(_CHANGEABLE)}")
    checks: dict[str, Any] = {
        "name": check_name,
        "status": check_status,
        "owner": check_owner,
        "metadata": lambda value: json_object({} if value is None else value, "metadata"),
    }
    return {name: checks[name](value) for name, value in fields.items()}


def _row(tenant: str, task: NewTask, marker: RootMarker, now: int) -> TaskRecord:
    created_at = now if task.created_at is None else task.created_at
    updated_at = now if task.updated_at is None else task.updated_at
    return TaskRecord(
        id=task.id,
        tenant=tenant,
        kind=task.kind,
        name=task.name,
        status=task.status,
        owner=task.owner,
        metadata=task.metadata,
        created_at=created_at,
        updated_at=max(updated_at, created_at),
        host=marker.host,
        root=marker.id,
        sandbox=task.sandbox,
        require=task.require,
    )


def _check_unique(tasks: Sequence[NewTask]) -> None:
    counts = Counter(task.id for task in tasks)
    if len(counts) < len(tasks):
        name = next(name for name, number in counts.items() if number > 1)
        raise Conflict(
            f"task {name!r} is in the batch twice",
            code="TASK_CREATE_FAILED",
            hint="give every task of the batch an id of its own, or none",
            details={"taskId": name},
        )


def _created_data(row: TaskRecord) -> dict[str, Any]:
    return {"name": row.name, "owner": row.owner}


def _record(row: TaskRecord, now: int) -> Record:
    kind, fact = new_fact("task_created", now, data=_created_data(row))
    return Record(kind, facts.encode(fact), now)


def _exists(task_id: str) -> Conflict:
    return Conflict(
        f"task {task_id!r} exists already",
        code="TASK_CREATE_FAILED",
        hint=f"choose another id, or delete it: perdure tasks delete {task_id}",
        details={"taskId": task_id},
    )


def create_failed(error: PerdureError) -> PerdureError:
    """Return a refusal of a new task under the seed's code."""
    return with_code(error, "TASK_CREATE_FAILED")
