"""Where drives run: one background task with a heartbeat, a reader of the feed, and the drives.

It is begun by the first thing that is driven and ends with the runtime. Drives belong to it and
not to their callers, so that a caller who stops waiting interrupts nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
import anyio.abc

from perdure.core.session import naming as index
from perdure.core.session.queues import DEFAULT
from perdure.errors import Corrupt, PerdureError, StoreError
from perdure.runtime.agents.agents import Agents, ReadyAgent
from perdure.runtime.engine.driver import Driver
from perdure.runtime.engine.feed import FeedReader
from perdure.runtime.engine.leases import (
    LEASE_MS,
    LeaseHolder,
    UnreturnedLease,
    UnreturnedLeases,
    held,
)
from perdure.runtime.records.cache import CachedSession
from perdure.runtime.records.entries import SessionEntry
from perdure.runtime.records.log import Log
from perdure.runtime.resources import Resources
from perdure.runtime.streaming import REMIND_S
from perdure.store.base import Fenced, Gone, Lease, Lost

logger = logging.getLogger("perdure")

GRACE_S: Final = 5.0
PAUSE_MS: Final = 5_000  # after a drive that failed


@dataclass(slots=True)
class Drive:
    """One session that is driven here, and how that ended."""

    lease: Lease
    agent: str = ""
    driver: Driver | None = None
    task: asyncio.Task[None] | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)
    parked: bool = False
    error: PerdureError | None = None
    awaited: "Begun | None" = None  # by somebody who is told at its end

    @property
    def backs_off(self) -> bool:
        """Whether it ended because a model is asked again later."""
        return self.driver is not None and self.driver.log.state.retry is not None


Begun = asyncio.Future[list[Drive]]  # where somebody who asked for drives is told of them


class Wanted(NamedTuple):
    """What somebody wants to be driven: as many of a kind, or one stream."""

    kind: str
    limit: int
    only: str | None = None
    to_the_end: bool = False  # it is told when that one has ended


def _wanted(known: SessionEntry, *, to_the_end: bool = False) -> Wanted:
    kind = index.stream_kind(known.record.agent, known.record.queue)
    return Wanted(kind, 1, known.stream, to_the_end)


class Host:
    """Holds leases for this process and drives what it holds."""

    def __init__(self, desk: Resources, agents: Agents, lease_ms: int = LEASE_MS) -> None:
        self.watch = FeedReader(desk.store, desk.near)
        self.drives: dict[str, Drive] = {}
        self._ended = asyncio.Event()  # of the next drive to end
        self._desk = desk
        self._agents = agents
        self._debts = UnreturnedLeases(desk.store, desk.outbox)
        self._holder = LeaseHolder(desk.store, self._debts, lease_ms, self._lose, self._has_again)
        self._tasks: anyio.abc.TaskGroup | None = None
        self._main: asyncio.Task[None] | None = None
        self._driving: dict[asyncio.Task[None], Begun | None] = {}
        self._places: dict[str, asyncio.Lock] = {}  # of agents: who looks for a free one
        self._fell: BaseException | None = None  # what no drive can survive, and we neither
        self._starting = anyio.Lock()
        self._closing = False  # or closed
        self._over = asyncio.Event()  # set to end the background task

    # --- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Be ready to start, also after a close."""
        self._closing = False
        # New ones: the old belong to the event loop of then.
        self._ended, self._over = asyncio.Event(), asyncio.Event()
        self._fell = None
        self._places.clear()
        self._debts.forget()
        self._desk.near.clear()
        self.watch.start_over()

    async def start(self) -> None:
        """Begin the background task, once. Raises StoreError after a close."""
        if self._tasks is not None:
            return
        async with self._starting:
            if self._closing:
                raise StoreError("the runtime is closed")
            if self._main is not None:
                return
            ready = anyio.Event()
            # The one task that no caller owns: a runtime may be left by another task than the
            # one that entered it, which a task group cannot.
            self._main = asyncio.get_running_loop().create_task(self._live(ready))
            await ready.wait()

    async def also(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run something beside the drives, until the host closes."""
        await self.start()
        if self._tasks is None:
            raise StoreError("the runtime's background task has failed")
        self._tasks.start_soon(run)

    async def _live(self, ready: anyio.Event) -> None:
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._keep_watching)
                self._tasks.start_soon(self._holder.beat)
                self._tasks.start_soon(self._overhear)
                ready.set()
                await self._over.wait()
                if self._fell is not None:
                    raise self._fell
                await self._drain()
                self._tasks.cancel_scope.cancel()
        finally:
            self._tasks = None
            await self._call_off()

    async def close(self) -> None:
        """End what runs, give the leases back, and stop."""
        self._closing = True
        self._over.set()
        main = self._main
        if main is None:
            return
        await asyncio.wait([main])
        self._main = None
        error = None if main.cancelled() else main.exception()
        if isinstance(error, Exception):
            logger.error("the runtime's background task had failed", exc_info=error)
        await self._holder.leave()

    async def _drain(self) -> None:
        for drive in self.drives.values():
            if drive.driver is not None:
                drive.driver.stop()
        with anyio.move_on_after(GRACE_S):
            while self.drives:
                await self.drive_ended().wait()

    async def _call_off(self) -> None:
        for task in self._driving:
            task.cancel()
        while self._driving:
            await asyncio.wait([*self._driving])

    # --- leases -------------------------------------------------------------------------------

    def _lose(self, holder: str) -> None:
        """Call off and forget everything held under that name."""
        for drive in [one for one in self.drives.values() if one.lease.holder == holder]:
            if drive.task is not None and drive.task is not asyncio.current_task():
                drive.task.cancel()
            self._forget(drive)

    async def _keep_watching(self) -> None:
        while True:
            try:
                await self.watch.run()
            except StoreError as error:
                logger.warning("the feed cannot be read: %s", error.message)
                await anyio.sleep(1)

    async def _overhear(self) -> None:
        bus = self._desk.bus
        with bus.overhearing():
            while True:
                await anyio.sleep(REMIND_S)
                bus.remind()

    async def claim(self, kind: str, limit: int, only: str | None = None) -> list[Lease]:
        """Take sessions that are due; none while this closes."""
        if self._tasks is None:
            await self.start()
        if self._closing:
            return []
        if self._holder.is_misnamed and not self.drives:
            await self._holder.leave()
        return await self._holder.claim(kind, limit, only)

    def serve(self, worker: object, queues: frozenset[str]) -> None:
        """Say to all, in our name, that a worker here serves these queues."""
        self._holder.serve(worker, queues)

    async def give_back(self, lease: Lease, due: int | None) -> None:
        """Give a lease back, now or when the store lets us; until `due` nobody looks at it."""
        await self._debts.pay(UnreturnedLease(lease, due))

    def _has_again(self, leases: Sequence[Lease]) -> bool:
        """Whether one of them is the lease of a drive here, with its epoch."""
        return any(
            (drive := self.drives.get(lease.stream)) is not None
            and drive.lease.epoch >= lease.epoch
            for lease in leases
        )

    # --- drives -------------------------------------------------------------------------------

    async def start_drive(self, known: SessionEntry) -> Drive | None:
        """The drive of this session here, begun if it is due and free; else None."""
        running = self.drives.get(known.stream)
        if running is not None:
            return running
        begun = await self._begun(known.record.agent, _wanted(known))
        return begun[0] if begun else self.drives.get(known.stream)

    async def drive_until_parked(self, known: SessionEntry) -> Drive | None:
        """Drive this session here, if it is due and free, and answer when that has ended.

        If it is driven here already, that drive; else None.
        """
        running = self.drives.get(known.stream)
        if running is None:
            begun = await self._begun(known.record.agent, _wanted(known, to_the_end=True))
            if begun:
                return begun[0]
            running = self.drives.get(known.stream)
        if running is not None:
            await running.done.wait()
        return running

    async def start_due(self, name: str, limit: int, *, queue: str = DEFAULT) -> list[Drive]:
        """Drive what is due under an agent's name in a queue."""
        return await self._begun(name, Wanted(index.stream_kind(name, queue), limit))

    async def _begun(self, name: str, wanted: Wanted) -> list[Drive]:
        """What is driven from now on; or was, if that is to be told at the end.

        The host itself claims: who asks for it may leave, which withdraws nothing, and our
        heartbeat would keep alive for ever what was claimed for nobody.
        """
        agent = self._agents.find(name)
        if agent is None:
            return []
        if self._tasks is None:
            await self.start()
            if self._tasks is None:
                raise StoreError("the runtime's background task has failed")
        begun: Begun = asyncio.get_running_loop().create_future()
        self._spawn(self._take(agent, wanted, begun), begun)
        return await begun

    async def _take(self, agent: ReadyAgent, wanted: Wanted, begun: Begun) -> None:
        """Claim, say so to who asked if that one still waits, and drive."""
        try:
            drives = await self._claimed(agent, wanted)
        except Exception as error:  # noqa: BLE001 - it is the caller's, not the host's
            if not begun.done():
                begun.set_exception(error)
            return
        if drives and wanted.to_the_end:
            drives[0].awaited = begun
        elif not begun.done():
            begun.set_result(drives)
        for drive in drives[1:]:
            drive.task = self._spawn(self._drive(drive, agent))
        for drive in drives[:1]:
            drive.task = asyncio.current_task()
            await self._drive(drive, agent)

    async def _claimed(self, agent: ReadyAgent, wanted: Wanted) -> list[Drive]:
        async with self._counted(agent):
            free = self._free(agent, wanted.limit)
            leases = await self.claim(wanted.kind, free, wanted.only) if free else []
            drives = [Drive(lease, agent.name) for lease in leases]
            self.drives.update((drive.lease.stream, drive) for drive in drives)
            return drives

    def _counted(self, agent: ReadyAgent) -> AbstractAsyncContextManager[Any]:
        """One after the other, where it counts how many are under way."""
        if agent.agent.worker_pool is None:
            return nullcontext()
        return self._places.setdefault(agent.name, asyncio.Lock())

    def _free(self, agent: ReadyAgent, limit: int) -> int:
        """How many sessions of an agent may be begun: its runs at one time may be bounded."""
        pool = agent.agent.worker_pool
        if pool is None:
            return limit
        return max(
            0, min(limit, pool - sum(one.agent == agent.name for one in self.drives.values()))
        )

    def _spawn(
        self, work: Coroutine[Any, Any, None], begun: Begun | None = None
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._driving[task] = begun
        task.add_done_callback(self._landed)
        return task

    def _landed(self, task: asyncio.Task[None]) -> None:
        begun = self._driving.pop(task)
        if begun is not None and not begun.done():  # called off, perhaps before it began
            begun.set_result([])
        if not task.cancelled() and task.exception() is not None:
            self._fell = task.exception()
            self._over.set()

    def drive_ended(self) -> asyncio.Event:
        """Set when the next drive ends."""
        return self._ended

    async def _drive(self, drive: Drive, agent: ReadyAgent) -> None:
        lease = drive.lease
        try:
            await self._run_driver(drive, agent)
        except Lost as error:
            logger.info("%s: %s", lease.stream, error.message)
            self._holder.lose(lease.holder)
        except Fenced as error:
            logger.info("%s: %s", lease.stream, error.message)
        except Gone as error:
            logger.info("%s: %s", lease.stream, error.message)
            await self.give_back(lease, None)  # perhaps only its entry is gone, and we hold it
        except PerdureError as error:
            drive.error = error
            await self._give_up(lease, error)
        except Exception as error:
            logger.exception("%s could not be driven", lease.stream)
            drive.error = PerdureError(f"{type(error).__name__}: {error}", code="INTERNAL")
            await self._give_up(lease, drive.error, tell=True)
        finally:
            self._forget(drive)
            if drive.driver is not None:
                await drive.driver.gone()  # ours, so that a close can wait for it

    def _forget(self, drive: Drive) -> None:
        if drive.done.is_set():
            return
        if self.drives.get(drive.lease.stream) is drive:
            del self.drives[drive.lease.stream]
        drive.done.set()
        awaited, drive.awaited = drive.awaited, None  # no circle: it holds the drive from now on
        if awaited is not None and not awaited.done():
            awaited.set_result([drive])
        ended, self._ended = self._ended, asyncio.Event()
        ended.set()

    async def _run_driver(self, drive: Drive, agent: ReadyAgent) -> None:
        """Drive until it rests."""
        lease, near = drive.lease, self._desk.near
        rested = near.forget(lease.stream)
        if rested is None or rested.log.state.head != lease.head:
            log = Log(self._desk.store, lease.stream)
            rested = CachedSession(log, await held(self._desk.store, lease), None)

        if agent.chosen:
            agent = await self._agents.listed(agent)
        is_alive = partial(self._holder.holds, lease)
        driver = drive.driver = Driver(self._desk, lease, agent, rested, is_alive)
        if self._closing:
            driver.stop()

        def parked() -> None:
            drive.parked = True
            self._forget(drive)

        with near.listening(lease.stream, driver.heard):
            await driver.run(parked)

    async def _give_up(self, lease: Lease, error: PerdureError, *, tell: bool = False) -> None:
        """Give the lease back after a failure that is not the session's own."""
        due = None if isinstance(error, Corrupt) or tell else self._desk.store.now() + PAUSE_MS
        await self._debts.pay(UnreturnedLease(lease, due, error if tell else None))
