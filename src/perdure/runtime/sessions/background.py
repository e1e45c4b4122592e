"""Background tasks: the verbs that HTTP, the command line and Python share, and their handle."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final

from perdure.core.log import events
from perdure.core.session.budgets import run_bounds
from perdure.core.session.child_tasks import ChildTask, task_not_found
from perdure.core.session.children import BACKGROUND_AUTHOR
from perdure.errors import NotFound
from perdure.runtime.agents.agents import Agents
from perdure.runtime.engine.children import (
    check_depth,
    child_tools,
    max_tree_depth,
)
from perdure.runtime.inbox.children import ChildEntry, Launch
from perdure.runtime.inbox.sessions import NewMessage
from perdure.runtime.records.content import check_text
from perdure.runtime.records.entries import SessionEntry, SessionRef
from perdure.runtime.records.log import read_log
from perdure.runtime.resources import Resources
from perdure.runtime.sessions.runs import Runs
from perdure.store.base import HeadMoved

RESERVE_MARGIN_MS: Final = 5_000  # a waiting caller has this long to take an outcome


class BackgroundTasks:
    """Background agents: launched, read, resumed, cancelled, cleared and deleted."""

    def __init__(self, resources: Resources, agents: Agents, runs: Runs) -> None:
        self.resources = resources
        self._inbox = resources.child_inbox
        self._sessions = resources.session_inbox
        self._agents = agents
        self._runs = runs

    # --- finding ------------------------------------------------------------------------------

    async def get(self, tenant: str | None, task_id: str) -> ChildTask:
        """Return a task that was not cleared. Raises NotFound."""
        return (await self._find(tenant, task_id)).task

    async def _find(self, tenant: str | None, task_id: str) -> ChildEntry:
        if tenant is not None:
            return await self._inbox.find(tenant, task_id)
        async for item in self._inbox.tasks():
            if item.task.id == task_id and not item.task.is_cleared:
                return item
        raise task_not_found(task_id)

    async def tasks(
        self, tenant: str | None, *, parent: str | None = None, status: str | None = None
    ) -> AsyncIterator[ChildTask]:
        """Yield the tasks that were not cleared."""
        if parent is not None:
            entry = await self._sessions.session_entry(SessionRef(tenant or "", parent))
            entries = self._inbox.tasks_of(entry.stream)
        else:
            entries = self._inbox.tasks(status)
        async for item in entries:
            task = item.task
            is_match = tenant in (None, task.tenant) and status in (None, task.status)
            if is_match and not task.is_cleared:
                yield task

    async def session(self, task: ChildTask) -> SessionEntry:
        """Return the entry of a task's session. Raises NotFound."""
        return await self._sessions.session_entry(SessionRef(task.tenant, task.session_id))

    # --- launching and resuming ---------------------------------------------------------------

    async def launch(  # noqa: PLR0913 - keyword options of a launch
        self,
        tenant: str,
        agent: str,
        content: events.Content,
        *,
        parent: str | None = None,
        description: str | None = None,
        key: str | None = None,
        by: str | None = None,
    ) -> ChildTask:
        """Launch a background agent. Raises NotFound, Refused TOO_DEEP, Conflict KEY_REUSED."""
        if description is not None:
            check_text("description", description)
        ready = self._agents.get(agent)
        depth, max_depth, above = 0, ready.agent.max_depth, None
        bounds: tuple[events.Bound, ...] = ()
        if parent is not None:
            above = await self._sessions.session_entry(SessionRef(tenant, parent))
            state = (await read_log(self.resources.store, above)).state
            depth = len(above.record.ancestry) + 1
            owner = self._agents.find(above.record.agent)
            if owner is not None:
                max_depth = max_tree_depth(owner, state.launch)
            limits = {} if owner is None else owner.budget
            bounds = run_bounds(state.run, above.stream, limits)
            check_depth(depth, max_depth)
        request = Launch(
            agent=ready.name,
            queue=ready.agent.queue,
            content=content,
            tools=child_tools(ready, may_launch=depth < max_depth),
            max_depth=max_depth,
            description=description or "",
            key=key,
            bounds=bounds,
            by=by,
        )
        return (await self._inbox.launch(tenant, above, request))[0]

    async def resume(
        self,
        task: ChildTask,
        content: events.Content,
        *,
        wait_ms: int | None = None,
        by: str | None = None,
        via: str = "python",
    ) -> ChildTask:
        """Send a follow-up to a completed task; `wait_ms` reserves the answer for the caller.

        Raises Conflict, NotFound.
        """
        until = None if wait_ms is None else self.resources.store.now() + wait_ms
        message = NewMessage(
            content,
            by=by,
            via=via,
            reserved_until=None if until is None else until + RESERVE_MARGIN_MS,
        )
        return await self._inbox.resume(await self._find(task.tenant, task.id), message)

    async def wait(self, task: ChildTask, wait_ms: int, *, drive: bool = True) -> ChildTask:
        """Wait until this run of a task ends, or for a time; return the task as it is then."""
        entry = await self.session(task)

        async def has_ended() -> bool:
            return _has_ended(task, await self.get(task.tenant, task.id))

        with suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1_000):
                await self._runs.wait_for(entry, has_ended, drive=drive)
        return await self.get(task.tenant, task.id)

    async def wait_and_take(
        self, task: ChildTask, wait_ms: int, by: str | None = None, *, drive: bool = True
    ) -> ChildTask:
        """Wait for the outcome that was reserved for this caller, and take it.

        If it comes too late, the parent is notified.
        """
        after = await self.wait(task, wait_ms, drive=drive)
        if _has_ended(task, after):
            await self._inbox.take(task.tenant, task.mail_id, by)
        return after

    # --- ending -------------------------------------------------------------------------------

    async def cancel(
        self, task: ChildTask, by: str | None = None, reason: str | None = None, via: str = "python"
    ) -> ChildTask:
        """Cancel the run of a task. Raises Conflict if it has ended."""
        return await self._inbox.cancel(await self._find(task.tenant, task.id), by, reason, via)

    async def clear(self, tenant: str, parent: str, by: str | None = None) -> list[ChildTask]:
        """Cancel the active tasks of a session and remove all of them from lists."""
        entry = await self._sessions.session_entry(SessionRef(tenant, parent))
        return await self._inbox.clear(entry.stream, by)

    async def delete(self, task: ChildTask, by: str | None = None, via: str = "python") -> None:
        """Erase the session of a task with everything below it, and the task."""
        with suppress(NotFound):
            await self.erase_tree(SessionRef(task.tenant, task.session_id), by, via)
        await self._inbox.purge(task)

    async def erase_tree(self, ref: SessionRef, by: str | None, via: str = "python") -> str:
        """Erase a session with everything that it launched; return the last state of its run.

        Children go first, each session at the head at which its children were listed: a child
        that is launched meanwhile is not left behind. Raises NotFound.
        """
        entry = await self._sessions.session_entry(ref)
        state = await self._sessions.end_for_deletion(ref, by, via)
        while True:
            head = (await self.resources.store.read(entry.stream, limit=0)).head
            has_children = False
            async for item in self._inbox.tasks_of(entry.stream):
                child = SessionRef(item.task.tenant, item.task.session_id)
                if item.task.stream != entry.stream:
                    with suppress(NotFound):  # its parent needs no notification of its end
                        await self.erase_tree(child, BACKGROUND_AUTHOR, via)
                        has_children = True
            if has_children:
                continue  # their ends were written to this session
            try:
                await self._sessions.erase(ref, head)
            except HeadMoved:
                continue
            return state


def _has_ended(task: ChildTask, current: ChildTask) -> bool:
    """Return whether the run that a task had has ended; another one may have started since."""
    return not current.is_active or current.number > task.number


def task_json(task: ChildTask, **more: Any) -> Mapping[str, Any]:
    """Return a background task as HTTP, the command line and `perdure.background` show it."""
    return {
        "kind": "background",
        "id": task.id,
        "task_id": task.id,
        "sessionID": task.session_id,
        "tenant": task.tenant,
        "agent": task.agent,
        "description": task.description,
        "status": task.status,
        "resumeCount": task.resume_count,
        "parent": task.parent,
        "ancestry": list(task.ancestry),
        "createdAt": task.created_at,
        "updatedAt": task.updated_at,
        **more,
    }
