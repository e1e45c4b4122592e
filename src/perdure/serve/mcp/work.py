"""Work that outlives its call: its state, waiting for it, and cancelling it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

import anyio
import msgspec

from perdure.core.log import events
from perdure.core.pending.record import APPROVER_KINDS, PendingRecord
from perdure.core.session.child_tasks import ChildTask, output_text, task_answer
from perdure.errors import Conflict, Corrupt, NotFound, Refused
from perdure.runtime.diagnosis.tasks import WAITING_FOR, waiting_answer
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.serve.mcp.resources import task_uri
from perdure.serve.mcp.specification import specified
from perdure.serve.mcp.toolbox import Json, Link, ToolAnswer
from perdure.tasks.execution_verbs import ExecutionVerbs
from perdure.tasks.handles import WorkKind, WorkRef
from perdure.views.tasks import Execution

WorkStatus = Literal["working", "completed", "cancelled"]
POLL_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class WorkState:
    """Work as it stands: its answer if it has ended, and the calls for which it waits."""

    status: WorkStatus
    updated_at: int
    answer: ToolAnswer
    waiting: tuple[PendingRecord, ...] = ()  # for approvers and submitters
    is_left_to_people: bool = False  # nothing moves before one of them decides

    @property
    def has_ended(self) -> bool:
        """True if it has an outcome."""
        return self.status != "working"


IsEnough = Callable[[WorkState], bool]  # whether a caller need not wait longer


class BackgroundWork:
    """Runs of background agents."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._background = service.background

    @staticmethod
    def ref(task: ChildTask) -> WorkRef:
        """Return the reference to the present run of a task."""
        return WorkRef("background", task.id, task.run, task.stream)

    async def state(self, tenant: str, work: WorkRef) -> WorkState:
        """Return the state of a run. Raises NotFound."""
        task = await self._background.get(tenant, work.task_id)
        if task.run != work.number:
            return await self._earlier_run(task, work.number)
        if task.is_active:
            return await self._running(task)
        calls = (await self._background.open_calls(task)).from_outside
        waiting = waiting_answer(calls, self._service.public_url, has_ended=True)
        fields = {**await self._background.answer(task), **waiting}
        status: WorkStatus = "cancelled" if task.status == "cancelled" else "completed"
        return WorkState(status, task.updated_at, _answer(fields), calls)

    async def _earlier_run(self, task: ChildTask, run: str) -> WorkState:
        """Return the outcome of a run after which the task was resumed, from its log."""
        fields: Json = task_answer(task, error=f"the output of run {run} cannot be read")
        try:
            log = await self._service.log(await self._background.session(task))
        except (NotFound, Corrupt):
            return WorkState("completed", task.updated_at, _answer(fields))
        for item in log.events:
            event = item.event
            if isinstance(event, events.AgentComplete) and event.run == run:
                output = None if event.output is None else msgspec.json.decode(event.output)
                fields = {**task_answer(task), "status": "completed", "output": output_text(output)}
            elif isinstance(event, events.AgentError) and event.run == run:
                fields = {**task_answer(task), "status": "error", "error": event.error}
        return WorkState("completed", task.updated_at, _answer(fields))

    async def _running(self, task: ChildTask) -> WorkState:
        tree = await self._background.open_calls(task)
        waiting = waiting_answer(tree.from_outside, self._service.public_url)
        return WorkState(
            "working",
            task.updated_at,
            running_answer(task, waiting),
            tree.from_outside,
            tree.is_left_to_people,
        )

    async def find_call(self, tenant: str, work: WorkRef, pending_id: str) -> PendingRecord | None:
        """Return a call of the work, open or settled; None if it is not one of its calls."""
        task = await self._background.get(tenant, work.task_id)
        try:
            record = await self._service.calls.get(pending_id, tenant)
        except (NotFound, Refused):
            return None
        is_own = task.session_id in (record.session_id, *record.ancestry)
        return record if is_own and record.kind in APPROVER_KINDS else None

    async def wait(self, tenant: str, work: WorkRef, seconds: float, is_enough: IsEnough) -> None:
        """Wait until the run has ended, its state is enough, or for a time; nothing is driven."""
        task = await self._background.get(tenant, work.task_id)
        entry = await self._background.session(task)

        async def is_over() -> bool:
            state = await self.state(tenant, work)
            return state.has_ended or is_enough(state)

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._service.runs.wait_for(entry, is_over, drive=False)

    async def cancel(self, caller: Caller, work: WorkRef) -> None:
        """Cancel the run, if it has not ended. Raises NotFound."""
        task = await self._background.get(caller.home_tenant, work.task_id)
        if task.is_active and task.run == work.number:
            try:
                await self._background.cancel(task, caller.name, None, caller.via)
            except Conflict:
                return  # it has ended meanwhile


def running_answer(task: ChildTask, waiting: Json | None = None) -> ToolAnswer:
    """Return the answer about a task that still runs: its handle, and what to do next.

    `waiting` says for whom it waits, if it does: then it is not working.
    """
    call = f"Call background_output with task_id {task.id} and block=true"
    if waiting and WAITING_FOR in waiting:
        message = f"{waiting['message']} Tell the person; list_pending has the arguments. {call} "
        message += (
            "to ask the person who uses this client, if they may decide, or after a decision."
        )
    else:
        state = waiting["message"] if waiting else "The background agent is working."
        message = f"{state} {call} to wait for its result."
    fields = task_answer(task, agent=task.agent, **{**(waiting or {}), "message": message})
    return ToolAnswer({"success": True, **fields})


def _answer(fields: Json) -> ToolAnswer:
    is_error = "error" in fields
    return ToolAnswer({"success": not is_error, **fields}, is_error=is_error)


class ExecutionWork:
    """Commands in tasks."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def _verbs(self, tenant: str) -> ExecutionVerbs:
        return ExecutionVerbs(self._service.tasks, tenant)

    async def state(self, tenant: str, work: WorkRef) -> WorkState:
        """Return the state of a command. Raises NotFound."""
        value = await self._verbs(tenant).get(work.task_id, work.number)
        now = self._service.now()
        if value.status == "running":
            return WorkState("working", now, running_command(value))
        status: WorkStatus = "cancelled" if value.reason == "cancelled" else "completed"
        return WorkState(status, now, command_answer(value))

    async def find_call(self, tenant: str, work: WorkRef, pending_id: str) -> PendingRecord | None:
        """Return None: a command waits for nobody."""
        del tenant, work, pending_id
        return None

    async def wait(self, tenant: str, work: WorkRef, seconds: float, is_enough: IsEnough) -> None:
        """Wait until the command has ended, in any process, or for a time."""
        del is_enough  # a command waits for nobody
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._verbs(tenant).result(work.task_id, work.number)

    async def cancel(self, caller: Caller, work: WorkRef) -> None:
        """Stop the command, if it has not ended."""
        await self._verbs(caller.home_tenant).cancel(work.task_id, work.number)


_PUBLISHED: Final = ("success", "taskId", "exitCode", "stdout", "stderr", "duration")
_MORE: Final = ("reason", "signal", "truncated", "sandbox", "executionId", "problem")


def command_answer(execution: Execution) -> ToolAnswer:
    """Return the answer about a command that has ended: the published fields come first."""
    fields = specified(execution)
    return ToolAnswer(
        {name: fields[name] for name in (*_PUBLISHED, *_MORE)}, _output_links(execution)
    )


def running_command(execution: Execution) -> ToolAnswer:
    """Return the answer about a command that still runs: its handle, and the tool to call next."""
    task_id = execution.task_id
    message = (
        f"The command is still running. Call get_task_status with taskId {task_id} to "
        "read its output so far; lastExecution is this command."
    )
    names = {"taskId": task_id, "executionId": execution.execution_id}
    more = {"status": "running", "pollAfterMs": POLL_MS, "message": message}
    return ToolAnswer({"success": True, **names, **more}, _output_links(execution))


def _output_links(execution: Execution) -> tuple[Link, ...]:
    task_id, number = execution.task_id, execution.execution_id
    uri = task_uri(task_id, "executions", number, "output")
    return (
        Link(task_uri(task_id), f"Task {task_id}"),
        Link(uri, f"Output of {number}", "text/plain"),
    )


class Works:
    """Work of every kind."""

    def __init__(self, service: Service) -> None:
        self._kinds: dict[WorkKind, BackgroundWork | ExecutionWork] = {
            "background": BackgroundWork(service),
            "execution": ExecutionWork(service),
        }

    async def state(self, tenant: str, work: WorkRef) -> WorkState:
        """Return the state of work. Raises NotFound."""
        return await self._kinds[work.kind].state(tenant, work)

    async def find_call(self, tenant: str, work: WorkRef, pending_id: str) -> PendingRecord | None:
        """Return a call of work that waits, or waited, for an approver."""
        return await self._kinds[work.kind].find_call(tenant, work, pending_id)

    async def wait(self, tenant: str, work: WorkRef, seconds: float, is_enough: IsEnough) -> None:
        """Wait until work has ended, its state is enough, or for a time."""
        await self._kinds[work.kind].wait(tenant, work, seconds, is_enough)

    async def cancel(self, caller: Caller, work: WorkRef) -> None:
        """Cancel work, if it has not ended."""
        await self._kinds[work.kind].cancel(caller, work)


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """Limits of a wait: its time, its steps, and the event at which every call stops waiting."""

    seconds: float
    step_s: float
    closing: anyio.Event


async def wait_in_steps(
    works: Works, tenant: str, work: WorkRef, limits: WaitLimits, is_enough: IsEnough
) -> AsyncIterator[WorkState]:
    """Yield the state of work after each step, until it has ended, is enough, or time is up."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limits.seconds
    while True:
        state = await works.state(tenant, work)
        yield state
        left = end - loop.time()
        if left <= 0 or limits.closing.is_set() or state.has_ended or is_enough(state):
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_at, limits.closing, tasks.cancel_scope)
            await works.wait(tenant, work, min(limits.step_s, left), is_enough)
            tasks.cancel_scope.cancel()


async def cancel_at(event: anyio.Event, scope: anyio.CancelScope) -> None:
    """Cancel a scope when an event is set."""
    await event.wait()
    scope.cancel()
