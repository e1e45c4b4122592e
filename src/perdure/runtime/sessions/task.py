"""Task handles: what a program uses to read, resume and cancel one background agent."""

from typing import Any

from perdure.core.session.child_tasks import ChildTask, session_of
from perdure.core.session.naming import check_id
from perdure.runtime.agents.delegation import parse_timeout
from perdure.runtime.sessions.service import Service
from perdure.views.sessions import Result
from perdure.views.values import Content, Duration, parse_duration


class Task:
    """A background agent: a handle. Reading it never takes the outcome from its parent."""

    def __init__(self, service: Service, tenant: str | None, task_id: str) -> None:
        self.id = check_id(task_id, "task id")
        self._service = service
        self._tenant = tenant
        self._session_id: str | None = None

    def __repr__(self) -> str:
        return f"Task({self.id!r})"

    @classmethod
    def of(cls, service: Service, record: ChildTask) -> "Task":
        """Return the handle of a task that was just read."""
        task = cls(service, record.tenant, record.id)
        task._session_id = record.session_id
        return task

    @property
    def session_id(self) -> str:
        """The id of its session: it is derived from the task's own id."""
        return self._session_id or session_of(self.id)

    async def record(self) -> ChildTask:
        """Return the task: its status, its resume count, its parent. Raises NotFound."""
        return await self._service.background.get(self._tenant, self.id)

    async def get(self) -> Result[Any]:
        """Return the session of the task as it stands. Raises NotFound."""
        return await self._result(await self.record())

    async def _result(self, record: ChildTask) -> Result[Any]:
        return await self._service.result(await self._service.background.session(record))

    async def output(
        self,
        *,
        block: bool = False,
        timeout: Duration = 60,  # noqa: ASYNC109 - limits the waiting, not the run
    ) -> Result[Any]:
        """Return the session; with `block`, when its run has ended or the time is over."""
        record = await self.record()
        if block and record.may_move:
            record = await self._service.background.wait(record, _wait_ms(timeout))
        return await self._result(record)

    async def resume(
        self,
        message: Content,
        *,
        block: bool = False,
        timeout: Duration = 60,  # noqa: ASYNC109 - limits the waiting, not the run
    ) -> Result[Any]:
        """Send a follow-up to a completed task; with `block`, wait for the answer and take it.

        Without `block`, or if the time is over first, its parent is notified. `output` of the
        result is the new answer only. Raises Conflict if the task has not completed.
        """
        record = await self.record()
        wait_ms = _wait_ms(timeout) if block else None
        content = await self._service.store_content(message)
        background = self._service.background
        sent = await background.resume(record, content, wait_ms=wait_ms)
        if wait_ms is None:
            return await self._result(sent)
        async with background.waiting_caller(sent) as caller:
            record = await background.wait(sent, wait_ms)
            result = await self._result(record)
            is_ended = record.number == sent.answer_number and not record.is_active
            if is_ended and result.task_id == record.run:  # else it is not what was read
                await caller.take()
            return result

    async def cancel(self, *, by: str | None = None, reason: str | None = None) -> Result[Any]:
        """Cancel its run. Raises Conflict if it has ended."""
        record = await self._service.background.cancel(await self.record(), by, reason)
        return await self._result(record)

    async def delete(self) -> None:
        """Erase its session and everything below it."""
        await self._service.background.delete(await self.record())


def _wait_ms(timeout: Duration) -> int:
    return parse_timeout(parse_duration(timeout))
