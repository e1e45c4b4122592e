"""Verbs on commands of tasks with JSON in and out: what HTTP, the CLI and MCP offer."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

from perdure.core.session.naming import check_id
from perdure.core.tasks.executions import ExecutionRecord
from perdure.runtime.tasks.entries import TaskEntry, get_task
from perdure.runtime.tasks.executions.requests import (
    TIMEOUT_S,
    WAIT_S,
    CommandRequest,
    check_request,
    execution_json,
    ms_argument,
    result_json,
)
from perdure.runtime.tasks.service import Tasks
from perdure.runtime.tasks.values import TaskRef, check_count, invalid

Json = dict[str, Any]
MAX_LISTED: Final = 1_000


class ExecutionVerbs:
    """Commands in the tasks of one tenant. Durations are ms, as the seed has them."""

    def __init__(self, tasks: Tasks, tenant: str | None) -> None:
        self._tasks = tasks
        self._tenant = tenant

    def _ref(self, task_id: str) -> TaskRef:
        return TaskRef(self._tenant or "", task_id)

    async def availability(self) -> Json:
        """Return whether commands can run here: `{available, sandbox, guarantees}` or why not."""
        return await self._tasks.sandbox.availability()

    async def execute(self, task_id: str, command: Any, options: Mapping[str, Any]) -> Json:
        """Run a command and wait for its end; `options` are `timeout`, `wait` and `by`.

        The answer has the seed's `success, taskId, exitCode, stdout, stderr, duration`, and
        `reason, signal, truncated, sandbox, executionId`. Raises NotFound, Conflict, Refused,
        SandboxUnavailable.
        """
        request = self._request(command, options)
        fact = await self._tasks.executions.execute(self._ref(task_id), request)
        return result_json(task_id, fact)

    async def start(self, task_id: str, command: Any, options: Mapping[str, Any]) -> Json:
        """Start a command, which does not end with its caller; return the running execution."""
        request = self._request(command, options)
        running = await self._tasks.executions.start(self._ref(task_id), request)
        return execution_json(task_id, running.record)

    def _request(self, command: Any, options: Mapping[str, Any]) -> CommandRequest:
        return check_request(
            command,
            ms_argument(options.get("timeout"), TIMEOUT_S, "timeout"),
            self._tasks.sandbox.options.max_timeout_ms,
            wait_ms=ms_argument(options.get("wait"), WAIT_S, "wait"),
            by=check_id(options["by"], "name") if options.get("by") else "",
        )

    async def list(self, task_id: str, limit: int = 50, after: str | None = None) -> Json:
        """List executions, newest first, without output: `{taskId, executions, next}`."""
        task = await get_task(self._tasks.store, self._ref(task_id))
        count = min(check_count(limit, "limit"), MAX_LISTED)
        try:
            listed, following = await self._tasks.executions.history.list(task.stream, count, after)
        except ValueError as error:
            raise invalid("`after` is not a cursor of this list") from error
        items = [execution_json(task_id, execution) for execution in listed]
        return {"taskId": task_id, "executions": items, "next": following}

    async def last(self, task: TaskEntry) -> Json | None:
        """Return the newest execution of a task, as `output` does; None without one."""
        listed, _ = await self._tasks.executions.history.list(task.stream, 1)
        return await self._with_output(task, listed[0]) if listed else None

    async def output(self, task_id: str, execution_id: str) -> Json:
        """Return an execution with its output, that so far while it runs. Raises NotFound.

        One that runs on another machine has its output once it has ended.
        """
        task = await get_task(self._tasks.store, self._ref(task_id))
        execution = await self._tasks.executions.history.get(task.stream, execution_id)
        return await self._with_output(task, execution)

    async def _with_output(self, task: TaskEntry, execution: ExecutionRecord) -> Json:
        task_id, executions = task.record.id, self._tasks.executions
        if not execution.is_running:
            return await self._shown(task_id, task.stream, execution)
        outputs = await executions.output_so_far(task, execution.id)
        execution = await executions.history.get(task.stream, execution.id)
        value = await self._shown(task_id, task.stream, execution)
        if outputs is None or not execution.is_running:  # it has ended meanwhile
            return value
        for channel, captured in outputs.items():
            value[channel] = captured.text
            value[f"{channel}Bytes"] = captured.size
        return value

    async def _shown(self, task_id: str, stream: str, execution: ExecutionRecord) -> Json:
        if execution.is_running:
            return execution_json(task_id, execution)
        return result_json(task_id, await self._tasks.executions.history.fact(stream, execution))

    async def get(self, task_id: str, execution_id: str) -> Json:
        """Return an execution, with its output once it has ended. Raises NotFound."""
        task = await get_task(self._tasks.store, self._ref(task_id))
        execution = await self._tasks.executions.history.get(task.stream, execution_id)
        return await self._shown(task_id, task.stream, execution)

    async def result(self, task_id: str, execution_id: str) -> Json:
        """Wait for the end of an execution in any process, and return it. Raises NotFound."""
        fact = await self._tasks.executions.result(self._ref(task_id), execution_id)
        return result_json(task_id, fact)

    async def cancel(self, task_id: str, execution_id: str) -> Json:
        """Stop a command in any process, and return it. Raises NotFound."""
        await self._tasks.executions.cancel(self._ref(task_id), execution_id)
        return await self.get(task_id, execution_id)

    async def follow(self, task_id: str, execution_id: str) -> AsyncGenerator[Json | None, None]:
        """Yield `{type: "output", channel, text}`, and last `{type: "finished", execution}`.

        None after a pause.
        """
        ref = self._ref(task_id)
        async with aclosing(self._tasks.executions.follow(ref, execution_id)) as texts:
            async for text in texts:
                if text is None:
                    yield None
                else:
                    yield {"type": "output", "channel": text.channel, "text": text.text}
        yield {"type": "finished", "execution": await self.get(task_id, execution_id)}
