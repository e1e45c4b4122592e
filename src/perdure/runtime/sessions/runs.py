"""Runs of sessions: woken, driven in this process, or followed while another process drives."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Final, NamedTuple

from perdure.core.pending import record as pending
from perdure.core.pending.commands import Expire
from perdure.core.pending.settlement import is_overdue
from perdure.core.session.child_tasks import ChildTask
from perdure.errors import Corrupt, NotFound, PerdureError
from perdure.runtime.agents.agents import Agents, ReadyAgent
from perdure.runtime.engine.driver import Driver
from perdure.runtime.engine.drives import Drives
from perdure.runtime.inbox.children import ChildEntry
from perdure.runtime.inbox.sessions import NewMessage, Receipt
from perdure.runtime.records.entries import (
    SessionEntry,
    SessionRef,
    erased_as_not_found,
    open_calls,
)
from perdure.runtime.records.log import read_log
from perdure.runtime.resources import Resources
from perdure.store.base import Lease, Slice

FOLLOW_S: Final = 0.25  # how often a session that another process drives is read


class SentMessage(NamedTuple):
    """A message that was recorded, and the drive that it began, at its end."""

    receipt: Receipt
    drive: Driver | None = None


class Runs:
    """Drives sessions in this process, and follows those that other processes drive."""

    def __init__(self, resources: Resources, agents: Agents, drives: Drives) -> None:
        self._resources = resources
        self._agents = agents
        self._drives = drives

    # --- waking -------------------------------------------------------------------------------

    async def wake(self, entry: SessionEntry) -> None:
        """Make a session due that is not over, even if a failure has postponed it."""
        if entry.record.state in ("pending", "running"):
            await self._resources.session_inbox.wake(entry)

    async def restart_or_wake(self, entry: SessionEntry) -> SessionEntry:
        """Start a new run if the last one failed or was cut off; otherwise wake the session."""
        if entry.record.problem == Corrupt.code:  # refused, unless it can be read again
            await self._resources.verifier.verify(entry.stream)
            await self._resources.session_inbox.wake(entry)
            return entry
        if entry.record.may_start_again:
            await self._resources.session_inbox.start_new_run(entry)
            return await self._current(entry)
        await self.wake(entry)
        return entry

    async def resume(self, entry: SessionEntry) -> SessionEntry:
        """Do the same at a caller's request: a model request that backs off is sent at once.

        Raises Corrupt if the session cannot be read.
        """
        await self._resources.verifier.verify(entry.stream)
        if not entry.record.is_over and await self.is_backing_off(entry):
            log = await read_log(self._resources.store, entry)
            if log.state.retry is not None:
                await self._resources.session_inbox.retry_now(entry)
                return entry
        return await self.restart_or_wake(entry)

    async def prepare(self, entry: SessionEntry) -> None:
        """Do what a worker would have done: expire overdue calls, wake a stuck session."""
        if entry.record.state in ("waiting", "running"):
            await self.expire(entry)
        if entry.record.problem is not None:
            await self._resources.session_inbox.wake(entry)

    async def expire(self, entry: SessionEntry) -> None:
        """Settle the overdue calls of one session."""
        now, cached = self._resources.store.now(), self._resources.cache.get(entry.stream)
        # An entry that was just read may be newer than the cached session, and so may its calls.
        waits = None if cached is None or cached.entry is not entry else cached.pending_entries
        if waits is not None and not any(is_overdue(call.record, now) for call in waits.values()):
            return
        async for call in open_calls(self._resources.store, entry.stream):
            if is_overdue(pending.decode(call.data), now):
                with suppress(PerdureError):  # another process has settled it
                    await self._resources.pending_inbox.settle(call.key, Expire())

    # --- driving ------------------------------------------------------------------------------

    async def start(self, entry: SessionEntry) -> Driver | None:
        """Start to drive a session here if it is due and free; returns before the drive ends."""
        return await self._drives.start_drive(entry)

    async def drive(self, entry: SessionEntry) -> Driver | None:
        """Drive a session here, if it is due and free, until it parks."""
        await self.prepare(entry)
        return await self._drive(entry)

    async def _drive(self, entry: SessionEntry) -> Driver | None:
        """Return the drive that parked the session here after this call; None if none did."""
        # A drive that was under way may have parked before the caller's event was recorded.
        is_old = entry.stream in self._drives.running
        drive = await self._drives.drive_until_parked(entry)
        if drive is None:
            return None
        if drive.error is not None:
            raise drive.error
        return drive if drive.is_parked and not is_old else None

    async def send_and_drive(self, ref: SessionRef, message: NewMessage) -> SentMessage:
        """Record a message, and drive the session here until it parks if nobody else does."""
        inbox, drives = self._resources.session_inbox, self._drives
        if not ref.agents or not drives.may_claim_by_commit(ref.agents[0]):
            return SentMessage(await inbox.send(ref, message))
        receipt: Receipt | None = None

        async def commit(holder: str | None) -> list[Lease]:
            nonlocal receipt
            receipt = await inbox.send(ref, message, holder)
            return [] if receipt.lease is None else [receipt.lease]

        drive = await drives.commit_and_drive(ref.agents[0], commit)
        if drive is not None and drive.error is not None:
            raise drive.error
        if receipt is None:  # the task that was to send it has ended
            raise drives.background.end_error()
        return SentMessage(receipt, drive)

    async def check_driver(self, entry: SessionEntry) -> bool:
        """Report whether a live process drives the session; a dead driver's call is recorded."""
        if entry.stream in self._drives.running or await self._is_driven(entry):
            return True
        await self._drives.drive_until_parked(entry)  # records the lost call, if the agent is here
        return False

    async def _is_driven(self, entry: SessionEntry) -> bool:
        if (await self._position(entry)).holder is None:
            return False
        await self.reap()
        return (await self._position(entry)).holder is not None

    async def reap(self) -> None:
        """Free the leases of workers whose heartbeat has stopped."""
        await self._resources.store.reap(self._resources.store.now())

    # --- following ----------------------------------------------------------------------------

    async def follow(self, entry: SessionEntry) -> Driver | None:
        """Drive the session here if it is free, else watch its driver, until it parks.

        The background agents below it are driven too, until nothing in its tree can move here.
        Returns the drive that parked it, if that ran in this process and it has no tree.
        """
        agent = self._agents.find(entry.record.agent)
        if agent is not None and agent.sub_agents:
            await self.prepare(entry)
            await SessionTree(self, entry).follow()
            return None
        return await self._follow_one(entry)

    async def _follow_one(self, entry: SessionEntry) -> Driver | None:
        drive = await self.drive(entry)
        if drive is not None and not drive.is_backing_off:
            return drive
        changed = asyncio.Event()

        def on_change(_: int) -> None:
            changed.set()

        with self._drives.background.feed.subscribe(entry.stream, on_change):
            while True:
                changed.clear()
                drive = await self._drive(entry)
                if drive is not None and not drive.is_backing_off:
                    return drive
                while await self._wait_for_retry(entry, changed):
                    pass
                if await self._is_parked_here(entry):
                    return None
                await _wait_briefly(changed)

    async def _wait_for_retry(self, entry: SessionEntry, changed: asyncio.Event) -> bool:
        """Wait a moment if the session backs off and could then be driven here."""
        if self._agents.find(entry.record.agent) is None or not await self.is_backing_off(entry):
            return False
        await _wait_briefly(changed)
        changed.clear()
        return True

    async def wait_for(
        self, entry: SessionEntry, is_over: Callable[[], Awaitable[bool]], *, drive: bool
    ) -> None:
        """Wait until a condition holds, which is asked again whenever the session has changed.

        With `drive`, the session is driven here whenever it is free.
        """
        self._drives.background.start()
        changed = asyncio.Event()

        def on_change(_: int) -> None:
            changed.set()

        with self.subscribe(entry.stream, on_change):
            while True:
                changed.clear()
                if drive:
                    await self.follow(entry)
                if await is_over():
                    return
                await changed.wait()

    async def wait_until_parked(
        self, entry: SessionEntry, seconds: float, is_closing: Callable[[], bool]
    ) -> bool:
        """Wait, without driving, until the session parks; False if the time was over before.

        Returns early when `is_closing` turns true.
        """
        self._drives.background.start()
        changed = asyncio.Event()

        def on_change(_: int) -> None:
            changed.set()

        watching = self._drives.background.feed.subscribe(entry.stream, on_change)
        with watching, suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not is_closing():
                    if await self.is_parked(entry):
                        return True
                    await _wait_briefly(changed)
                    changed.clear()
        return await self.is_parked(entry)

    async def is_parked(self, entry: SessionEntry) -> bool:
        """Report whether nothing drives the session, or will once a model's back-off is over."""
        position = await self._position(entry)
        if position.holder is not None or self._is_due(position):
            return False
        return position.due is None or not await self.is_backing_off(entry)

    async def _is_parked_here(self, entry: SessionEntry) -> bool:
        """Report whether the session is parked, or due for an agent that is not known here."""
        position = await self._position(entry)
        if position.holder is not None:
            return False
        return not self._is_due(position) or self._agents.find(entry.record.agent) is None

    async def is_at_rest(self, entry: SessionEntry) -> bool:
        """Report whether a session is parked, or cannot be driven by the agents here."""
        if not await self._is_parked_here(entry):
            return False
        agent = self._agents.find(entry.record.agent)
        return agent is None or not await self.is_backing_off(entry)

    def subscribe(
        self, stream: str, on_change: Callable[[int], None]
    ) -> AbstractContextManager[None]:
        """Call a function whenever a stream has grown, in this process or another."""
        return self._drives.background.feed.subscribe(stream, on_change)

    def tasks_of(self, stream: str) -> AsyncIterator[ChildEntry]:
        """Find the background tasks that a session launched."""
        return self._resources.child_inbox.tasks_of(stream)

    async def find_child(self, task: ChildTask) -> SessionEntry | None:
        """Return the session of a background task; None if it was deleted."""
        ref = SessionRef(task.tenant, task.session_id)
        return await self._resources.session_inbox.find(ref)

    def find_agent(self, name: str) -> ReadyAgent | None:
        """Return an agent that is known here."""
        return self._agents.find(name)

    async def is_backing_off(self, entry: SessionEntry) -> bool:
        """Report whether the session is only due later, to repeat a model request."""
        position = await self._position(entry)
        if position.holder is not None or position.due is None or self._is_due(position):
            return False
        # A run that is over is due later only to repeat the request for a summary.
        return (await self._current(entry)).record.state != "waiting"

    async def _position(self, entry: SessionEntry) -> Slice:
        with erased_as_not_found(entry.record.id):
            return await self._resources.store.read(entry.stream, limit=0)

    def _is_due(self, position: Slice) -> bool:
        return position.due is not None and position.due <= self._resources.store.now()

    async def _current(self, entry: SessionEntry) -> SessionEntry:
        ref = SessionRef(entry.record.tenant, entry.record.id)
        return await self._resources.session_inbox.session_entry(ref)


class SessionTree:
    """A session with the background agents below it, driven in this process."""

    def __init__(self, runs: Runs, root: SessionEntry) -> None:
        self._runs = runs
        self._root = root
        self._entries = {root.stream: root}
        self._root_drive: Driver | None = None
        self._changed = asyncio.Event()

    async def follow(self) -> None:
        """Drive whatever can move here until nothing can. Raises the error of the root's drive."""
        with ExitStack() as stack:
            self._subscribe(stack, self._root.stream)
            while True:
                self._changed.clear()
                await self._add_children(stack)
                if not await self._drive_all():
                    return
                await _wait_briefly(self._changed)

    def _subscribe(self, stack: ExitStack, stream: str) -> None:
        def on_change(_: int) -> None:
            self._changed.set()

        stack.enter_context(self._runs.subscribe(stream, on_change))

    async def _add_children(self, stack: ExitStack) -> None:
        """Add the background agents that were launched since, at every depth."""
        remaining = [entry.stream for entry in self._entries.values() if self._may_launch(entry)]
        while remaining:
            async for item in self._runs.tasks_of(remaining.pop()):
                task = item.task
                if task.stream in self._entries:
                    continue
                entry = await self._runs.find_child(task)
                if entry is not None:
                    self._entries[task.stream] = entry
                    self._subscribe(stack, task.stream)
                    if self._may_launch(entry):
                        remaining.append(task.stream)

    def _may_launch(self, entry: SessionEntry) -> bool:
        agent = self._runs.find_agent(entry.record.agent)
        return agent is None or bool(agent.sub_agents)

    async def _drive_all(self) -> bool:
        """Start all drives that can start here; return whether anything moves, or will soon."""
        is_moving = False
        for stream, entry in [*self._entries.items()]:
            try:
                is_moving |= await self._drive(entry)
            except NotFound:  # deleted meanwhile
                if stream == self._root.stream:
                    raise
                del self._entries[stream]
        return is_moving

    async def _drive(self, entry: SessionEntry) -> bool:
        is_root = entry.stream == self._root.stream
        last = self._root_drive
        if is_root and last is not None and last.done.is_set() and last.error is not None:
            raise last.error
        if await self._runs.is_at_rest(entry):
            return False
        drive = await self._runs.start(entry)
        if is_root and drive is not None:
            self._root_drive = drive
        return True


async def _wait_briefly(changed: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(FOLLOW_S):
            await changed.wait()
