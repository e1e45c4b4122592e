"""Verbs on tasks of every kind, with JSON in and out: what HTTP, the CLI and MCP offer.

One list holds all tasks. Background agents are launched, read, resumed, cancelled, cleared and
deleted here; verbs of shared tasks alone are those of `runtime.tasks.verbs`.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from perdure.core.log import events
from perdure.core.session.child_tasks import ChildTask, task_answer
from perdure.core.session.naming import check_id
from perdure.core.tasks.record import TaskRecord
from perdure.errors import Conflict, NotFound
from perdure.runtime.agents.delegation import DEFAULT_TIMEOUT_MS, parse_timeout
from perdure.runtime.diagnosis.waits import WAITING_FOR
from perdure.runtime.records.entries import SessionEntry, SessionRef
from perdure.runtime.sessions.background import Gone, never, task_json
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.task_lists import AnyTask, check_query
from perdure.runtime.tasks import values
from perdure.runtime.tasks.values import TaskRef
from perdure.runtime.tasks.verbs import TaskVerbs
from perdure.runtime.views import Result

Json = dict[str, Any]

PAUSE_S: Final = 15  # between two signs of life of a list that is followed
LIST_EVERY_S: Final = 0.2  # a list or task that is followed is not read more often
LATELY: Final = 1_000  # sessions in which an id that is not a task's is looked for


def any_task_json(task: AnyTask) -> Json:
    """Return a task of any kind as a row of the list."""
    return values.task_json(task) if isinstance(task, TaskRecord) else task_json(task)


class AnyTaskVerbs:
    """Tasks of every kind, for one caller; without a tenant, lists have those of all tenants."""

    def __init__(
        self,
        service: Service,
        tenant: str | None,
        by: str | None = None,
        via: str = "python",
        *,
        drive: bool = False,
    ) -> None:
        self.shared = TaskVerbs(service.tasks, tenant)
        self._service = service
        self._background = service.background
        self._tenant = tenant
        self._by = by
        self._via = via
        self._drive = drive  # sessions that the caller waits for are driven here

    # --- reading ------------------------------------------------------------------------------

    async def list(self, filters: Mapping[str, Any]) -> Json:
        """List tasks, newest first: `{success, tasks, count}`; the count is that of all matches."""
        query = check_query(filters)
        tasks = await self._service.all_tasks.page(self._tenant, query)
        count = await self._service.all_tasks.count(self._tenant, query)
        return {"success": True, "tasks": await self._rows(tasks), "count": count}

    async def _rows(self, tasks: Sequence[AnyTask]) -> Sequence[Json]:
        """Return the rows of a list; those of background agents have what they wait for."""
        children = [task for task in tasks if isinstance(task, ChildTask)]
        waiting = {
            (task.tenant, task.id): fields
            for task, fields in await self._background.with_waiting(children)
        }
        return [
            {**any_task_json(task), **waiting.get((task.tenant, task.id), {})}
            if isinstance(task, ChildTask)
            else any_task_json(task)
            for task in tasks
        ]

    async def get(self, task_id: str) -> Json:
        """Return `{success, taskId, status, task}`. Raises NotFound, also for the id of a run."""
        task = await self._find(task_id)
        if isinstance(task, TaskRecord):
            return await self.shared.get(task_id)
        (row,) = await self._rows([task])
        return _changed(task, task=await self._details(task, row))

    async def _details(self, task: ChildTask, row: Json) -> Json:
        """Return the row of a background agent with what its session says."""
        try:
            result = await self._service.listed_result(await self._background.session(task))
        except NotFound:
            return {**row, **_NO_SESSION}
        return {**row, **_session_fields(result)}

    async def output(
        self,
        task_id: str,
        *,
        block: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - limits the waiting, not the run
        gone: Gone = never,
    ) -> Json:
        """Return the outcome of a background agent, or that it is still running; takes nothing.

        With `block`, wait until the run has ended, at most `timeout` ms.
        """
        wait_ms = _wait_ms(timeout, block=block)
        task = await self._child(task_id, "read")
        if wait_ms is not None and task.may_move:
            task = await self._background.wait(task, wait_ms, drive=self._drive, gone=gone)
        return _outcome(await self._background.outcome(task))

    async def _find(self, task_id: str) -> AnyTask:
        """Return a task of any kind. Raises NotFound."""
        row = await self._service.tasks.registry.find(TaskRef(self._tenant or "", task_id))
        if row is not None:
            return row
        try:
            return await self._background.get(self._tenant, check_id(task_id, "task id"))
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
            if record.task_id == task_id and self._tenant in (None, record.tenant):
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
        prompt: events.Content,
        *,
        parent: str | None = None,
        description: str | None = None,
        key: str | None = None,
    ) -> tuple[Json, bool]:
        """Launch a background agent: `{success, taskId, status, resumeCount, task}`; is it new?"""
        task, is_new = await self._background.launch(
            self._tenant or "",
            agent,
            prompt,
            parent=parent,
            description=description,
            key=None if key is None else check_id(key, "key"),
            by=self._by,
        )
        return _changed(task, task=task_json(task)), is_new

    async def resume(
        self,
        task_id: str,
        message: events.Content,
        *,
        block: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - limits the waiting, not the run
        key: str | None = None,
        gone: Gone = never,
    ) -> Json:
        """Send a follow-up to a completed background agent.

        With `block`, wait for the answer and take it. If the caller is gone by then, or `timeout`
        ms are over, its parent is notified instead. Raises Conflict, NotFound.
        """
        wait_ms = _wait_ms(timeout, block=block)
        task = await self._child(task_id, "resumed")
        key = None if key is None else check_id(key, "key")
        task = await self._background.resume(
            task, message, key=key, wait_ms=wait_ms, by=self._by, via=self._via
        )
        if wait_ms is None:
            return _changed(task, message=SENT)
        answer = await self._background.wait_and_take(
            task, wait_ms, self._by, drive=self._drive, gone=gone
        )
        return _outcome(answer)

    async def clear(self, parent: str) -> Json:
        """Cancel the running background agents of a session and remove all from lists."""
        tasks = await self._background.clear(self._tenant or "", parent, self._by)
        rows = [task_answer(task) for task in tasks]
        return {"success": True, "parent": parent, "cleared": len(tasks), "tasks": rows}

    # --- of every kind ------------------------------------------------------------------------

    async def cancel(self, task_id: str, reason: str | None = None) -> Json:
        """Cancel a task: `{success, taskId, status, task}`. Raises Conflict if it has ended."""
        task = await self._find(task_id)
        if isinstance(task, TaskRecord):
            return await self.shared.cancel(task_id)
        task = await self._background.cancel(task, self._by, reason, self._via)
        return _changed(task, task=task_json(task))

    async def delete(self, task_id: str) -> Json:
        """Delete a task with everything it has: `{success, taskId, message}`."""
        task = await self._find(task_id)
        if isinstance(task, TaskRecord):
            return await self.shared.delete(task_id)
        await self._background.delete(task, self._by, self._via)
        message = f"Task {task_id}, its session and everything that it launched were deleted"
        return {"success": True, "taskId": task_id, "message": message}

    # --- following ----------------------------------------------------------------------------

    async def follow(self, filters: Mapping[str, Any]) -> AsyncIterator[Json | None]:
        """Yield each task of a page of the list, and each that changes; None after a pause.

        Items are `{type: "task", task}` and, for tasks that left the page,
        `{type: "removed", taskId}`.
        """
        rows: dict[tuple[str, str], Json] = {}
        while True:
            cursor = await self._service.feed.end()
            page = (await self.list(filters))["tasks"]
            present = {(row["tenant"], row["id"]): row for row in page}
            for tenant, task_id in rows.keys() - present.keys():
                yield {"type": "removed", "taskId": task_id, "tenant": tenant}
            changed = [row for key, row in present.items() if rows.get(key) != row]
            for row in reversed(changed):  # the oldest first, as they happened
                yield {"type": "task", "task": row}
            rows = present
            while not await self._has_grown(cursor):
                yield None
            await asyncio.sleep(LIST_EVERY_S)

    async def follow_task(self, task_id: str) -> AsyncIterator[Json | None]:
        """Yield a task, and again whenever it has changed, until it is deleted; None: a pause."""
        row: Json | None = None
        while True:
            cursor = await self._service.feed.end()
            try:
                task = (await self.get(task_id))["task"]
            except NotFound:
                if row is None:
                    raise
                yield {"type": "removed", "taskId": task_id, "tenant": row["tenant"]}
                return
            if task != row:
                row = task
                yield {"type": "task", "task": task}
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


_OUTCOME: Final = ("status", "resumeCount", "queued", "output", "error", WAITING_FOR, "message")
_NO_SESSION: Final[Json] = {
    "state": None,
    "output": None,
    "error": None,
    "problem": None,
    "pending": [],
}
SENT: Final = "The follow-up was sent."


def _changed(task: ChildTask, /, **more: Any) -> Json:
    names: Json = {"taskId": task.id, "status": task.status, "resumeCount": task.resume_count}
    names |= {"queued": True} if task.is_queued else {}
    return {"success": True, **names, **more}


def _outcome(answer: Json) -> Json:
    """Return the answer about a background agent as HTTP and the command line have it."""
    values: Json = {key: answer[key] for key in _OUTCOME if key in answer}
    return {"success": True, "taskId": answer["task_id"], **values}


def _wait_ms(timeout: float | None, *, block: bool) -> int | None:
    """Return how long a caller waits; None: not at all, and the timeout does not count."""
    return parse_timeout(DEFAULT_TIMEOUT_MS if timeout is None else timeout) if block else None


def _session_fields(result: Result[Any]) -> Json:
    session = result.to_json()
    return {key: session[key] for key in _NO_SESSION}
