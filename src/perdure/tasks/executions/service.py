"""Executions of commands in tasks: started, followed, stopped, and settled after a crash."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from anyio import to_thread

from perdure.errors import PerdureError
from perdure.sandbox.base import Channel
from perdure.store.base import Store
from perdure.tasks.entries import TaskEntry, get_task
from perdure.tasks.executions.history import ExecutionHistory
from perdure.tasks.executions.live import ANNOUNCE_S, ExecutionBus
from perdure.tasks.executions.output import (
    CHANNELS,
    read_captured,
    read_spool,
    spool_folder,
)
from perdure.tasks.executions.reader import OutputReader, OutputText
from perdure.tasks.executions.requests import CommandRequest
from perdure.tasks.executions.runner import ActiveCommands, CommandRunner, RunningCommand
from perdure.tasks.executions.sandboxes import ConfiguredSandbox
from perdure.tasks.executions.settlement import CommandSettlement
from perdure.tasks.executions.slots import Slots, StreamLeases
from perdure.tasks.executions.starts import CommandStarts
from perdure.tasks.files.place import TaskPlace
from perdure.tasks.locks.process import RunBeside
from perdure.tasks.model.executions import CapturedOutput, ExecutionFact, ExecutionRecord
from perdure.tasks.model.record import STREAM_KIND
from perdure.tasks.values import TaskRef
from perdure.tasks.writer import TaskWriter

logger = logging.getLogger("perdure")

T = TypeVar("T")

LOOK_S: Final = 1.0  # between two looks at a command in another process
STOP_S: Final = 15.0  # for a command to end that was told to
SETTLED_AT_ONCE: Final = 16  # tasks in one round of a worker
CLOSE_S: Final = 10.0  # for the commands of a runtime that closes


class Executions:
    """Commands of a runtime's tasks. Those that it runs end with it, and not with their callers."""

    def __init__(
        self,
        store: Store,
        writer: TaskWriter,
        place: TaskPlace,
        sandbox: ConfiguredSandbox,
        leases: StreamLeases,
        run_beside: RunBeside,
    ) -> None:
        self.sandbox = sandbox
        self.history = ExecutionHistory(store)
        self._store = store
        self._place = place
        self._leases = leases
        self._run_beside = run_beside
        self._bus = ExecutionBus(store)
        self._slots = Slots(store, writer, leases)
        self.settlement = CommandSettlement(store, place, sandbox, leases, self._slots)
        self._active = ActiveCommands(self._bus)
        runner = CommandRunner(store, self._slots, self._bus, sandbox.options)
        self._starts = CommandStarts(
            store,
            place,
            sandbox,
            self._slots,
            runner=runner,
            active=self._active,
            settle_left=self.settle_left,
            run_beside=run_beside,
        )
        self._connection = ExitStack()
        self._is_connected = False
        leases.when_lost(self._lose)

    # --- open and close -----------------------------------------------------------------------

    def open(self) -> None:
        """Allow commands, also after a close."""
        self._active.is_closing = False

    async def close(self) -> None:
        """Stop the commands of this process; each is recorded as interrupted."""
        self._active.is_closing = True
        for command in self._active.all():
            command.stop("interrupted")
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._active.wait_for_all()
        self.sandbox.close()
        self._connection.close()
        self._is_connected = False

    def _connect(self) -> None:
        if not self._is_connected:
            self._connection.enter_context(self._bus.connect(self.look, self._rebroadcast))
            self._is_connected = True

    def _rebroadcast(self, execution_id: str) -> None:
        """Send the last output again: a follower elsewhere has just come."""
        for command in self._active.all():
            if command.record.id != execution_id:
                continue
            for channel in CHANNELS:
                start = max(0, command.spool.captured(channel).size - 64 * 1024)
                for piece in read_spool(command.spool.folder, channel, start):
                    self._bus.publish(execution_id, piece)

    def _lose(self, holder: str) -> None:
        for command in self._active.all():
            if command.claim.lease is not None and command.claim.lease.holder == holder:
                command.stop("interrupted")

    async def abandoned(self, stream: str) -> ExecutionRecord | None:
        """Return a running command whose process has stopped and whose end nobody has recorded.

        Raises Corrupt.
        """
        slot = (await self._slots.get(stream)).slot
        if slot.is_free:
            return None
        holder = (await self._store.read(stream, limit=0)).holder
        if holder is not None and holder in (await self._store.census(())).alive:
            return None
        execution = await self.history.find(stream, slot.execution)
        return execution if execution is not None and execution.is_running else None

    async def _beside(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run something that a cancelled caller must not interrupt, and return its result."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                result = await work()
            except asyncio.CancelledError:
                future.cancel()
                raise
            except Exception as error:
                if future.done():
                    logger.exception("a command could not be handled")
                else:
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self._run_beside(run)
        return await future

    # --- start --------------------------------------------------------------------------------

    async def start(self, ref: TaskRef, request: CommandRequest) -> RunningCommand:
        """Start a command once no other one runs in the task; it does not end with its caller.

        Raises NotFound, Conflict TASK_STATUS_CONFLICT, TASK_BUSY, Refused TASK_ELSEWHERE,
        SandboxUnavailable; then nothing was started.
        """
        self._connect()
        return await self._starts.start(ref, request)

    # --- results ------------------------------------------------------------------------------

    async def execute(self, ref: TaskRef, request: CommandRequest) -> ExecutionFact:
        """Run a command and return its end. Cancelling the caller stops the command.

        Raises as `start` does, and the error of a sandbox that could not run it.
        """
        running = await self.start(ref, request)
        try:
            await running.ended.wait()
        except asyncio.CancelledError:
            running.stop("cancelled")
            raise
        if running.error is not None:
            raise running.error
        return running.outcome or await self.result(ref, running.record.id)

    async def result(self, ref: TaskRef, execution_id: str) -> ExecutionFact:
        """Wait for the end of a command in any process, and return it. Raises NotFound."""
        task = await get_task(self._store, ref)
        running = self._running(task.stream, execution_id)
        if running is not None:
            await running.ended.wait()
        while True:
            execution = await self.history.get(task.stream, execution_id)
            if not execution.is_running:
                return await self.history.fact(task.stream, execution)
            if not await self.settle_left(task.stream):
                await self._store.changed(LOOK_S)

    def _running(self, stream: str, execution_id: str) -> RunningCommand | None:
        running = self._active.get(stream)
        return running if running is not None and running.record.id == execution_id else None

    async def follow(
        self, ref: TaskRef, execution_id: str
    ) -> AsyncGenerator[OutputText | None, None]:
        """Yield the output of a command from its beginning until its end; None after a pause."""
        self._connect()
        task = await get_task(self._store, ref)
        stream = task.stream
        execution = await self.history.get(stream, execution_id)
        is_here = self._place.has(task.record)
        folder = spool_folder(self._place.folder(stream), execution_id) if is_here else None
        reader = OutputReader(folder)
        announced_at = time.monotonic()
        with self._bus.follow(execution_id, has_spool=is_here) as follower:
            while execution.is_running:
                follower.changed.clear()
                for text in reader.new_texts(follower):
                    yield text
                if not await _is_set(follower.changed, LOOK_S) or follower.has_ended:
                    execution = await self.history.get(stream, execution_id)
                    yield None
                if time.monotonic() > announced_at + ANNOUNCE_S:
                    announced_at = time.monotonic()
                    self._bus.announce(execution_id)
                    await self.settle_left(stream)
            for text in reader.new_texts(follower):
                yield text
        for text in reader.rest(await self.history.fact(stream, execution)):
            yield text

    async def output_so_far(
        self, task: TaskEntry, execution_id: str
    ) -> dict[Channel, CapturedOutput] | None:
        """Return the output of a running command; None if it runs on another machine."""
        running = self._running(task.stream, execution_id)
        if running is not None:
            return {channel: running.spool.captured(channel) for channel in CHANNELS}
        if not self._place.has(task.record):
            return None
        folder = spool_folder(self._place.folder(task.stream), execution_id)
        with suppress(OSError):
            return await to_thread.run_sync(_read_all, folder)
        return None

    # --- stop ---------------------------------------------------------------------------------

    async def cancel(self, ref: TaskRef, execution_id: str) -> ExecutionRecord:
        """Stop a command in any process, and return it when it has ended. Raises NotFound."""
        task = await get_task(self._store, ref)
        execution = await self.history.get(task.stream, execution_id)
        if execution.is_running:
            await self._slots.request_stop(task.stream, execution_id, "cancelled")
            self.nudge(task.stream)
            with suppress(TimeoutError, PerdureError):
                async with asyncio.timeout(STOP_S):
                    await self.result(ref, execution_id)
            execution = await self.history.get(task.stream, execution_id)
        return execution

    def nudge(self, stream: str) -> None:
        """Let the process that runs a command in a task look whether it must stop it."""
        if self._active.get(stream) is not None:
            self.look(stream)
        else:
            self._bus.request_stop(stream)

    def look(self, stream: str) -> None:
        """Look whether the command of a task must stop, if it runs here."""
        running = self._active.get(stream)
        if running is not None:
            running.look.set()

    async def stop_all(self, task: TaskEntry) -> None:
        """Stop the command of a task, and wait for its end. Raises Conflict TASK_BUSY."""
        deadline = time.monotonic() + STOP_S
        while True:
            slot = await self._slots.get(task.stream)
            if slot.slot.is_free:
                return
            await self._slots.request_stop(task.stream, slot.slot.execution, "cancelled")
            self.nudge(task.stream)
            if not await self.settle_left(task.stream):
                await self._starts.wait_free(task, slot, deadline)

    # --- after a crash ------------------------------------------------------------------------

    async def settle_due(self, limit: int = SETTLED_AT_ONCE) -> int:
        """Settle the commands of processes that have died; return how many tasks were claimed."""

        async def claim_and_settle() -> int:
            leases = await self._leases.claim(STREAM_KIND, limit)
            for lease in leases:
                await self.settlement.settle_safely(lease)
            return len(leases)

        return await self._beside(claim_and_settle)

    async def settle_left(self, stream: str) -> bool:
        """Settle the command of a process that has died; False if there is none."""
        if self._active.get(stream) is not None:
            return False

        async def claim_and_settle() -> bool:
            leases = await self._leases.claim(STREAM_KIND, 1, stream)
            return bool(leases) and await self.settlement.settle(leases[0])

        return await self._beside(claim_and_settle)


async def _is_set(event: asyncio.Event, within_s: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
    return event.is_set()


def _read_all(folder: Path) -> dict[Channel, CapturedOutput]:
    return {channel: read_captured(folder, channel) for channel in CHANNELS}
