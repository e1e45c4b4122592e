"""Verbs on commands of tasks, with views out: what HTTP, the command line and MCP offer."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

from msgspec import convert

from perdure.core.session.naming import check_id
from perdure.sandbox.base import Channel
from perdure.tasks.entries import TaskEntry, get_task
from perdure.tasks.executions.requests import (
    TIMEOUT_S,
    WAIT_S,
    CommandRequest,
    check_request,
    ms_argument,
)
from perdure.tasks.model.executions import CapturedOutput, ExecutionFact, ExecutionRecord
from perdure.tasks.service import Tasks
from perdure.tasks.values import TaskRef, check_count, invalid
from perdure.tasks.views import execution_view
from perdure.views.tasks import (
    CommandAvailability,
    CommandOutput,
    Execution,
    ExecutionPage,
    FinishedCommand,
)

MAX_LISTED: Final = 1_000


class ExecutionVerbs:
    """Commands in the tasks of one tenant. Durations are ms, as the seed has them."""

    def __init__(self, tasks: Tasks, tenant: str | None) -> None:
        self._tasks = tasks
        self._tenant = tenant

    def _ref(self, task_id: str) -> TaskRef:
        return TaskRef(self._tenant or "", task_id)

    async def availability(self) -> CommandAvailability:
        """Return whether commands can run here, or why not."""
        return convert(await self._tasks.sandbox.availability(), CommandAvailability)

    async def start(self, task_id: str, command: Any, options: Mapping[str, Any]) -> Execution:
        """Start a command, which does not end with its caller; return the running execution.

        `options` are `timeout`, `wait` and `by`. Raises NotFound, Conflict, Refused,
        SandboxUnavailable.
        """
        request = self._request(command, options)
        running = await self._tasks.executions.start(self._ref(task_id), request)
        return execution_view(task_id, running.record)

    def _request(self, command: Any, options: Mapping[str, Any]) -> CommandRequest:
        return check_request(
            command,
            ms_argument(options.get("timeout"), TIMEOUT_S, "timeout"),
            self._tasks.sandbox.options.max_timeout_ms,
            wait_ms=ms_argument(options.get("wait"), WAIT_S, "wait"),
            by=check_id(options["by"], "name") if options.get("by") else "",
        )

    async def list(self, task_id: str, limit: int = 50, after: str | None = None) -> ExecutionPage:
        """List executions, newest first, without output."""
        task = await get_task(self._tasks.store, self._ref(task_id))
        count = min(check_count(limit, "limit"), MAX_LISTED)
        try:
            listed, following = await self._tasks.executions.history.list(task.stream, count, after)
        except ValueError as error:
            raise invalid("`after` is not a cursor of this list") from error
        executions = tuple(execution_view(task_id, execution) for execution in listed)
        return ExecutionPage(task_id=task_id, executions=executions, next=following)

    async def last(self, task: TaskEntry) -> Execution | None:
        """Return the newest execution of a task, as `output` does; None without one."""
        listed, _ = await self._tasks.executions.history.list(task.stream, 1)
        return await self._with_output(task, listed[0]) if listed else None

    async def output(self, task_id: str, execution_id: str) -> Execution:
        """Return an execution with its output, that so far while it runs. Raises NotFound.

        One that runs on another machine has its output once it has ended.
        """
        task = await get_task(self._tasks.store, self._ref(task_id))
        execution = await self._tasks.executions.history.get(task.stream, execution_id)
        return await self._with_output(task, execution)

    async def _with_output(self, task: TaskEntry, execution: ExecutionRecord) -> Execution:
        task_id, executions = task.record.id, self._tasks.executions
        if not execution.is_running:
            return await self._shown(task_id, task.stream, execution)
        outputs = await executions.output_so_far(task, execution.id)
        execution = await executions.history.get(task.stream, execution.id)
        if execution.is_running:
            return execution_view(task_id, execution, outputs)
        return await self._shown(task_id, task.stream, execution)  # it has ended meanwhile

    async def _shown(self, task_id: str, stream: str, execution: ExecutionRecord) -> Execution:
        if execution.is_running:
            return execution_view(task_id, execution)
        return _ended(task_id, await self._tasks.executions.history.fact(stream, execution))

    async def get(self, task_id: str, execution_id: str) -> Execution:
        """Return an execution, with its output once it has ended. Raises NotFound."""
        task = await get_task(self._tasks.store, self._ref(task_id))
        execution = await self._tasks.executions.history.get(task.stream, execution_id)
        return await self._shown(task_id, task.stream, execution)

    async def result(self, task_id: str, execution_id: str) -> Execution:
        """Wait for the end of an execution in any process, and return it. Raises NotFound."""
        fact = await self._tasks.executions.result(self._ref(task_id), execution_id)
        return _ended(task_id, fact)

    async def cancel(self, task_id: str, execution_id: str) -> Execution:
        """Stop a command in any process, and return it. Raises NotFound."""
        await self._tasks.executions.cancel(self._ref(task_id), execution_id)
        return await self.get(task_id, execution_id)

    async def follow(
        self, task_id: str, execution_id: str
    ) -> AsyncGenerator[CommandOutput | FinishedCommand | None, None]:
        """Yield the output as it comes, and last the command that has ended; None after a pause."""
        ref = self._ref(task_id)
        async with aclosing(self._tasks.executions.follow(ref, execution_id)) as texts:
            async for text in texts:
                if text is None:
                    yield None
                else:
                    yield CommandOutput(channel=text.channel, text=text.text)
        yield FinishedCommand(execution=await self.get(task_id, execution_id))


def _ended(task_id: str, fact: ExecutionFact) -> Execution:
    output: dict[Channel, CapturedOutput] = {"stdout": fact.stdout, "stderr": fact.stderr}
    return execution_view(task_id, fact.record, output)
