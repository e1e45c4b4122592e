"""Settlement of commands whose process has died: recorded as interrupted, never run again."""

import logging
from typing import Final

from anyio import to_thread
from msgspec.structs import replace

from perdure.errors import PerdureError
from perdure.store.base import Lease, Store
from perdure.tasks.entries import TaskEntry, find_task
from perdure.tasks.executions.history import ExecutionHistory
from perdure.tasks.executions.output import discard_spool, read_captured, spool_folder
from perdure.tasks.executions.sandboxes import ConfiguredSandbox
from perdure.tasks.executions.slots import SlotClaim, Slots, StreamLeases
from perdure.tasks.files.place import TaskPlace
from perdure.tasks.model import executions, record
from perdure.tasks.model.executions import ExecutionFact, ExecutionRecord
from perdure.tasks.values import TaskRef

logger = logging.getLogger("perdure")

ELSEWHERE_MS: Final = 2_000  # pause of a worker that does not have the output of a dead process
ELSEWHERE_TRIES: Final = 4  # after which it settles the command without the output
PAUSE_MS: Final = 5_000  # after a failure of our own
DIED: Final = "the process that ran the command has stopped"


class CommandSettlement:
    """Settles what dead processes have left, under the leases on their tasks."""

    def __init__(
        self,
        store: Store,
        place: TaskPlace,
        sandbox: ConfiguredSandbox,
        leases: StreamLeases,
        slots: Slots,
    ) -> None:
        self._store = store
        self._place = place
        self._sandbox = sandbox
        self._leases = leases
        self._slots = slots
        self._history = ExecutionHistory(store)

    async def settle_safely(self, lease: Lease) -> None:
        """Settle a command; a failure is logged."""
        try:
            await self.settle(lease)
        except PerdureError as error:
            logger.warning("%s could not be settled: %s", lease.stream, error.message)
        except Exception:  # the edge of a worker's round: other tasks are settled all the same
            logger.exception("%s could not be settled", lease.stream)

    async def settle(self, lease: Lease) -> bool:
        """Record that the command of a task was interrupted, with its output; release the lease.

        It ran zero or one times, and is not run again. Return False if there is nothing to settle,
        or the machine with the output should do it. After a failure the task is due again soon.
        """
        try:
            return await self._settle(lease)
        except Exception:  # our heartbeat would keep the lease, and nobody could settle the command
            await self._leases.release(lease, self._store.now() + PAUSE_MS)
            raise

    async def _settle(self, lease: Lease) -> bool:
        stream = lease.stream
        slot = await self._slots.get(stream)
        task = await self._task_of(stream)
        execution = None
        if not slot.slot.is_free:
            execution = await self._history.find(stream, slot.slot.execution)
        if task is None or execution is None:
            await self._leases.release(lease, None)
            return False
        is_here = self._place.has(task.record)
        if not is_here and lease.tries < ELSEWHERE_TRIES:
            await self._leases.release(lease, self._store.now() + ELSEWHERE_MS)
            return False
        fact = await self._interrupted(stream, execution, lease, is_here=is_here)
        claim = SlotClaim(lease, slot.version, lease.head)
        if not await self._slots.free(task.record, stream, claim, fact):
            await self._leases.release(lease, None)  # the end is recorded, the lease may be ours
            return False
        logger.warning("execution %s in task %s: %s", execution.id, task.record.id, DIED)
        if is_here and not fact.record.truncated:
            folder = spool_folder(self._place.folder(stream), execution.id)
            await to_thread.run_sync(discard_spool, folder)
        return True

    async def _task_of(self, stream: str) -> TaskEntry | None:
        names = record.parse_task_stream(stream)
        task = None if names is None else await find_task(self._store, TaskRef(*names))
        return task if task is not None and task.stream == stream else None

    async def _interrupted(
        self, stream: str, execution: ExecutionRecord, lease: Lease, *, is_here: bool
    ) -> ExecutionFact:
        end = executions.interrupted(execution, self._store.now(), DIED)
        if not is_here:
            problem = f"{DIED}; its output is on the machine of the task"
            return ExecutionFact(replace(end, problem=problem, truncated=True, after=lease.head))
        await self._sandbox.sweep(execution)
        folder = spool_folder(self._place.folder(stream), execution.id)
        try:
            stdout, stderr = await to_thread.run_sync(
                lambda: (read_captured(folder, "stdout"), read_captured(folder, "stderr"))
            )
        except OSError as error:
            problem = f"{DIED}; its output cannot be read: {error.strerror or error}"
            return ExecutionFact(replace(end, problem=problem, truncated=True, after=lease.head))
        end = replace(
            end,
            stdout_bytes=stdout.size,
            stderr_bytes=stderr.size,
            truncated=bool(stdout.omitted or stderr.omitted),
            after=lease.head,
        )
        return ExecutionFact(end, stdout, stderr)
