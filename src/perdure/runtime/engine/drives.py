"""Registry of the drives in this process: it claims sessions and runs a driver for each.

Drives belong to the registry and not to their callers, so that a caller that stops waiting
interrupts nothing.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from perdure.core.session import naming as index
from perdure.core.session.queues import DEFAULT
from perdure.errors import Corrupt, PerdureError
from perdure.runtime.agents.agents import Agents, ReadyAgent
from perdure.runtime.engine.background import BackgroundTask
from perdure.runtime.engine.driver import Driver
from perdure.runtime.engine.heartbeat import LEASE_MS, LeaseHolder
from perdure.runtime.engine.leases import (
    SUSPECT_PAUSE_MS,
    UnreturnedLease,
    UnreturnedLeases,
    is_suspect,
    leased_session,
    split_suspects,
)
from perdure.runtime.records.cache import CachedSession
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.records.log import Log
from perdure.runtime.resources import Resources
from perdure.runtime.user_code import CONTAINED, error_line
from perdure.store.base import Fenced, Gone, Lease, Lost

logger = logging.getLogger("perdure")

GRACE_S: Final = 5.0  # for drives to park at a close
INTERRUPTED_GRACE_S: Final = 0.3  # for async tools, if the program was interrupted
PAUSE_MS: Final = 5_000  # until a session is due again after a drive that failed


@dataclass(slots=True)
class Drive:
    """One drive of a session in this process, and how it ended."""

    lease: Lease
    agent: str = ""
    driver: Driver | None = None
    task: asyncio.Task[None] | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)
    is_parked: bool = False
    error: PerdureError | None = None
    waiter: "DrivesFuture | None" = None  # resolved at the end of the drive

    @property
    def is_busy(self) -> bool:
        """Return whether it does more than wait in place for an approver."""
        return self.driver is None or not self.driver.is_waiting_in_place

    @property
    def is_backing_off(self) -> bool:
        """Return whether it ended with a back-off before the next model request."""
        return self.driver is not None and self.driver.log.state.retry is not None


DrivesFuture = asyncio.Future[list[Drive]]  # what a caller that starts drives awaits


class ClaimRequest(NamedTuple):
    """Request to claim and drive at most `limit` sessions of a kind, or one stream."""

    kind: str
    limit: int
    only: str | None = None
    until_end: bool = False  # the caller awaits the end of the drive, not its start


def _claim_of(entry: SessionEntry, *, until_end: bool = False) -> ClaimRequest:
    kind = index.stream_kind(entry.record.agent, entry.record.queue)
    return ClaimRequest(kind, 1, entry.stream, until_end)


class Drives:
    """Sessions that this process holds leases on, each with its drive."""

    def __init__(self, resources: Resources, agents: Agents, lease_ms: int = LEASE_MS) -> None:
        self.running: dict[str, Drive] = {}  # by stream
        self._next_end = asyncio.Event()  # set when the next drive ends
        self._resources = resources
        self._agents = agents
        self._unreturned = UnreturnedLeases(resources.store, resources.outbox)
        self._holder = LeaseHolder(
            resources.store, self._unreturned, lease_ms, self._lose, self._has_drive
        )
        self.background = BackgroundTask(
            resources, self._holder.heartbeat, self._drain, self._cancel_all
        )
        self._tasks: dict[asyncio.Task[None], DrivesFuture | None] = {}
        self._is_interrupted = False  # a person waits for the close
        self._pool_locks: dict[str, asyncio.Lock] = {}  # by agent with a bounded worker pool

    @property
    def busy_count(self) -> int:
        """Number of drives that do more than wait in place for an approver."""
        return sum(drive.is_busy for drive in self.running.values())

    # --- open and close -----------------------------------------------------------------------

    def open(self) -> None:
        """Allow drives, also after a close."""
        self._next_end = asyncio.Event()  # a new one: an event belongs to one event loop
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
        for drive in self.running.values():
            if drive.driver is not None:
                drive.driver.stop()
        if self._is_interrupted:
            await self._wait_parked(INTERRUPTED_GRACE_S)
            for drive in self.running.values():
                if drive.driver is not None:
                    drive.driver.cancel_async_calls()
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

    async def claim(self, kind: str, limit: int, only: str | None = None) -> list[Lease]:
        """Claim due streams; none while the runtime closes."""
        if self.background.is_closing:
            return []
        if not self.background.is_running:
            self.background.start()
        if self._holder.has_stale_name and not self.running:
            await self._holder.leave()
        return await self._holder.claim(kind, limit, only)

    def serve(self, worker: object, queues: frozenset[str]) -> None:
        """Announce, in the holder's name, that a worker here serves these queues."""
        self._holder.serve(worker, queues)

    async def release(self, lease: Lease, due: int | None) -> None:
        """Release a lease, now or when the store is available; the stream is due at `due`."""
        await self._unreturned.release(UnreturnedLease(lease, due))

    def _has_drive(self, leases: Sequence[Lease]) -> bool:
        """Return whether a drive here already has one of these leases, with its epoch."""
        return any(
            (drive := self.running.get(lease.stream)) is not None
            and drive.lease.epoch >= lease.epoch
            for lease in leases
        )

    # --- drives -------------------------------------------------------------------------------

    async def start_drive(self, entry: SessionEntry) -> Drive | None:
        """Return the drive of this session here, started if it is due and free; else None."""
        running = self.running.get(entry.stream)
        if running is not None:
            return running
        drives = await self._start(entry.record.agent, _claim_of(entry))
        return drives[0] if drives else self.running.get(entry.stream)

    async def drive_until_parked(self, entry: SessionEntry) -> Drive | None:
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

    async def start_due(self, name: str, limit: int, *, queue: str = DEFAULT) -> list[Drive]:
        """Drive due sessions of an agent in a queue, at most `limit`."""
        return await self._start(name, ClaimRequest(index.stream_kind(name, queue), limit))

    async def _start(self, name: str, request: ClaimRequest) -> list[Drive]:
        """Return the drives that were started or, with `until_end`, have ended.

        A task of the registry claims, not the caller: a caller that is cancelled after the claim
        would leave a lease without a drive, which our heartbeat keeps alive for ever.
        """
        agent = self._agents.find(name)
        if agent is None:
            return []
        if not self.background.is_running:
            self.background.start()
        future: DrivesFuture = asyncio.get_running_loop().create_future()
        self._spawn(self._claim_and_drive(agent, request, future), future)
        return await future

    async def _claim_and_drive(
        self, agent: ReadyAgent, request: ClaimRequest, future: DrivesFuture
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
            drive.task = self._spawn(self._drive(drive, agent))
        for drive in drives[:1]:
            drive.task = asyncio.current_task()
            await self._drive(drive, agent)

    async def _claim_drives(self, agent: ReadyAgent, request: ClaimRequest) -> list[Drive]:
        async with self._pool_lock(agent):
            free = self._free_places(agent, request.limit)
            leases = await self.claim(request.kind, free, request.only) if free else []
            leases, others = split_suspects(leases, may_drive_one=not self._has_suspect())
            drives = [Drive(lease, agent.name) for lease in leases]
            self.running.update((drive.lease.stream, drive) for drive in drives)
        due = self._resources.store.now() + SUSPECT_PAUSE_MS
        for lease in others:
            await self._unreturned.release(UnreturnedLease(lease, due, is_counted=False))
        return drives

    def _has_suspect(self) -> bool:
        """Return whether a drive here may be about to stop this process."""
        return any(
            is_suspect(drive.lease) and not (drive.driver is not None and drive.driver.has_written)
            for drive in self.running.values()
        )

    def _pool_lock(self, agent: ReadyAgent) -> AbstractAsyncContextManager[Any]:
        """Return a lock under which the running drives of a bounded pool are counted."""
        if agent.agent.worker_pool is None:
            return nullcontext()
        return self._pool_locks.setdefault(agent.name, asyncio.Lock())

    def _free_places(self, agent: ReadyAgent, limit: int) -> int:
        """Return how many drives of an agent may start, within its worker pool and `limit`."""
        pool = agent.agent.worker_pool
        if pool is None:
            return limit
        busy = sum(drive.agent == agent.name and drive.is_busy for drive in self.running.values())
        return max(0, min(limit, pool - busy))

    def _spawn(
        self, work: Coroutine[Any, Any, None], future: DrivesFuture | None = None
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
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
        """Return an event that is set when the next drive ends."""
        return self._next_end

    async def _drive(self, drive: Drive, agent: ReadyAgent) -> None:
        lease = drive.lease
        try:
            with CONTAINED:
                await self._run_driver(drive, agent)
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
            if drive.driver is not None:
                await drive.driver.wait_ended()  # in this task, so that a close waits for it

    def _remove(self, drive: Drive) -> None:
        if drive.done.is_set():
            return
        if self.running.get(drive.lease.stream) is drive:
            del self.running[drive.lease.stream]
        drive.done.set()
        # From now on the future refers to the drive: both ways would be a reference cycle.
        waiter, drive.waiter = drive.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result([drive])
        ended, self._next_end = self._next_end, asyncio.Event()
        ended.set()

    async def _run_driver(self, drive: Drive, agent: ReadyAgent) -> None:
        """Drive until the session is parked."""
        lease, cache = drive.lease, self._resources.cache
        session = cache.remove(lease.stream)
        if session is None or session.log.state.head != lease.head:
            entry = await leased_session(self._resources.store, lease)
            log = Log(self._resources.store, lease.stream, entry.record.head)
            session = CachedSession(log, entry, None)
        if agent.mcp_choices:
            agent = await self._agents.refresh_tools(agent)
        is_alive = partial(self._holder.is_valid, lease)
        driver = drive.driver = Driver(self._resources, lease, agent, session, is_alive)
        if self.background.is_closing:
            driver.stop()

        def parked() -> None:
            drive.is_parked = True
            self._remove(drive)

        with cache.subscribe(lease.stream, driver.on_commit):
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
