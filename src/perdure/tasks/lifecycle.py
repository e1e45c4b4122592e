"""Lifecycle of tasks: pending, running, then completed, failed or cancelled."""

from collections.abc import Mapping
from typing import Any

from perdure.app import Runtime, tenant_of
from perdure.runtime.tasks.lifecycle import Lifecycle
from perdure.runtime.tasks.locks.values import LockInfo
from perdure.runtime.tasks.service import Tasks
from perdure.runtime.tasks.values import Task, TaskConfig, TaskResult, public_task
from perdure.tasks.access import open_tasks, task_ref
from perdure.tasks.hooks import TaskLifecycleHooks


class TaskLifecycle:
    """Transitions of tasks. Each validates, runs the before-hooks, then compares and sets.

    The row, the state and the log line are one commit. With `guard`, a lock that this process has
    acquired, a transition is refused once another holder has the lock.
    """

    def __init__(self, rt: Runtime, hooks: TaskLifecycleHooks | None = None) -> None:
        self._rt = rt
        self._hooks = hooks

    @property
    def _tasks(self) -> Tasks:
        return open_tasks(self._rt)

    @property
    def _lifecycle(self) -> Lifecycle:
        shared = self._tasks.lifecycle
        if self._hooks is None:
            return shared
        return shared.with_hooks(shared.hooks.with_registry(self._hooks.registry))

    async def create_task(self, config: TaskConfig | Mapping[str, Any]) -> Task:
        """Create a pending task. Raises OpenCodeError TASK_CREATE_FAILED."""
        return public_task(await self._tasks.create(tenant_of(self._rt) or "", config))

    async def start_task(
        self, task_id: str, agent_id: str, *, guard: LockInfo | None = None
    ) -> Task:
        """Start a pending task. Raises NotFound, Conflict."""
        ref = task_ref(self._rt, task_id)
        return public_task(await self._lifecycle.start(ref, agent_id, guard))

    async def complete_task(
        self,
        task_id: str,
        result: TaskResult | Mapping[str, Any],
        *,
        guard: LockInfo | None = None,
    ) -> Task:
        """Complete a running task with its result. Raises NotFound, Conflict."""
        ref = task_ref(self._rt, task_id)
        return public_task(await self._lifecycle.complete(ref, result, guard))

    async def fail_task(self, task_id: str, error: str, *, guard: LockInfo | None = None) -> Task:
        """Fail a running task; its metadata gets the error. Raises NotFound, Conflict."""
        return public_task(await self._lifecycle.fail(task_ref(self._rt, task_id), error, guard))

    async def cancel_task(self, task_id: str, *, guard: LockInfo | None = None) -> Task:
        """Cancel a pending or running task. Raises NotFound, Conflict."""
        return public_task(await self._lifecycle.cancel(task_ref(self._rt, task_id), guard))

    async def delete_task(self, task_id: str, *, guard: LockInfo | None = None) -> None:
        """Delete a task from any status, with all layers, locks and files. Raises NotFound."""
        await self._tasks.delete(task_ref(self._rt, task_id), guard)

    async def get_task_status(self, task_id: str) -> str:
        """Return the status of a task. Raises NotFound."""
        return str((await self._tasks.registry.get(task_ref(self._rt, task_id))).status)

    async def attach_agent(
        self, task_id: str, agent_id: str, *, guard: LockInfo | None = None
    ) -> Task:
        """Attach an agent: the first starts the task, each later one is added. Idempotent."""
        ref = task_ref(self._rt, task_id)
        return public_task(await self._lifecycle.attach(ref, agent_id, guard))

    async def detach_agent(
        self, task_id: str, agent_id: str, *, guard: LockInfo | None = None
    ) -> bool:
        """Detach an agent; False if it was not attached. The task goes on without agents."""
        ref = task_ref(self._rt, task_id)
        return (await self._lifecycle.detach(ref, agent_id, guard))[1]
