"""Work that outlives its call: its state, waiting for it, and cancelling it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

import anyio
import msgspec

from perdure.core.log import events
from perdure.core.pending.record import PendingRecord
from perdure.core.session.child_tasks import ChildTask, output_text, task_answer
from perdure.errors import Conflict, Corrupt, NotFound
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.sessions.service import Service
from perdure.runtime.tasks.execution_verbs import ExecutionVerbs
from perdure.runtime.tasks.handles import WorkKind, WorkRef
from perdure.serve.mcp.access import Caller
from perdure.serve.mcp.resources import task_uri
from perdure.serve.mcp.toolbox import Json, Link, ToolAnswer

WorkStatus = Literal["working", "completed", "cancelled"]
POLL_MS: Final = 5_000
APPROVER_KINDS: Final = ("question", "approval")


@dataclass(frozen=True, slots=True)
class WorkState:
    """Work as it stands: its answer if it has ended, and the calls for which it waits."""

    status: WorkStatus
    updated_at: int
    answer: ToolAnswer
    waiting: tuple[PendingRecord, ...] = ()

    @property
    def has_ended(self) -> bool:
        """True if it has an outcome."""
        return self.status != "working"


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
            waiting = tuple([record async for record in self._waiting(task)])
            return WorkState("working", task.updated_at, running_answer(task), waiting)
        fields = await self._background.answer(task)
        status: WorkStatus = "cancelled" if task.status == "cancelled" else "completed"
        return WorkState(status, task.updated_at, _answer(fields))

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

    async def _waiting(self, task: ChildTask) -> AsyncIterator[PendingRecord]:
        """Yield the calls in the task's tree that wait for an approver."""
        try:
            entry = await self._background.session(task)
        except NotFound:
            return
        async for record in self._tree_calls(entry):
            if record.kind in APPROVER_KINDS:
                yield record

    async def _tree_calls(self, entry: SessionEntry) -> AsyncIterator[PendingRecord]:
        for record in await self._service.calls.of_session(entry):
            yield record
        inbox = self._background.resources.child_inbox
        async for item in inbox.tasks_of(entry.stream):
            if item.task.is_active and item.task.stream != entry.stream:
                child = await self._service.runs.find_child(item.task)
                if child is not None:
                    async for record in self._tree_calls(child):
                        yield record

    async def wait(self, tenant: str, work: WorkRef, seconds: float) -> None:
        """Wait until the run has ended, or for a time; nothing is driven here."""
        task = await self._background.get(tenant, work.task_id)
        if task.is_active and task.run == work.number:
            await self._background.wait(task, max(1, int(seconds * 1_000)), drive=False)

    async def cancel(self, caller: Caller, work: WorkRef) -> None:
        """Cancel the run, if it has not ended. Raises NotFound."""
        task = await self._background.get(caller.home_tenant, work.task_id)
        if task.is_active and task.run == work.number:
            try:
                await self._background.cancel(task, caller.name, None, caller.via)
            except Conflict:
                return  # it has ended meanwhile


def running_answer(task: ChildTask) -> ToolAnswer:
    """Return the answer about a task that still runs: its handle, and the tool to call next."""
    message = (
        f"The background agent is working. Call background_output with task_id {task.id} to read "
        "its result; with block=true the call waits for it."
    )
    return ToolAnswer({"success": True, **task_answer(task, agent=task.agent, message=message)})


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
        if value["status"] == "running":
            return WorkState("working", now, running_command(value))
        status: WorkStatus = "cancelled" if value["reason"] == "cancelled" else "completed"
        return WorkState(status, now, command_answer(value))

    async def wait(self, tenant: str, work: WorkRef, seconds: float) -> None:
        """Wait until the command has ended, in any process, or for a time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._verbs(tenant).result(work.task_id, work.number)

    async def cancel(self, caller: Caller, work: WorkRef) -> None:
        """Stop the command, if it has not ended."""
        await self._verbs(caller.home_tenant).cancel(work.task_id, work.number)


_PUBLISHED: Final = ("success", "taskId", "exitCode", "stdout", "stderr", "duration")
_MORE: Final = ("reason", "signal", "truncated", "sandbox", "executionId", "problem")


def command_answer(value: Json) -> ToolAnswer:
    """Return the answer about a command that has ended: the published fields come first."""
    fields = {name: value[name] for name in (*_PUBLISHED, *_MORE)}
    return ToolAnswer(fields, _output_links(value))


def running_command(value: Json) -> ToolAnswer:
    """Return the answer about a command that still runs: its handle, and the tool to call next."""
    message = (
        f"The command is still running. Call get_task_status with taskId {value['taskId']} to "
        "read its output so far; lastExecution is this command."
    )
    names = {"taskId": value["taskId"], "executionId": value["executionId"]}
    more = {"status": "running", "pollAfterMs": POLL_MS, "message": message}
    return ToolAnswer({"success": True, **names, **more}, _output_links(value))


def _output_links(value: Json) -> tuple[Link, ...]:
    task_id, number = str(value["taskId"]), str(value["executionId"])
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

    async def wait(self, tenant: str, work: WorkRef, seconds: float) -> None:
        """Wait until work has ended, or for a time."""
        await self._kinds[work.kind].wait(tenant, work, seconds)

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
    works: Works, tenant: str, work: WorkRef, limits: WaitLimits
) -> AsyncIterator[float]:
    """Yield the seconds that have passed, after each step, until work has ended or time is up."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    while True:
        passed = loop.time() - start
        left = limits.seconds - passed
        if left <= 0 or limits.closing.is_set():
            return
        if (await works.state(tenant, work)).has_ended:
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_at, limits.closing, tasks.cancel_scope)
            await works.wait(tenant, work, min(limits.step_s, left))
            tasks.cancel_scope.cancel()
        yield loop.time() - start


async def _cancel_at(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
