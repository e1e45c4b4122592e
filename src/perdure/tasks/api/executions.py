"""Commands in tasks: a handle on one that was started, and its result."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from perdure.tasks.executions.reader import OutputText
from perdure.tasks.executions.requests import ExecutionResult, execution_result
from perdure.tasks.executions.service import Executions
from perdure.tasks.values import TaskRef


class TaskCommand:
    """A command in a task. It outlives its caller, but not the process that runs it."""

    def __init__(self, executions: Executions, ref: TaskRef, execution_id: str) -> None:
        self._executions = executions
        self._ref = ref
        self.id = execution_id
        self.task_id = ref.task_id

    def __repr__(self) -> str:
        return f"Execution(id={self.id!r}, task_id={self.task_id!r})"

    async def follow(self) -> AsyncGenerator[OutputText, None]:
        """Yield `(channel, text)` of the output from its beginning until the command ends."""
        async with aclosing(self._executions.follow(self._ref, self.id)) as texts:
            async for text in texts:
                if text is not None:
                    yield text

    async def result(self) -> ExecutionResult:
        """Wait for the end of the command, in any process. Raises NotFound."""
        fact = await self._executions.result(self._ref, self.id)
        return execution_result(self.task_id, fact)

    async def cancel(self) -> ExecutionResult:
        """Stop the command, in any process, and return its result. Raises NotFound."""
        await self._executions.cancel(self._ref, self.id)
        return await self.result()
