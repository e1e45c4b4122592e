"""Starts of commands: their turn, the slot of their task, and the lock of its workspace."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from anyio import to_thread
from msgspec.structs import replace

from perdure.errors import Conflict, StoreError
from perdure.ids import new_id
from perdure.sandbox.base import Sandbox
from perdure.store.base import Gone, NoStream, Store, VersionMoved
from perdure.store.shared.private_files import make_folder
from perdure.tasks.entries import TaskEntry, get_task
from perdure.tasks.executions.output import OutputSpool, spool_folder
from perdure.tasks.executions.requests import CommandRequest
from perdure.tasks.executions.runner import ActiveCommands, CommandRunner, RunningCommand
from perdure.tasks.executions.sandboxes import ConfiguredSandbox
from perdure.tasks.executions.slots import SlotEntry, Slots
from perdure.tasks.files.folder_lock import FolderLocked, folder_lock
from perdure.tasks.files.place import (
    EXECUTIONS,
    WORKSPACE,
    TaskPlace,
    cannot_write,
    make_workspace,
)
from perdure.tasks.locks.process import RunBeside
from perdure.tasks.model.executions import CommandSlot, ExecutionFact, ExecutionRecord
from perdure.tasks.model.record import TaskRecord
from perdure.tasks.model.status import Status
from perdure.tasks.values import TaskRef

logger = logging.getLogger("perdure")

LOOK_S: Final = 1.0  # between two looks at a command in another process
HELD_S: Final = 0.1  # between two attempts to start while another process holds the task
RECENT: Final = 500  # tasks whose slots are remembered


class _Attempt(NamedTuple):
    """A command that is about to take the slot of its task."""

    task: TaskEntry
    slot: SlotEntry
    request: CommandRequest
    sandbox: Sandbox
    deadline: float  # monotonic


class CommandStarts:
    """Starts the commands of a runtime's tasks; each runs beside its caller."""

    def __init__(  # noqa: PLR0913 - the parts that a start needs
        self,
        store: Store,
        place: TaskPlace,
        sandbox: ConfiguredSandbox,
        slots: Slots,
        *,
        runner: CommandRunner,
        active: ActiveCommands,
        settle_left: Callable[[str], Awaitable[bool]],
        run_beside: RunBeside,
    ) -> None:
        self._store = store
        self._place = place
        self._sandbox = sandbox
        self._slots = slots
        self._runner = runner
        self._active = active
        self._settle_left = settle_left  # the command of a process that has died
        self._run_beside = run_beside
        self._turns: WeakValueDictionary[TaskRef, asyncio.Lock] = WeakValueDictionary()
        self._recent: OrderedDict[TaskRef, tuple[TaskEntry, SlotEntry]] = OrderedDict()

    async def start(self, ref: TaskRef, request: CommandRequest) -> RunningCommand:
        """Start a command once no other one runs in the task; it does not end with its caller.

        Raises NotFound, Conflict TASK_STATUS_CONFLICT, TASK_BUSY, Refused TASK_ELSEWHERE,
        SandboxUnavailable; then nothing was started.
        """
        deadline = time.monotonic() + request.wait_ms / 1000
        async with self._turn(ref, deadline):
            while True:
                task, slot = await self._present(ref)
                self._check(task.record)
                sandbox = await self._sandbox.ready(task.record.require)
                if slot.slot.is_free and self._active.get(task.stream) is None:
                    attempt = _Attempt(task, slot, request, sandbox, deadline)
                    running = await self._begin(attempt)
                    if running is not None:
                        return running
                elif not await self._settle_left(task.stream):
                    await self.wait_free(task, slot, deadline)

    @asynccontextmanager
    async def _turn(self, ref: TaskRef, deadline: float) -> AsyncIterator[None]:
        """Let the callers of this process start their commands in the order in which they came.

        Raises Conflict TASK_BUSY after the deadline.
        """
        lock = self._turns.setdefault(ref, asyncio.Lock())
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await lock.acquire()
        except TimeoutError:
            task = await get_task(self._store, ref)
            running = self._active.get(task.stream)
            if running is None:
                raise task_busy(ref.task_id, "another command is about to run") from None
            raise busy_with(ref.task_id, running.record.id) from None
        try:
            yield
        finally:
            lock.release()

    async def _present(self, ref: TaskRef) -> tuple[TaskEntry, SlotEntry]:
        """Return a task and its slot as this process left them, or else as the store has them.

        What another process has changed since makes the commit of the start fail, and is read then.
        """
        recent = self._recent.pop(ref, None)
        if recent is not None and self._place.folder(recent[0].stream).is_dir():
            return recent  # else it was deleted, and its folder must not be made again
        task = await get_task(self._store, ref)
        return task, await self._slots.get(task.stream)

    def _check(self, row: TaskRecord) -> None:
        if self._active.is_closing:
            raise StoreError("the runtime is closing", code="CLOSING")
        if row.status is not Status.RUNNING:
            remedy, hint = "", "create another task: this one has ended"
            if row.status is Status.PENDING:
                remedy = "; attach_agent_to_task starts it"
                hint = f"perdure tasks attach {row.id} AGENT, or the tool attach_agent_to_task"
            raise Conflict(
                f"Cannot execute a command in task with status: {row.status}{remedy}",
                code="TASK_STATUS_CONFLICT",
                hint=hint,
                details={"status": str(row.status)},
            )
        self._place.check_here(row)

    async def wait_free(self, task: TaskEntry, slot: SlotEntry, deadline: float) -> None:
        """Wait until the slot may be free. Raises Conflict TASK_BUSY after the deadline."""
        left_s = deadline - time.monotonic()
        running = self._active.get(task.stream)
        if left_s <= 0:  # the slot of a command that is just ending is free
            execution_id = slot.slot.execution if running is None else running.record.id
            raise busy_with(task.record.id, execution_id)
        if running is None:
            await self._store.changed(min(left_s, LOOK_S))
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await running.ended.wait()

    async def _begin(self, attempt: _Attempt) -> RunningCommand | None:
        """Take the slot and run the command; return it once it runs, None if another was first.

        A caller that is cancelled before it has the command has it stopped.
        """
        future: asyncio.Future[RunningCommand | None] = asyncio.get_running_loop().create_future()
        self._run_beside(partial(self._run, attempt, future))
        try:
            return await future
        except asyncio.CancelledError:
            # The future may have its result already, which this caller never gets.
            has_result = future.done() and not future.cancelled() and future.exception() is None
            if has_result and (running := future.result()) is not None:
                running.stop("cancelled")
            raise

    async def _run(
        self, attempt: _Attempt, future: "asyncio.Future[RunningCommand | None]"
    ) -> None:
        try:
            with ExitStack() as stack:
                await self._lock_workspace(stack, attempt)
                stack.enter_context(self._active.starting())
                running = await self._take(attempt)
                if future.cancelled() and running is not None:
                    running.stop("cancelled")
                elif not future.done():
                    future.set_result(running)
                if running is not None:
                    with self._active.while_running(running):
                        await self._runner.run(running, attempt.sandbox)
                    self._remember(attempt.task, running)
        except Exception as error:
            if future.done():
                logger.exception("a command in %s failed", attempt.task.stream)
            else:
                future.set_exception(error)
        finally:
            future.cancel()

    def _remember(self, task: TaskEntry, running: RunningCommand) -> None:
        """Remember the free slot for the next command, unless others have written."""
        if running.outcome is None or task.record.sandbox != running.record.sandbox:
            return
        ref = TaskRef(task.record.tenant, task.record.id)
        self._recent[ref] = task, SlotEntry(CommandSlot(), running.claim.version + 1)
        while len(self._recent) > RECENT:
            self._recent.popitem(last=False)

    async def _lock_workspace(self, stack: ExitStack, attempt: _Attempt) -> None:
        """Lock the workspace against checkpoints and restores, as long as the command runs."""
        folder = self._place.folder(attempt.task.stream)
        try:
            make_workspace(folder)
            make_folder(folder / EXECUTIONS)
            stack.enter_context(folder_lock(folder / EXECUTIONS, 0))
        except FolderLocked:
            wait_s = max(0.0, attempt.deadline - time.monotonic())
            lock = folder_lock(folder / EXECUTIONS, wait_s)
            try:
                await to_thread.run_sync(lock.__enter__)
            except FolderLocked:
                use = "a checkpoint or restore is under way"
                raise task_busy(attempt.task.record.id, use) from None
            stack.push(lock.__exit__)
        except OSError as error:
            raise cannot_write(folder, error) from error

    async def _take(self, attempt: _Attempt) -> RunningCommand | None:
        task, request = attempt.task, attempt.request
        execution = ExecutionRecord(
            id=new_id("exec"),
            command=request.command,
            timeout_ms=request.timeout_ms,
            sandbox=attempt.sandbox.name,
            started_at=self._store.now(),
            by=request.by,
        )
        if self._active.is_closing:
            raise StoreError("the runtime is closing", code="CLOSING")
        try:
            claim = await self._slots.take(task, attempt.slot, execution)
        except (VersionMoved, NoStream, Gone):
            return None  # another command was first, or the task was changed
        if claim.lease is None:
            end = replace(execution, reason="not_started", duration_ms=0, after=claim.head)
            await self._slots.free(task.record, task.stream, claim, ExecutionFact(end))
            await _wait_released(task.record.id, attempt.deadline)
            return None
        folder = self._place.folder(task.stream)
        spool = OutputSpool(spool_folder(folder, execution.id))
        workspace = folder / WORKSPACE
        return RunningCommand(task.record, task.stream, workspace, execution, claim, spool)


async def _wait_released(task_id: str, deadline: float) -> None:
    """Wait a moment for the process that holds the task. Raises Conflict TASK_BUSY in the end."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise task_busy(task_id, "another process looks after the last command")
    await asyncio.sleep(min(left_s, HELD_S))


def task_busy(task_id: str, use: str, execution_id: str | None = None) -> Conflict:
    """Return the error for a task whose workspace is in use."""
    return Conflict(
        f"task {task_id} is busy: {use} in it",
        code="TASK_BUSY",
        hint="wait for its end, or cancel it",
        details={"executionId": execution_id},
    )


def busy_with(task_id: str, execution_id: str) -> Conflict:
    """Return the error for a task in which a command runs."""
    return task_busy(task_id, f"execution {execution_id} runs", execution_id)
