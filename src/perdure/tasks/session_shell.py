"""Commands of sessions: each session has a task of its own, from its first command to its end."""

from contextlib import suppress
from typing import Final

from perdure.core.session import naming as index
from perdure.core.session.naming import session_not_found
from perdure.errors import NotFound, PerdureError
from perdure.ids import hashed_id
from perdure.tasks.entries import get_task
from perdure.tasks.executions.requests import check_request, duration_argument
from perdure.tasks.model.executions import CapturedOutput, ExecutionFact
from perdure.tasks.model.record import TaskRecord
from perdure.tasks.service import Tasks
from perdure.tasks.values import TaskRef, check_task_id
from perdure.tasks.views import task_view
from perdure.views.tasks import SandboxTask

MAX_CHARS: Final = 30_000  # of each channel that a model gets
SESSION_ID: Final = "sessionID"  # in the metadata of a session's own task
_HEAD_CHARS: Final = 10_000


class SessionShell:
    """Runs commands for the tool `execute_command`."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    async def run(
        self, tenant: str, session_id: str, agent: str, command: str, timeout_s: float
    ) -> str:
        """Run a command in the session's task and return the text for the model."""
        tasks = self._tasks
        timeout_ms = duration_argument(timeout_s, "timeout")
        request = check_request(command, timeout_ms, tasks.sandbox.options.max_timeout_ms, by=agent)
        ref = await self._started_task(tasks, tenant, session_id, agent)
        return _reply(await tasks.executions.execute(ref, request))

    async def task(self, tenant: str, session_id: str, agent: str) -> SandboxTask:
        """Return the session's own task; create it if it does not exist."""
        tasks = self._tasks
        ref = await self._started_task(tasks, tenant, session_id, agent)
        return task_view((await get_task(tasks.store, ref)).record)

    async def _started_task(
        self, tasks: Tasks, tenant: str, session_id: str, agent: str
    ) -> TaskRef:
        ref = TaskRef(tenant, session_task_id(session_id))
        await self._start_task(tasks, ref, session_id, agent)
        if await tasks.store.get("session", index.session_key(tenant, session_id)) is None:
            await self.delete_task(tenant, session_id)  # it was deleted while this call began
            raise session_not_found(session_id)
        return ref

    async def check_deletable(self, tenant: str, session_id: str) -> None:
        """Check that the files of a session's own task are here. Raises Refused TASK_ELSEWHERE."""
        tasks = self._tasks
        task = await self._own_task(tasks, TaskRef(tenant, session_task_id(session_id)), session_id)
        if task is not None:
            tasks.place.check_here(task)

    async def delete_task(self, tenant: str, session_id: str) -> None:
        """Delete a session's own task with its files, and stop its command.

        A task that a caller has created under that id stays. Raises Refused TASK_ELSEWHERE,
        Conflict TASK_BUSY.
        """
        tasks = self._tasks
        ref = TaskRef(tenant, session_task_id(session_id))
        if await self._own_task(tasks, ref, session_id) is not None:
            with suppress(NotFound):  # another process was faster
                await tasks.delete(ref)

    async def _own_task(self, tasks: Tasks, ref: TaskRef, session_id: str) -> TaskRecord | None:
        task = await tasks.registry.find(ref)
        is_own = task is not None and task.metadata.get(SESSION_ID) == session_id
        return task if is_own else None

    async def _start_task(self, tasks: Tasks, ref: TaskRef, session_id: str, agent: str) -> None:
        if await tasks.registry.find(ref) is None:
            fields = {"metadata": {SESSION_ID: session_id}, "owner": agent}
            config = {"id": ref.task_id, "name": f"Session {session_id}", **fields}
            try:
                await tasks.create(ref.tenant, config)
            except PerdureError:
                if await tasks.registry.find(ref) is None:  # not created by another process
                    raise
        await tasks.lifecycle.attach(ref, agent)


def session_task_id(session_id: str) -> str:
    """Return the id of a session's own task."""
    name = f"session_{session_id}"
    try:
        return check_task_id(name)
    except PerdureError:
        return hashed_id("session", session_id)


def _reply(fact: ExecutionFact) -> str:
    end = fact.record
    lines = [f"exit code: {'unknown' if end.exit_code is None else end.exit_code}"]
    if end.reason != "exited":
        lines.append(f"ended by: {end.reason}")
    for name, output in (("stdout", fact.stdout), ("stderr", fact.stderr)):
        if output.size:
            lines.append(f"{name}:\n{_shortened(output)}")
    return "\n".join(lines)


def _shortened(output: CapturedOutput) -> str:
    text = output.text.rstrip("\n")
    if len(text) <= MAX_CHARS:
        return text
    left_out = len(text) - MAX_CHARS
    tail = text[_HEAD_CHARS - MAX_CHARS :]
    return f"{text[:_HEAD_CHARS]}\n[... {left_out:,} characters left out ...]\n{tail}"
