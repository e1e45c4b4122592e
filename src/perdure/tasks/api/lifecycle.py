"""Lifecycle of tasks: pending, running, then completed, failed or cancelled."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from perdure.tasks.api.access import open_tasks, task_ref, tenant_of
from perdure.tasks.api.executions import TaskCommand
from perdure.tasks.api.hooks import TaskLifecycleHooks
from perdure.tasks.executions.requests import (
    TIMEOUT_S,
    WAIT_S,
    CommandRequest,
    ExecutionResult,
    check_request,
    duration_argument,
    execution_result,
)
from perdure.tasks.first_use import TaskHost
from perdure.tasks.lifecycle import Lifecycle
from perdure.tasks.locks.values import LockInfo
from perdure.tasks.service import Tasks
from perdure.tasks.values import Task, TaskConfig, TaskResult, public_task
from perdure.tasks.workspace_files import FolderEntry
from perdure.views.values import Duration


class TaskLifecycle:
    """Transitions of tasks. Each validates, runs the before-hooks, then compares and sets.

    The row, the state and the log line are one commit. With `guard`, a lock that this process has
    acquired, a transition is refused once another holder has the lock.
    """

    def __init__(self, rt: TaskHost, hooks: TaskLifecycleHooks | None = None) -> None:
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

    async def create_task(
        self, config: TaskConfig | Mapping[str, Any], *, exist_ok: bool = False
    ) -> Task:
        """Create a pending task. Raises OpenCodeError TASK_CREATE_FAILED.

        With `exist_ok`, a task that has the id already is returned as it is.
        Its `execution` says whether commands can run in it. With `require: ["exec"]` it is refused
        where they cannot; guarantees of the sandbox can be required too.
        """
        task = public_task(
            await self._tasks.create(tenant_of(self._rt) or "", config, exist_ok=exist_ok)
        )
        return replace(task, execution=await self._tasks.sandbox.availability())

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

    # --- commands and files -------------------------------------------------------------------

    async def execute(
        self,
        task_id: str,
        command: str,
        timeout: Duration = TIMEOUT_S,  # noqa: ASYNC109 - of the command
        *,
        wait: Duration = WAIT_S,
    ) -> ExecutionResult:
        """Run a command line in the task's workspace, confined, and return its result.

        It waits up to `wait` for the end of another command. At its `timeout` the command is
        stopped, with everything it has started; the result then has exit code 124. Raises
        NotFound, Conflict, Refused INVALID_REQUEST, SandboxUnavailable; cancelling it stops the
        command.
        """
        ref = task_ref(self._rt, task_id)
        fact = await self._tasks.executions.execute(ref, self._request(command, timeout, wait))
        return execution_result(task_id, fact)

    async def start_command(
        self,
        task_id: str,
        command: str,
        timeout: Duration = TIMEOUT_S,  # noqa: ASYNC109 - of the command
        *,
        wait: Duration = WAIT_S,
    ) -> TaskCommand:
        """Start a command line and return a handle on it. Raises as `execute` does."""
        ref = task_ref(self._rt, task_id)
        request = self._request(command, timeout, wait)
        started = await self._tasks.executions.start(ref, request)
        return TaskCommand(self._tasks.executions, ref, started.record.id)

    def execution(self, task_id: str, execution_id: str) -> TaskCommand:
        """Return a handle on a command of any process; nothing is read."""
        return TaskCommand(self._tasks.executions, task_ref(self._rt, task_id), execution_id)

    def _request(self, command: str, timeout: Duration, wait: Duration) -> CommandRequest:
        longest_ms = self._tasks.sandbox.options.max_timeout_ms
        timeout_ms = duration_argument(_plain(timeout), "timeout")
        wait_ms = duration_argument(_plain(wait), "wait")
        return check_request(command, timeout_ms, longest_ms, wait_ms=wait_ms)

    async def read_file(self, task_id: str, path: str) -> bytes:
        """Return a file of the workspace, never through a link. Raises NotFound, Refused."""
        return await self._tasks.workspace_files.read(task_ref(self._rt, task_id), path)

    async def list_files(self, task_id: str, folder: str = "") -> list[FolderEntry]:
        """Return the entries of a folder of the workspace, without following any.

        Of a folder with more than 500, the first by name. Raises NotFound, Refused.
        """
        return await self._tasks.workspace_files.list_folder(task_ref(self._rt, task_id), folder)

    async def write_file(self, task_id: str, path: str, content: bytes | str) -> int:
        """Create or replace a file of the workspace, never through a link; return its size."""
        return await self._tasks.workspace_files.write(task_ref(self._rt, task_id), path, content)


def _plain(duration: Duration) -> float | str:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration
