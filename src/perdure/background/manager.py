"""Manager of the background agents of a session, or of all sessions."""

from typing import Any

from perdure.app import Runtime, service_of, tenant_of
from perdure.core.session.child_tasks import ChildTask, marked_description, task_answer
from perdure.core.session.children import TASK_STATUSES
from perdure.errors import Refused
from perdure.runtime.agents.delegation import is_blank, parameter_missing, parse_timeout
from perdure.views.base import iso
from perdure.views.task_bodies import DEFAULT_TIMEOUT_MS
from perdure.views.values import Content


class BackgroundManager:
    """The six background tools, for a program.

    As a model's call does, one with `block` takes the outcome that it returns: the parent is not
    notified of it. Without `block`, reading takes nothing.

    `session` is the parent of what is launched here, and the list has its tasks. Without it, what
    is launched has no parent, and the list has the tasks of all sessions. An id names any task.
    """

    def __init__(self, rt: Runtime, session: str | None = None) -> None:
        self._rt = rt
        self._parent = session

    async def background_task(
        self, agent: str, prompt: Content, description: str | None = None
    ) -> dict[str, Any]:
        """Launch an agent and return at once."""
        task = await self._rt.spawn(agent, prompt, parent=self._parent, description=description)
        return task_answer(await self._task(task.id), agent=agent)

    async def background_output(
        self,
        task_id: str,
        block: bool = False,
        timeout: float = DEFAULT_TIMEOUT_MS,  # noqa: ASYNC109 - limits the waiting, not the run
    ) -> dict[str, Any]:
        """Return the outcome of a task; with `block`, when it has ended or after `timeout` ms.

        With `block` the outcome is taken; if the time is over first, the parent is notified.
        """
        task = await self._task(task_id)
        if block:
            wait_ms = parse_timeout(timeout)
            return await service_of(self._rt).background.read_and_take(task, wait_ms)
        return await service_of(self._rt).background.outcome(task)

    async def background_resume(
        self,
        task_id: str,
        message: Content,
        block: bool = False,
        timeout: float = DEFAULT_TIMEOUT_MS,  # noqa: ASYNC109 - limits the waiting, not the run
    ) -> dict[str, Any]:
        """Send a follow-up to a completed task; with `block`, wait for the answer."""
        wait_ms = parse_timeout(timeout) if block else None
        tasks = service_of(self._rt).background
        task = await self._task(task_id)
        content = await service_of(self._rt).store_content(message)
        task = await tasks.resume(task, content, wait_ms=wait_ms)
        if wait_ms is None:
            return task_answer(task)
        return await tasks.wait_and_take(task, wait_ms)

    async def background_list(self, status: str | None = None) -> dict[str, Any]:
        """List the tasks that were not cleared, newest first; resumed ones are marked."""
        if status is not None and status not in TASK_STATUSES:
            raise Refused(
                f"{status!r} is not a status of a task",
                code="ARGS_INVALID",
                hint=f"use one of {', '.join(TASK_STATUSES)}",
            )
        tenant = tenant_of(self._rt)
        background = service_of(self._rt).background
        listed = background.tasks(tenant, parent=self._parent, status=status)
        tasks = [task async for task in listed]
        tasks.sort(key=lambda task: (task.created_at, task.id), reverse=True)
        rows = [
            {**_listed(task), **reasons} for task, reasons in await background.with_reasons(tasks)
        ]
        return {"tasks": rows, "count": len(tasks)}

    async def background_cancel(self, task_id: str) -> dict[str, Any]:
        """Cancel a running task."""
        task = await service_of(self._rt).background.cancel(await self._task(task_id))
        return task_answer(task)

    async def background_clear(self) -> dict[str, Any]:
        """Cancel the running tasks of the session and remove all of them from the list."""
        if self._parent is None:
            raise Refused(
                "only the tasks of one session are cleared together",
                code="SESSION_NEEDED",
                hint="pass session= to BackgroundManager, or delete tasks one by one",
            )
        tasks = service_of(self._rt).background
        cleared = await tasks.clear(tenant_of(self._rt) or "", self._parent)
        return {"cleared": len(cleared), "tasks": [task_answer(task) for task in cleared]}

    async def _task(self, task_id: str) -> ChildTask:
        if not isinstance(task_id, str) or is_blank(task_id):
            raise parameter_missing("task_id")
        return await service_of(self._rt).background.get(tenant_of(self._rt) or "", task_id)


def _listed(task: ChildTask) -> dict[str, Any]:
    """Return a row of the list, in the words of the specification."""
    return {
        "task_id": task.id,
        "id": task.id,
        "kind": "background",
        "name": task.description,
        "status": task.status,
        "createdAt": iso(task.created_at),
        "updatedAt": iso(task.updated_at),
        "tenant": task.tenant,
        "agent": task.agent,
        "agents": [task.agent],
        "description": marked_description(task),
        "sessionID": task.session_id,
        "parent": task.parent,
        "ancestry": list(task.ancestry),
        "resumeCount": task.resume_count,
    }
