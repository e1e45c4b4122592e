"""Registry of the drives in this process: it claims sessions and runs a driver for each.

Drives belong to the registry and not to their callers, so that a caller that stops waiting
interrupts nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from perdure.core.session import naming as index
from perdure.core.session.queues import DEFAULT
from perdure.errors import Corrupt, PerdureError
from perdure.runtime.agents.agents import Agents
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.runtime.engine.background import EngineTask
from perdure.runtime.engine.heartbeat import LEASE_MS, ClaimingCommit, LeaseHolder
from perdure.runtime.engine.leases import (
    Suspects,
    UnreturnedLease,
    UnreturnedLeases,
    is_suspect,
)
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.resources import Resources
from perdure.store.base import Fenced, Gone, Lease, Lost, SuspectLimit
from perdure.user_code import CONTAINED, error_line

if TYPE_CHECKING:
    from perdure.runtime.engine.driver import Driver

logger = logging.getLogger("perdure")

GRACE_S: Final = 5.0  # for drives to park at a close
INTERRUPTED_GRACE_S: Final = 0.3  # for async tools, if the program was interrupted
PAUSE_MS: Final = 5_000  # until a session is due again after a drive that failed


DriversFuture = asyncio.Future["list[Driver]"]  # what a caller that starts drives awaits


class ClaimRequest(Struct, frozen=True):
    """Request to claim and drive at most `limit` sessions of a kind, or one stream."""

    kind: str
    limit: int
    only: str | None = None
    until_end: bool = False  # the caller awaits the end of the drive, not its start
    commit: ClaimingCommit | None = None  # claims the stream instead


def _claim_of(entry: SessionEntry, *, until_end: bool = False) -> ClaimRequest:
    kind = index.stream_kind(entry.record.agent, entry.record.queue)
    return ClaimRequest(kind, 1, entry.stream, until_end)


class Drives:
    """Sessions that this process holds leases on, each with its drive."""

    def __init__(self, resources: Resources, agents: Agents, lease_ms: int = LEASE_MS) -> None:
        self.running: dict[str, Driver] = {}  # by stream
        self._next_end: asyncio.Event | None = None  # set when the next drive ends
        self._resources = resources
        self._agents = agents
        self._unreturned = UnreturnedLeases(resources.store, resources.commits)
        self._suspects = Suspects(resources.poison_after)
        self._holder = LeaseHolder(
            resources.store, self._unreturned, lease_ms, self._lose, self._has_drive
        )
        self.background = EngineTask(
            resources, self._holder.heartbeat, self._drain, self._cancel_all
        )
        self._tasks: dict[asyncio.Task[None], DriversFuture | None] = {}
        self._is_interrupted = False  # a person waits for the close
        self._pool_locks: dict[str, asyncio.Lock] = {}  # by agent with a bounded worker pool
        self._on_lost: list[Callable[[str], None]] = []  # of other work under our leases

    @property
    def busy_count(self) -> int:
        """Number of drives that do more than wait in place for an approver."""
        return sum(drive.is_busy for drive in self.running.values())

    # --- open and close -----------------------------------------------------------------------

    def open(self) -> None:
        """Allow drives, also after a close."""
        self._next_end = None  # an event belongs to one event loop
        self._pool_locks.clear()
        self._is_interrupted = False
        self._holder.reset()
        self._resources.cache.clear()
        self.background.open()

    def interrupt(self) -> None:
        """Let the close that follows cancel async tools, because the program was interrupted."""
        self._is_interrupted = True

    async def close(self) -> None:
        """Let the drives park for a moment, stop them, and release all leases."""
        await self.background.close()
        await self._holder.leave()

    async def _drain(self) -> None:
        for driver in self.running.values():
            driver.stop()
        if self._is_interrupted:
            await self._wait_parked(INTERRUPTED_GRACE_S)
            for driver in self.running.values():
                driver.cancel_async_calls()
        await self._wait_parked(GRACE_S)

    async def _wait_parked(self, within_s: float) -> None:
        """Wait until no drive is running, or at most this long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self.running:
                    await self.drive_ended().wait()

    async def _cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait([*self._tasks])

    # --- leases -------------------------------------------------------------------------------

    def _lose(self, holder: str) -> None:
        """Cancel and remove all drives whose lease was held under that name."""
        for drive in [item for item in self.running.values() if item.lease.holder == holder]:
            if drive.task is not None and drive.task is not asyncio.current_task():
                drive.task.cancel()
            self._remove(drive)
        for on_lost in self._on_lost:
            on_lost(holder)

    def when_lost(self, on_lost: Callable[[str], None]) -> None:
        """Call a function with each holder's name whose leases are lost."""
        self._on_lost.append(on_lost)

    async def claim_by(self, commit: ClaimingCommit) -> list[Lease]:
        """Let a commit claim a stream that is not a session's; it counts without a lease too."""
        if not self.background.is_running:
            self.background.start()
        return await self._holder.claim_by(commit, join=True)

    async def claim(
        self,
        kind: str,
        limit: int,
        only: str | None = None,
        suspects: SuspectLimit | None = None,
    ) -> list[Lease]:
        """Claim due streams; none while the runtime closes."""
        if self.background.is_closing:
            return []
        if not self.background.is_running:
            self.background.start()
        if self._holder.has_stale_name and not self.running:
            await self._holder.leave()
        return await self._holder.claim(kind, limit, only, suspects)

    def serve(self, worker: object, queues: frozenset[str]) -> None:
        """Announce, in the holder's name, that a worker here serves these queues."""
        self._holder.serve(worker, queues)

    async def log_held(self) -> None:
        """Log that sessions whose processes stopped have to wait, or for how long they had to."""
        await self._suspects.log_held(self._resources.store)

    async def release(self, lease: Lease, due: int | None) -> None:
        """Release a lease, now or when the store is available; the stream is due at `due`.

        Without `due`, a stream that has grown since the claim is due at once: the lease has hidden
        whatever woke it meanwhile.
        """
        head = lease.head if due is None else None
        await self._unreturned.release(UnreturnedLease(lease, due, head=head))

    def _has_drive(self, leases: Sequence[Lease]) -> bool:
        """Return whether a drive here already has one of these leases, with its epoch."""
        for lease in leases:
            driver = self.running.get(lease.stream)
            if driver is not None and driver.lease.epoch >= lease.epoch:
                return True
        return False

    # --- drives -------------------------------------------------------------------------------

    async def start_drive(self, entry: SessionEntry) -> "Driver | None":
        """Return the drive of this session here, started if it is due and free; else None."""
        running = self.running.get(entry.stream)
        if running is not None:
            return running
        drives = await self._start(entry.record.agent, _claim_of(entry))
        return drives[0] if drives else self.running.get(entry.stream)

    async def drive_until_parked(self, entry: SessionEntry) -> "Driver | None":
        """Drive this session here, if it is due and free, and return the drive at its end.

        A drive that is running here already counts; without one, return None.
        """
        running = self.running.get(entry.stream)
        if running is None:
            drives = await self._start(entry.record.agent, _claim_of(entry, until_end=True))
            if drives:
                return drives[0]
            running = self.running.get(entry.stream)
        if running is not None:
            await running.done.wait()
        return running

    async def commit_and_drive(self, name: str, commit: ClaimingCommit) -> "Driver | None":
        """Let a commit wake a session of an agent and claim it; return the drive at its end.

        Without a lease return None: the commit counts all the same.
        """
        request = ClaimRequest("", 1, until_end=True, commit=commit)
        drivers = await self._start(name, request)
        return drivers[0] if drivers else None

    def may_claim_by_commit(self, name: str) -> bool:
        """Return whether sessions of an agent can be driven here, as many as there are."""
        holder, agent = self._holder, self._agents.find(name)
        if self.background.is_closing or not holder.has_name or holder.has_stale_name:
            return False  # the first claim of this process joins the store
        # A caller that runs background agents too follows all of them.
        return agent is not None and agent.agent.worker_pool is None and not agent.sub_agents

    async def start_due(self, name: str, limit: int, *, queue: str = DEFAULT) -> "list[Driver]":
        """Drive due sessions of an agent in a queue, at most `limit`."""
        return await self._start(name, ClaimRequest(index.stream_kind(name, queue), limit))

    async def _start(self, name: str, request: ClaimRequest) -> "list[Driver]":
        """Return the drives that were started or, with `until_end`, have ended.

        A task of the registry claims, not the caller: a caller that is cancelled after the claim
        would leave a lease without a drive, which our heartbeat keeps alive for ever.
        """
        agent = self._agents.find(name)
        if agent is None:
            return []
        if not self.background.is_running:
            self.background.start()
        future: DriversFuture = asyncio.get_running_loop().create_future()
        self._spawn(self._claim_and_drive(agent, request, future), future)
        return await future

    async def _claim_and_drive(
        self, agent: ReadyAgent, request: ClaimRequest, future: DriversFuture
    ) -> None:
        """Claim, report the drives to the caller if it is still waiting, and drive."""
        try:
            drives = await self._claim_drives(agent, request)
        except Exception as error:  # noqa: BLE001 - it is for the caller, not for the registry
            if not future.done():
                future.set_exception(error)
            return
        if drives and request.until_end:
            drives[0].waiter = future
        elif not future.done():
            future.set_result(drives)
        for drive in drives[1:]:
            drive.task = self._spawn(self._drive(drive))
        for drive in drives[:1]:
            drive.task = asyncio.current_task()
            await self._drive(drive)

    async def _claim_drives(self, agent: ReadyAgent, request: ClaimRequest) -> "list[Driver]":
        pool = agent.agent.worker_pool
        if request.commit is not None:
            leases = await self._admitted(await self._holder.claim_by(request.commit))
            return self._drivers(agent, leases)
        if pool is None:
            return await self._claim_up_to(agent, request, request.limit)
        # Under a lock, since the running drives of a bounded pool are counted.
        async with self._pool_locks.setdefault(agent.name, asyncio.Lock()):
            same = [driver for driver in self.running.values() if driver.agent.name == agent.name]
            free = min(request.limit, pool - sum(driver.is_busy for driver in same))
            return await self._claim_up_to(agent, request, free) if free > 0 else []

    async def _claim_up_to(
        self, agent: ReadyAgent, request: ClaimRequest, limit: int
    ) -> "list[Driver]":
        with self._suspects.claiming(limit) as suspects:
            leases = await self.claim(request.kind, limit, request.only, suspects)
            self._suspects.start(leases)
        if request.only is None:
            self._suspects.note_claim(request.kind, suspects, leases)
        return self._drivers(agent, leases)

    def _drivers(self, agent: ReadyAgent, leases: Sequence[Lease]) -> "list[Driver]":
        """Return a driver for each lease."""
        if not leases:
            return []
        from perdure.runtime.engine.driver import Driver  # a process that only decides drives none

        is_valid = self._holder.is_valid
        drivers = [Driver(self._resources, lease, agent, is_valid) for lease in leases]
        for driver in drivers:
            self.running[driver.lease.stream] = driver
            if is_suspect(driver.lease):
                driver.on_progress = partial(self._clear_suspect, driver.lease)
        return drivers

    async def _admitted(self, leases: list[Lease]) -> list[Lease]:
        """Return the leases of a commit; those of suspects that have to wait are released."""
        with self._suspects.claiming(1) as suspects:
            admitted = [lease for lease in leases if lease.tries <= suspects.tries_of_one]
            self._suspects.start(admitted)
        for lease in leases:
            if lease not in admitted:
                due = self._resources.store.now()
                await self._unreturned.release(UnreturnedLease(lease, due, is_counted=False))
        return admitted

    def _clear_suspect(self, lease: Lease) -> None:
        """Let a worker claim the sessions that waited until one like them had written."""
        self._suspects.clear(lease)
        self._signal_end()

    def _spawn(
        self, work: Coroutine[Any, Any, None], future: DriversFuture | None = None
    ) -> asyncio.Task[None]:
        task = asyncio.Task(work)
        self._tasks[task] = future
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        future = self._tasks.pop(task)
        if future is not None and not future.done():  # cancelled, perhaps before it started
            future.set_result([])
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.background.fail(error)

    def drive_ended(self) -> asyncio.Event:
        """Return an event that is set when the next drive ends, or a suspect has written."""
        if self._next_end is None:
            self._next_end = asyncio.Event()
        return self._next_end

    async def _drive(self, drive: "Driver") -> None:
        lease = drive.lease
        try:
            with CONTAINED:
                await self._run_driver(drive)
        except Lost as error:
            logger.info("%s: %s", index.stream_label(lease.stream), error.message)
            self._holder.lose(lease.holder)
        except Fenced as error:
            logger.info("%s: %s", index.stream_label(lease.stream), error.message)
        except Gone as error:
            logger.info("%s: %s", index.stream_label(lease.stream), error.message)
            await self.release(lease, None)  # perhaps only its entry is gone, and the lease is ours
        except PerdureError as error:
            drive.error = error
            if isinstance(error, Corrupt):
                drive.error = await self._resources.verifier.fail_session(lease.stream, error)
            await self._release_failed(lease, error)
        except Exception as error:
            logger.exception("%s could not be driven", index.stream_label(lease.stream))
            drive.error = PerdureError(error_line(error), code="INTERNAL")
            await self._release_failed(lease, drive.error, record=True)
        finally:
            self._remove(drive)
            await drive.wait_ended()  # in this task, so that a close waits for it

    def _remove(self, drive: "Driver") -> None:
        if drive.done.is_set():
            return
        if self.running.get(drive.lease.stream) is drive:
            del self.running[drive.lease.stream]
        drive.done.set()
        self._suspects.drop(drive.lease)
        # From now on the future refers to the drive: both ways would be a reference cycle.
        waiter, drive.waiter = drive.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result([drive])
        self._signal_end()

    def _signal_end(self) -> None:
        ended, self._next_end = self._next_end, None
        if ended is not None:
            ended.set()

    async def _run_driver(self, driver: "Driver") -> None:
        """Drive until the session is parked."""
        if driver.agent.mcp_choices:
            driver.agent = await self._agents.refresh_tools(driver.agent)
        if self.background.is_closing:
            driver.stop()

        def parked() -> None:
            driver.is_parked = True
            self._remove(driver)

        with self._resources.cache.subscribe(driver.lease.stream, driver.on_commit):
            await driver.run(parked)

    async def _release_failed(
        self, lease: Lease, error: PerdureError, *, record: bool = False
    ) -> None:
        """Release the lease after a failure that is not the session's own.

        With `record`, the failure ends the run.
        """
        is_final = record or isinstance(error, Corrupt)
        due = None if is_final else self._resources.store.now() + PAUSE_MS
        await self._unreturned.release(UnreturnedLease(lease, due, error if record else None))
