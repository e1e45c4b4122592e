"""Verbs on tasks of every kind, with views out: what HTTP, pages and the command line offer.

One list holds all tasks. Background agents are launched, read, resumed, cancelled, cleared and
deleted here; verbs of shared tasks alone are those of `tasks.verbs`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from msgspec import convert
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.roles import Permit
from perdure.core.session.child_tasks import ChildTask
from perdure.core.session.naming import check_id
from perdure.errors import Conflict, NotFound
from perdure.runtime.agents.delegation import check_launch, parse_timeout
from perdure.runtime.diagnosis.tasks import WAITING_FOR
from perdure.runtime.records.entries import SessionEntry, SessionRef
from perdure.runtime.sessions.background import Gone, background_view, never
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.task_lists import ListedTask, check_query
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.runtime.sessions.verbs.caller_views import CallerViews
from perdure.runtime.sessions.verbs.calls import CallVerbs
from perdure.tasks.model.record import TaskRecord
from perdure.tasks.values import TaskRef
from perdure.tasks.verbs import TaskVerbs
from perdure.tasks.views import task_view
from perdure.views import tasks as views
from perdure.views.findings import Finding
from perdure.views.task_bodies import DEFAULT_TIMEOUT_MS
from perdure.views.tasks import (
    AgentOutcome,
    AnyTask,
    BackgroundTask,
    ChangedTask,
    RemovedTask,
    with_verbs,
)
from perdure.views.values import Content

T = TypeVar("T")

PAUSE_S: Final = 15  # between two signs of life of a list that is followed
LIST_EVERY_S: Final = 0.2  # a list or task that is followed is not read more often
LATELY: Final = 1_000  # sessions in which an id that is not a task's is looked for
SENT: Final = "The follow-up was sent."

__all__ = ["AnyTaskVerbs"]


class AnyTaskVerbs:
    """Tasks of every kind, for one caller; without a tenant, lists have those of all tenants."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self.shared = TaskVerbs(service.tasks, caller.tenant)
        self._service = service
        self._background = service.background
        self._caller = caller
        self._calls = CallVerbs(service, caller)

    # --- reading ------------------------------------------------------------------------------

    async def __call__(
        self,
        *,
        kind: str | None = None,
        status: str | None = None,
        parent: str | None = None,
        owner: str | None = None,
    ) -> AsyncIterator[AnyTask]:
        """Yield tasks of every kind, newest first, each once."""
        filters = {"kind": kind, "status": status, "parent": parent, "owner": owner}
        async for task in views.every_task(self.list, filters):
            yield task

    async def list(self, filters: Mapping[str, Any]) -> views.TaskPage:
        """List tasks, newest first, with the number of all matches."""
        self._caller.require(Permit.READ)
        query = check_query(filters)
        page = await self._service.all_tasks.page(self._caller.tenant, query)
        count = await self._service.all_tasks.count(self._caller.tenant, query)
        return views.TaskPage(tasks=await self._views(page.tasks), count=count, next=page.next)

    async def _views(self, tasks: Sequence[ListedTask]) -> tuple[AnyTask, ...]:
        """Return the rows of a list; those of background agents say why they do not move."""
        children = [task for task in tasks if isinstance(task, ChildTask)]
        reasons = iter(await self._background.with_reasons(children, self._caller.acts))
        return tuple(
            self._bound(_with_reasons(*next(reasons)))
            if isinstance(task, ChildTask)
            else task_view(task)
            for task in tasks
        )

    def _bound(self, view: T) -> T:
        return with_verbs(view, self, self._calls)

    async def get(self, task_id: str) -> AnyTask:
        """Return a task. Raises NotFound, also for the id of a run."""
        self._caller.require(Permit.READ)
        task = await self._find(task_id)
        if isinstance(task, TaskRecord):
            return await self.shared.get(task_id)
        ((_, reasons),) = await self._background.with_reasons([task], self._caller.acts)
        view = _with_reasons(task, reasons)
        try:
            result = await self._service.listed_result(await self._background.session(task))
        except NotFound:
            return self._bound(view)
        result = CallerViews(self._service, self._caller).session(result)
        detailed = replace(
            view,
            state=result.state,
            output_json=result.output_json,
            error=result.error,
            findings=result.findings,
            pending=result.pending,
        )
        return self._bound(detailed)

    async def output(
        self,
        task_id: str,
        *,
        block: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - limits the waiting, not the run
        gone: Gone = never,
    ) -> AgentOutcome:
        """Return the outcome of a background agent, or that it is still running; takes nothing.

        With `block`, wait until the run has ended, at most `timeout` ms.
        """
        self._caller.require(Permit.READ)
        wait_ms = _wait_ms(timeout, block=block)
        task = await self._child(task_id, "read")
        if wait_ms is not None and task.may_move:
            task = await self._background.wait(task, wait_ms, drive=self._caller.drives, gone=gone)
        return self._bound(_outcome(task, await self._background.outcome(task)))

    async def _find(self, task_id: str) -> ListedTask:
        """Return a task of any kind. Raises NotFound."""
        row = await self._service.tasks.registry.find(TaskRef(self._caller.home_tenant, task_id))
        if row is not None:
            return row
        try:
            return await self._background.get(self._caller.tenant, check_id(task_id, "task id"))
        except NotFound as error:
            raise await self._as_run(task_id) or error from None

    async def _as_run(self, task_id: str) -> NotFound | None:
        """Return the error for the id of a run of a session that has changed lately.

        None if it is not one that the caller may see.
        """
        if not task_id.startswith("task_"):
            return None
        page = await self._service.recent_page(None, LATELY)
        for record in (SessionEntry.decode_listed(entry).record for entry in page.entries):
            if record.task_id == task_id and self._caller.tenant in (None, record.tenant):
                name = record.id
                return NotFound(
                    f"{task_id} is a run of session {name}, not a task",
                    code="TASK_NOT_FOUND",
                    hint=f"perdure sessions show {name}",
                    details={"sessionID": name},
                )
        return None

    async def _child(self, task_id: str, verb: str) -> ChildTask:
        """Return a background agent. Raises NotFound, or Conflict for a task of another kind."""
        task = await self._find(task_id)
        if isinstance(task, ChildTask):
            return task
        raise Conflict(
            f"task {task_id} is a shared task, and only background agents can be {verb} this way",
            code="WRONG_KIND",
            hint=f"perdure tasks show {task_id}",
            details={"taskId": task_id, "kind": task.kind},
        )

    async def session(self, task_id: str) -> SessionEntry | None:
        """Return the session of a background agent; None if it was deleted. Raises NotFound."""
        task = await self._child(task_id, "resumed")
        return await self._service.find(SessionRef(task.tenant, task.session_id))

    # --- background agents --------------------------------------------------------------------

    async def spawn(
        self,
        agent: str,
        prompt: Content,
        *,
        parent: str | None = None,
        description: str | None = None,
        key: str | None = None,
    ) -> BackgroundTask:
        """Launch a background agent; the same key again, within its parent, returns the same."""
        check_launch({"agent": agent, "prompt": prompt})
        stored = await self._service.store_content(prompt)
        task, _ = await self.launch(agent, stored, parent=parent, description=description, key=key)
        return task

    async def launch(
        self,
        agent: str,
        prompt: events.Content,
        *,
        parent: str | None = None,
        description: str | None = None,
        key: str | None = None,
    ) -> tuple[BackgroundTask, bool]:
        """Launch a background agent, and return whether it is new."""
        self._caller.require(Permit.OPERATE)
        task, is_new = await self._background.launch(
            self._caller.home_tenant,
            agent,
            prompt,
            parent=parent,
            description=description,
            key=None if key is None else check_id(key, "key"),
            by=self._caller.actor(),
        )
        return self._bound(background_view(task)), is_new

    async def resume(
        self,
        task_id: str,
        message: Content,
        *,
        block: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - limits the waiting, not the run
        key: str | None = None,
    ) -> AgentOutcome:
        """Send a follow-up, as `send` does, whose files are stored first."""
        stored = await self._service.store_content(message)
        return await self.send(task_id, stored, block=block, timeout=timeout, key=key)

    async def send(
        self,
        task_id: str,
        message: events.Content,
        *,
        block: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - limits the waiting, not the run
        key: str | None = None,
        gone: Gone = never,
    ) -> AgentOutcome:
        """Send a follow-up to a completed background agent.

        With `block`, wait for the answer and take it. If the caller is gone by then, or `timeout`
        ms are over, its parent is notified instead. Raises Conflict, NotFound.
        """
        self._caller.require(Permit.OPERATE)
        wait_ms = _wait_ms(timeout, block=block)
        task = await self._child(task_id, "resumed")
        key = None if key is None else check_id(key, "key")
        task = await self._background.resume(
            task, message, key=key, wait_ms=wait_ms, by=self._caller.actor(), via=self._caller.via
        )
        if wait_ms is None:
            return self._bound(AgentOutcome(task=background_view(task), message=SENT))
        answer = await self._background.wait_and_take(
            task, wait_ms, self._caller.actor(), drive=self._caller.drives, gone=gone
        )
        with suppress(NotFound):  # it was deleted meanwhile
            task = await self._background.get(task.tenant, task_id)
        return self._bound(_outcome(task, answer))

    async def clear(self, parent: str) -> views.ClearedAgents:
        """Cancel the running background agents of a session and remove all from lists."""
        self._caller.require(Permit.OPERATE)
        tasks = await self._background.clear(self._caller.home_tenant, parent, self._caller.actor())
        cleared = tuple(map(background_view, tasks))
        return views.ClearedAgents(parent=parent, cleared=len(tasks), tasks=cleared)

    # --- of every kind ------------------------------------------------------------------------

    async def cancel(
        self, task_id: str, *, by: str | None = None, reason: str | None = None
    ) -> AnyTask:
        """Cancel a task. Raises Conflict if it has ended."""
        self._caller.require(Permit.OPERATE)
        task = await self._find(task_id)
        if isinstance(task, TaskRecord):
            return await self.shared.cancel(task_id)
        actor = self._caller.actor(by)
        task = await self._background.cancel(task, actor, reason, self._caller.via)
        return self._bound(background_view(task))

    async def delete(self, task_id: str) -> views.DeletedTask:
        """Delete a task with everything it has."""
        self._caller.require(Permit.ADMIN)
        task = await self._find(task_id)
        if isinstance(task, TaskRecord):
            return await self.shared.delete(task_id)
        await self._background.delete(task, self._caller.actor(), self._caller.via)
        message = f"Task {task_id}, its session and everything that it launched were deleted"
        return views.DeletedTask(task_id=task_id, message=message)

    # --- following ----------------------------------------------------------------------------

    async def follow(
        self, filters: Mapping[str, Any]
    ) -> AsyncGenerator[ChangedTask | RemovedTask | None, None]:
        """Yield each task of a page of the list, and each that changes; None after a pause."""
        rows: dict[tuple[str, str], AnyTask] = {}
        while True:
            cursor = await self._service.feed.end()
            page = (await self.list(filters)).tasks
            present = {(row.tenant, row.id): row for row in page}
            for tenant, task_id in rows.keys() - present.keys():
                yield RemovedTask(task_id=task_id, tenant=tenant)
            changed = [row for key, row in present.items() if rows.get(key) != row]
            for row in reversed(changed):  # the oldest first, as they happened
                yield ChangedTask(task=row)
            rows = present
            while not await self._has_grown(cursor):
                yield None
            await asyncio.sleep(LIST_EVERY_S)

    async def follow_task(
        self, task_id: str
    ) -> AsyncGenerator[ChangedTask | RemovedTask | None, None]:
        """Yield a task, and again whenever it has changed, until it is deleted; None: a pause."""
        row: AnyTask | None = None
        while True:
            cursor = await self._service.feed.end()
            try:
                task = await self.get(task_id)
            except NotFound:
                if row is None:
                    raise
                yield RemovedTask(task_id=task_id, tenant=row.tenant)
                return
            if task != row:
                row = task
                yield ChangedTask(task=task)
            while not await self._has_grown(cursor):
                yield None
            await asyncio.sleep(LIST_EVERY_S)

    async def _has_grown(self, cursor: str) -> bool:
        """Wait until something is recorded after a cursor; return False after a pause."""
        feed, pauses = self._service.feed, 0
        while await feed.end() == cursor:
            if pauses == PAUSE_S:
                return False
            await feed.wait_for_change(1.0)  # a hint, which may be lost
            pauses += 1
        return True


def _with_reasons(task: ChildTask, reasons: Mapping[str, Any]) -> BackgroundTask:
    """Return the view of a background agent, with why it does not move."""
    waiting = convert(reasons.get(WAITING_FOR, ()), tuple[views.WaitingApproval, ...])
    findings = convert(reasons.get("findings", ()), tuple[Finding, ...])
    return background_view(task, waiting_for=waiting, findings=findings)


def _outcome(task: ChildTask, answer: Mapping[str, Any]) -> AgentOutcome:
    """Return the answer about a run of a background agent, which may run again since."""
    view = replace(
        _with_reasons(task, answer),
        status=answer["status"],
        resume_count=answer["resumeCount"],
        queued=answer.get("queued", False),
    )
    values = {name: answer.get(name) for name in ("output", "error", "message")}
    return AgentOutcome(task=view, **values)


def _wait_ms(timeout: float | None, *, block: bool) -> int | None:
    """Return how long a caller waits; None: not at all, and the timeout does not count."""
    return parse_timeout(DEFAULT_TIMEOUT_MS if timeout is None else timeout) if block else None
