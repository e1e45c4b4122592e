"""One running command: its sandbox, its output, requests to stop it, and the record of its end."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from perdure.errors import PerdureError, SandboxUnavailable, StoreError
from perdure.sandbox.base import Channel, ExecResult, ExecSpec, Sandbox
from perdure.store.base import Store
from perdure.tasks.executions.live import ExecutionBus
from perdure.tasks.executions.options import ExecutionOptions
from perdure.tasks.executions.output import OutputPiece, OutputSpool
from perdure.tasks.executions.slots import SlotClaim, Slots
from perdure.tasks.model import executions, record
from perdure.tasks.model.executions import ExecutionFact, ExecutionRecord, StopReason
from perdure.tasks.model.record import TaskRecord
from perdure.tasks.model.status import Status
from perdure.user_code import error_line

logger = logging.getLogger("perdure")

LOOK_S: Final = 1.0  # a lost request to stop is noticed within this time
RETRY_S: Final = 1.0  # until the end is recorded again after a failure of the store


@dataclass(slots=True, eq=False)
class RunningCommand:
    """A command that runs in this process."""

    task: TaskRecord
    stream: str
    workspace: Path
    record: ExecutionRecord
    claim: SlotClaim
    spool: OutputSpool
    stop_requested: asyncio.Event = field(default_factory=asyncio.Event)
    look: asyncio.Event = field(default_factory=asyncio.Event)  # at the slot, whether to stop
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    stop_reason: StopReason = "cancelled"
    outcome: ExecutionFact | None = None
    error: PerdureError | None = None  # why it could not be run

    def stop(self, reason: StopReason) -> None:
        """Stop it: SIGTERM, then SIGKILL after a grace."""
        if not self.stop_requested.is_set():
            self.stop_reason = reason
            self.stop_requested.set()


class ActiveCommands:
    """Commands that run in this process, by the streams of their tasks."""

    def __init__(self, bus: ExecutionBus) -> None:
        self._bus = bus
        self._commands: dict[str, RunningCommand] = {}
        self._ends: set[asyncio.Event] = set()  # of commands that take a slot, or have it
        self.is_closing = False  # then no other command starts

    def get(self, stream: str) -> RunningCommand | None:
        """Return the command of a task, if it runs here."""
        return self._commands.get(stream)

    def all(self) -> list[RunningCommand]:
        """Return the commands that run now."""
        return list(self._commands.values())

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Let a close wait until a command has ended, also one that has no slot yet."""
        ended = asyncio.Event()
        self._ends.add(ended)
        try:
            yield
        finally:
            self._ends.discard(ended)
            ended.set()

    async def wait_for_all(self) -> None:
        """Wait until every command has ended."""
        while self._ends:
            await next(iter(self._ends)).wait()

    @contextmanager
    def while_running(self, running: RunningCommand) -> Iterator[None]:
        """Count a command among them for all of the body, then tell everybody that it ended."""
        self._commands[running.stream] = running
        if self.is_closing:  # since the command took its slot
            running.stop("interrupted")
        try:
            yield
        finally:
            del self._commands[running.stream]
            running.ended.set()
            self._bus.end(running.record.id)


class CommandRunner:
    """Runs commands that have taken the slot of their task, and records their ends."""

    def __init__(
        self, store: Store, slots: Slots, bus: ExecutionBus, options: ExecutionOptions
    ) -> None:
        self._store = store
        self._slots = slots
        self._bus = bus
        self._options = options

    async def run(self, running: RunningCommand, sandbox: Sandbox) -> None:
        """Run a command to its end and record it. It never raises but for a cancellation."""
        watcher = asyncio.create_task(self._watch(running))
        try:
            end = await self._run(running, sandbox)
        finally:
            watcher.cancel()
        stdout, stderr = running.spool.captured("stdout"), running.spool.captured("stderr")
        end = replace(
            end,
            stdout_bytes=stdout.size,
            stderr_bytes=stderr.size,
            truncated=end.truncated or bool(stdout.omitted or stderr.omitted),
            after=running.claim.head,
        )
        fact = ExecutionFact(end, stdout, stderr)
        if await self._record_end(running, fact):
            running.outcome = fact
            running.spool.close(keep=end.truncated)
        else:
            running.spool.close(keep=True)

    async def _run(self, running: RunningCommand, sandbox: Sandbox) -> ExecutionRecord:
        start = running.record
        spec = ExecSpec(
            ["/bin/sh", "-c", start.command],
            start.id,
            timeout_ms=start.timeout_ms,
            env=self._options.env,
            network=self._options.network,
            limits=self._options.limits,
        )

        def on_output(channel: Channel, data: bytes) -> None:
            at = running.spool.write(channel, data)
            self._bus.publish(start.id, OutputPiece(channel, at, data))

        try:
            result = await sandbox.exec(
                running.workspace, spec, on_output, cancel=running.stop_requested
            )
        except SandboxUnavailable as error:
            running.error = error
            return _failed(start, error, self._store.now())
        except Exception as error:
            logger.exception("execution %s failed", start.id)
            running.error = execution_failed(f"the command could not be run: {error_line(error)}")
            return executions.interrupted(start, self._store.now(), running.error.message)
        return _ended(start, result, running.stop_reason)

    async def _record_end(self, running: RunningCommand, fact: ExecutionFact) -> bool:
        """Record the end; False if another process has, or the runtime closes before it can."""
        while True:
            try:
                return await self._slots.free(running.task, running.stream, running.claim, fact)
            except StoreError as error:
                logger.warning(
                    "the end of execution %s is not recorded yet: %s",
                    fact.record.id,
                    error.message,
                )
                if running.stop_reason == "interrupted":
                    return False
                await asyncio.sleep(RETRY_S)

    # --- requests to stop ---------------------------------------------------------------------

    async def _watch(self, running: RunningCommand) -> None:
        """Stop the command once its slot says so, or the task does not run any more."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await running.look.wait()
            running.look.clear()
            try:
                reason = await self._stop_reason(running)
            except StoreError as error:
                logger.debug("execution %s: %s", running.record.id, error.message)
                continue
            if reason is not None:
                running.stop(reason)
                return

    async def _stop_reason(self, running: RunningCommand) -> StopReason | None:
        slot = (await self._slots.get(running.stream)).slot
        if slot.execution != running.record.id:
            return "interrupted"  # another process has settled it, or deleted the task
        if slot.stop is not None:
            return slot.stop
        key = record.task_key(running.task.tenant, running.task.id)
        row = await self._store.get(record.ROW, key)
        if row is None or row.stream != running.stream:
            return "cancelled"
        return None if record.decode(row.data).status is Status.RUNNING else "cancelled"


def execution_failed(text: str, hint: str | None = None) -> PerdureError:
    """Return the error for a command that could not be run for a reason of our own."""
    return PerdureError(text, code="EXECUTION_FAILED", hint=hint)


def _failed(start: ExecutionRecord, error: SandboxUnavailable, now: int) -> ExecutionRecord:
    if error.details.get("started", False):
        return executions.interrupted(start, now, error.message)
    return replace(start, reason="not_started", duration_ms=0, problem=error.message)


def _ended(start: ExecutionRecord, result: ExecResult, stop_reason: StopReason) -> ExecutionRecord:
    return replace(
        start,
        reason=stop_reason if result.reason == "cancelled" else result.reason,
        exit_code=result.exit_code,
        signal=result.signal,
        duration_ms=result.duration_ms,
        truncated=result.truncated,
        sandbox=result.sandbox,
        guarantees=tuple(sorted(result.guarantees)),
    )
