"""Registry of tasks: create, read, update, delete and list."""

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.errors import ConfigError, NotFound, PerdureError
from perdure.tasks.api.access import open_tasks, task_ref, tenant_of
from perdure.tasks.first_use import TaskHost
from perdure.tasks.locks.values import LockInfo
from perdure.tasks.model.status import Status
from perdure.tasks.registry import Registry, check_new_task, create_failed
from perdure.tasks.values import (
    Task,
    TaskFilters,
    check_filters,
    check_list,
    check_status,
    public_task,
    with_code,
)

TaskList = list[Task]


class TaskRegistry:
    """Rows of tasks in the store of a runtime; it is ready as soon as the runtime is open.

    A task that is created here gets its folder with the first other write to it.
    """

    def __init__(self, rt: TaskHost) -> None:
        self._rt = rt

    @property
    def _registry(self) -> Registry:
        return open_tasks(self._rt).registry

    @property
    def _tenant(self) -> str:
        return tenant_of(self._rt) or ""

    async def initialize(self) -> None:
        """Check that the runtime is open. Raises OpenCodeError REGISTRY_NOT_INITIALIZED."""
        open_tasks(self._rt)

    async def create(self, task: Task | Mapping[str, Any]) -> Task:
        """Create a task. Raises OpenCodeError TASK_CREATE_FAILED."""
        registry = self._registry
        try:
            new = check_new_task(task)
            return public_task(await registry.create(self._tenant, new, has_files=False))
        except ConfigError:
            raise
        except PerdureError as error:
            raise create_failed(error) from error

    async def bulk_insert(self, tasks: Sequence[Task | Mapping[str, Any]]) -> TaskList:
        """Create tasks in one transaction, all or none. Raises TASK_BULK_INSERT_FAILED."""
        registry = self._registry
        try:
            new = [check_new_task(task) for task in check_list(tasks, "a batch of tasks")]
            rows = await registry.create_all(self._tenant, new) if new else []
        except ConfigError:
            raise
        except PerdureError as error:
            raise with_code(error, "TASK_BULK_INSERT_FAILED") from error
        return [public_task(row) for row in rows]

    async def get_by_id(self, id: str) -> Task | None:  # noqa: A002 - the seed's word
        """Return a task, or None."""
        row = await self._registry.find(task_ref(self._rt, id))
        return None if row is None else public_task(row)

    async def update(
        self,
        id: str,  # noqa: A002 - the seed's word
        updates: Task | Mapping[str, Any],
        *,
        guard: LockInfo | None = None,
    ) -> Task:
        """Change the fields that are named: name, status, owner, metadata.

        Raises OpenCodeError TASK_NOT_FOUND, TASK_UPDATE_FAILED, VERSION_CONFLICT.
        """
        registry = self._registry
        try:
            return public_task(await registry.update(task_ref(self._rt, id), updates, guard))
        except PerdureError as error:
            raise _update_error(error) from error

    async def delete(self, id: str) -> None:  # noqa: A002 - the seed's word
        """Delete a task with all its layers. Raises TASK_NOT_FOUND, TASK_DELETE_FAILED."""
        tasks = open_tasks(self._rt)
        try:
            await tasks.delete(task_ref(self._rt, id))
        except PerdureError as error:
            if isinstance(error, NotFound) or error.code == "TASK_ELSEWHERE":
                raise
            raise with_code(error, "TASK_DELETE_FAILED") from error

    async def list(self, filters: TaskFilters | Mapping[str, Any] | None = None) -> TaskList:
        """Return tasks, newest first. Raises OpenCodeError INVALID_REQUEST."""
        rows = await self._registry.list(tenant_of(self._rt), check_filters(filters))
        return [public_task(row) for row in rows]

    async def count(self, filters: TaskFilters | Mapping[str, Any] | None = None) -> int:
        """Return the number of all tasks that match, whatever the offset and limit."""
        return await self._registry.count(tenant_of(self._rt), check_filters(filters))

    async def get_by_status(self, status: str) -> TaskList:
        """Return all tasks with a status, newest first."""
        return await self.list(TaskFilters(status=status))

    async def get_by_owner(self, owner: str) -> TaskList:
        """Return all tasks of an owner, newest first."""
        return await self.list(TaskFilters(owner=owner))

    async def mark_running(self, id: str) -> Task:  # noqa: A002 - the seed's word
        """Mark a task as running, without hooks."""
        return await self._mark(id, "running")

    async def mark_completed(self, id: str) -> Task:  # noqa: A002 - the seed's word
        """Mark a task as completed, without hooks."""
        return await self._mark(id, "completed")

    async def mark_failed(self, id: str, error: str) -> Task:  # noqa: A002 - the seed's word
        """Mark a task as failed, without hooks; its metadata gets the error."""
        return await self._mark(id, "failed", error)

    async def _mark(self, task_id: str, status: str, error: str | None = None) -> Task:
        registry, target = self._registry, Status(check_status(status))
        try:
            return public_task(await registry.mark(task_ref(self._rt, task_id), target, error))
        except PerdureError as refused:
            raise _update_error(refused) from refused


def _update_error(error: PerdureError) -> PerdureError:
    if isinstance(error, NotFound) or error.code == "VERSION_CONFLICT":
        return error
    return with_code(error, "TASK_UPDATE_FAILED")
