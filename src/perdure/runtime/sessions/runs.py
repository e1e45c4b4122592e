"""Runs of sessions: woken, driven in this process, or followed while another process drives."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perdure.core.pending import record as pending
from perdure.core.pending.commands import Expire
from perdure.core.pending.settlement import is_overdue
from perdure.core.session.child_tasks import ChildTask
from perdure.core.session.children import ACTIVE
from perdure.core.session.naming import session_not_found
from perdure.errors import Corrupt, NotFound, PerdureError
from perdure.runtime.agents.agents import Agents
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.runtime.engine.drives import Drives
from perdure.runtime.engine.heartbeat import ClaimingCommit
from perdure.runtime.inbox.commits import ChildEntry
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

if TYPE_CHECKING:
    from perdure.runtime.engine.driver import Driver

FOLLOW_S: Final = 0.25  # how often a session that another process drives is read
RECHECK_S: Final = 2.0  # how often a caller that waits looks without a hint, as after a deletion


class SentMessage(NamedTuple):
    """A message that was recorded, and the drive that it began, at its end."""

    receipt: Receipt
    drive: "Driver | None" = None


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
        if entry.record.state == "waiting":  # by its entry; its log may have more
            await self._resources.session_inbox.wake(entry)
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

    async def next_deadline(self, stream: str, head: int) -> int | None:
        """Return when the next call of a session expires that is at rest at this head."""
        cached = self._resources.cache.get(stream)
        if cached is not None and cached.head == head and cached.pending_entries is not None:
            dues = [call.record.due for call in cached.pending_entries.values()]
        else:
            dues = [call.due async for call in open_calls(self._resources.store, stream)]
        return min((due for due in dues if due is not None), default=None)

    def seconds_until(self, instant: int | None, at_most: float) -> float:
        """Return how long to wait for an instant of the store's clock, at most so long."""
        if instant is None:
            return at_most
        return min(max(0, instant - self._resources.store.now()) / 1_000, at_most)

    def is_past(self, instant: int) -> bool:
        """Return whether an instant has been reached, by the store's clock."""
        return instant <= self._resources.store.now()

    # --- driving ------------------------------------------------------------------------------

    async def start(self, entry: SessionEntry) -> "Driver | None":
        """Start to drive a session here if it is due and free; returns before the drive ends."""
        return await self._drives.start_drive(entry)

    async def drive(self, entry: SessionEntry) -> "Driver | None":
        """Drive a session here, if it is due and free, until it parks."""
        await self.prepare(entry)
        return await self._drive(entry)

    async def _drive(self, entry: SessionEntry) -> "Driver | None":
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
        inbox = self._resources.session_inbox
        if not ref.agents:
            return SentMessage(await inbox.send(ref, message))
        receipts: list[Receipt] = []

        async def commit(holder: str | None) -> list[Lease]:
            receipts.append(await inbox.send(ref, message, holder))
            return [] if receipts[0].lease is None else [receipts[0].lease]

        drive = await self.commit_and_drive(ref.agents[0], commit)
        return SentMessage(receipts[0], drive)

    async def commit_and_drive(self, agent: str, commit: ClaimingCommit) -> "Driver | None":
        """Let a commit wake a session, and drive it here until it parks.

        Returns None if the commit could not claim it: then it is driven by whoever claims it.
        """
        if not self._drives.may_claim_by_commit(agent):
            await commit(None)
            return None
        has_committed = False

        async def note_commit(holder: str | None) -> list[Lease]:
            nonlocal has_committed
            leases = await commit(holder)
            has_committed = True
            return leases

        drive = await self._drives.commit_and_drive(agent, note_commit)
        if drive is not None and drive.error is not None:
            raise drive.error
        if drive is None and not has_committed:  # the runtime closes: its task was cancelled
            raise self._drives.background.end_error()
        return drive

    async def check_driver(self, entry: SessionEntry) -> bool:
        """Report whether a live process drives the session; a dead driver's call is recorded."""
        if entry.stream in self._drives.running or await self._is_driven(entry):
            return True
        await self._drives.drive_until_parked(entry)  # records the lost call, if the agent is here
        return False

    async def _is_driven(self, entry: SessionEntry) -> bool:
        if (await self.position(entry)).holder is None:
            return False
        await self.reap()
        return (await self.position(entry)).holder is not None

    async def reap(self) -> None:
        """Free the leases of workers whose heartbeat has stopped."""
        await self._resources.store.reap(self._resources.store.now())

    # --- following ----------------------------------------------------------------------------

    async def follow(self, entry: SessionEntry) -> "Driver | None":
        """Drive the session here if it is free, else watch its driver, until it parks.

        The background agents below it are driven too, until nothing in its tree can move here.
        Returns the drive that parked it, if that ran in this process.
        """
        agent = self._agents.find(entry.record.agent)
        if agent is not None and agent.sub_agents:
            await self.prepare(entry)
            return await SessionTree(self, entry).follow()
        return await self._follow_one(entry)

    async def _follow_one(self, entry: SessionEntry) -> "Driver | None":
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

        With `drive`, the session is driven here whenever it is free, and its overdue calls expire.
        The condition raises NotFound if the session was deleted: that is not reported as a change,
        because nothing has grown.
        """
        self._drives.background.start()
        changed = asyncio.Event()

        def on_change(_: int) -> None:
            changed.set()

        with self.subscribe(entry.stream, on_change):
            while True:
                changed.clear()
                deadline: int | None = None
                if drive:
                    await self.follow(entry)
                    head = (await self.position(entry)).head
                    deadline = await self.next_deadline(entry.stream, head)
                if await is_over():
                    return
                while not await _wait_briefly(changed, self.seconds_until(deadline, RECHECK_S)):
                    if await is_over():
                        return
                    if deadline is not None and self.is_past(deadline):
                        await self.expire(entry)
                        break

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
        position = await self.position(entry)
        if position.holder is not None or self.is_due(position):
            return False
        return position.due is None or not await self.is_backing_off(entry)

    async def _is_parked_here(self, entry: SessionEntry) -> bool:
        """Report whether the session is parked, or due for an agent that is not known here."""
        position = await self.position(entry)
        if position.holder is not None:
            return False
        return not self.is_due(position) or self._agents.find(entry.record.agent) is None

    async def is_resting(self, entry: SessionEntry, position: Slice) -> bool:
        """Report whether a session does not move here, and will not by itself.

        It is parked, or the agents here cannot drive it.
        """
        if position.holder is not None:
            return False
        if self._agents.find(entry.record.agent) is None:
            return True
        return not self.is_due(position) and not await self._backs_off(entry, position)

    def subscribe(
        self, stream: str, on_change: Callable[[int], None]
    ) -> AbstractContextManager[None]:
        """Call a function whenever a stream has grown, in this process or another."""
        return self._drives.background.feed.subscribe(stream, on_change)

    def run_beside(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run something that must not end with its caller, until the runtime closes."""
        self._drives.background.run_beside(work)

    def tasks_of(self, stream: str, status: str | None = None) -> AsyncIterator[ChildEntry]:
        """Find the background tasks that a session launched, perhaps with a status."""
        return self._resources.child_inbox.tasks_of(stream, status)

    async def find_session(self, ref: SessionRef) -> SessionEntry | None:
        """Return the entry of a session; None if it was deleted."""
        return await self._resources.session_inbox.find(ref)

    async def find_child(self, task: ChildTask) -> SessionEntry | None:
        """Return the session of a background task; None if it was deleted."""
        ref = SessionRef(task.tenant, task.session_id)
        return await self._resources.session_inbox.find(ref)

    def find_agent(self, name: str) -> ReadyAgent | None:
        """Return an agent that is known here."""
        return self._agents.find(name)

    async def is_backing_off(self, entry: SessionEntry) -> bool:
        """Report whether the session is only due later, to repeat a model request."""
        return await self._backs_off(entry, await self.position(entry))

    async def _backs_off(self, entry: SessionEntry, position: Slice) -> bool:
        if position.holder is not None or position.due is None or self.is_due(position):
            return False
        # A run that is over is due later only to repeat the request for a summary.
        return (await self._current(entry)).record.state != "waiting"

    async def position(self, entry: SessionEntry) -> Slice:
        """Return the head, holder and due time of a session. Raises NotFound."""
        with erased_as_not_found(entry.record.id):
            return await self._resources.store.read(entry.stream, limit=0)

    def is_due(self, position: Slice) -> bool:
        """Return whether a session can be claimed now."""
        return position.due is not None and position.due <= self._resources.store.now()

    async def _current(self, entry: SessionEntry) -> SessionEntry:
        ref = SessionRef(entry.record.tenant, entry.record.id)
        return await self._resources.session_inbox.session_entry(ref)


class SessionTree:
    """A session with the background agents below it, driven in this process.

    A session is read again only after a hint that it has changed; before the end all are verified.
    """

    def __init__(self, runs: Runs, root: SessionEntry) -> None:
        self._runs = runs
        self._root = root
        self._entries: dict[str, SessionEntry] = {}
        self._drives: dict[str, Driver] = {}  # started here
        self._resting: dict[str, Slice] = {}  # sessions at rest, unless they changed since
        self._deadlines: dict[str, int] = {}  # when the next call of one at rest expires
        self._listed: dict[str, int] = {}  # heads at which the children of sessions were listed
        self._names: set[str] = set()  # ids of all sessions
        self._changed = asyncio.Event()

    async def follow(self) -> "Driver | None":
        """Drive whatever can move here until nothing can; return the drive that parked the root.

        Raises the error of the root's drive.
        """
        with ExitStack() as stack:
            self._add(stack, self._root)
            while True:
                self._changed.clear()
                await self._expire_overdue()
                if not await self._drive_all(stack):
                    return self._last_drive()
                deadline = min(self._deadlines.values(), default=None)
                await _wait_briefly(self._changed, self._runs.seconds_until(deadline, FOLLOW_S))

    async def _expire_overdue(self) -> None:
        """Settle the overdue calls of sessions at rest; drivers do it for the others."""
        for stream, deadline in [*self._deadlines.items()]:
            if self._runs.is_past(deadline):
                del self._deadlines[stream]  # a call that cannot expire is not tried for ever
                await self._runs.expire(self._entries[stream])

    def _last_drive(self) -> "Driver | None":
        """Return the drive after which the root has not changed; None if there is none."""
        drive, position = self._drives.get(self._root.stream), self._resting[self._root.stream]
        is_last = drive is not None and drive.is_parked and drive.log.state.head == position.head
        return drive if is_last else None

    def _add(self, stack: ExitStack, entry: SessionEntry) -> None:
        def on_change(head: int) -> None:
            position = self._resting.get(entry.stream)
            if position is None or position.head < head:
                self._set_moving(entry.stream)
                self._changed.set()

        self._entries[entry.stream] = entry
        self._names.add(entry.record.id)
        stack.enter_context(self._runs.subscribe(entry.stream, on_change))

    # --- driving ------------------------------------------------------------------------------

    async def _drive_all(self, stack: ExitStack) -> bool:
        """Start all drives that can start here; return whether anything moves, or will soon."""
        remaining = [*self._entries]
        while remaining:
            stream = remaining.pop()
            position = self._resting.get(stream)
            if position is not None and not self._runs.is_due(position):
                continue
            before = set(self._entries)
            try:
                await self._drive(stack, self._entries[stream])
            except NotFound:  # deleted meanwhile
                self._remove(stream)
            else:
                remaining += [name for name in self._entries if name not in before]  # launched
        return len(self._resting) < len(self._entries) or await self._have_grown()

    async def _drive(self, stack: ExitStack, entry: SessionEntry) -> None:
        """Start to drive a session, unless it is at rest or driven, and add what it launched."""
        drive = self._drives.get(entry.stream)
        if drive is not None and not drive.done.is_set():
            await self._add_children(stack, entry, drive.log.state.head)
            return
        if drive is not None and drive.error is not None and entry is self._root:
            raise drive.error
        self._set_moving(entry.stream)
        position = await self._runs.position(entry)
        if await self._runs.is_resting(entry, position):
            deadline = await self._runs.next_deadline(entry.stream, position.head)
            self._resting[entry.stream] = position
            if deadline is not None:
                self._deadlines[entry.stream] = deadline
        elif (drive := await self._runs.start(entry)) is not None:
            self._drives[entry.stream] = drive
        await self._add_children(stack, entry, position.head)

    async def _have_grown(self) -> bool:
        """Return whether a session that was at rest got a record since, which may be a wake-up.

        They are read one after the other: the end of a child wakes a parent that was read before
        it. If none has grown, all of them were at rest at one instant.
        """
        for stream, position in [*self._resting.items()]:
            try:
                if (await self._runs.position(self._entries[stream])).head != position.head:
                    self._set_moving(stream)
            except NotFound:
                self._remove(stream)
        return len(self._resting) < len(self._entries)

    def _remove(self, stream: str) -> None:
        """Forget a session that was deleted. Raises NotFound for the root."""
        if stream == self._root.stream:
            raise session_not_found(self._root.record.id)
        del self._entries[stream]
        self._set_moving(stream)

    def _set_moving(self, stream: str) -> None:
        """Forget that a session was at rest: it has changed, or may be driven."""
        self._resting.pop(stream, None)
        self._deadlines.pop(stream, None)

    # --- children -----------------------------------------------------------------------------

    async def _add_children(self, stack: ExitStack, entry: SessionEntry, head: int) -> None:
        """Add the background agents that a session has launched up to a head."""
        if head <= self._listed.get(entry.stream, 0) or not self._may_launch(entry.record.agent):
            return
        self._listed[entry.stream] = head
        for name in await self._children(entry, head):
            if name not in self._names:
                child = await self._runs.find_session(SessionRef(entry.record.tenant, name))
                if child is not None:
                    self._add(stack, child)

    async def _children(self, entry: SessionEntry, head: int) -> list[str]:
        """Return the sessions below a session that may move, or may have launched others.

        A child that has ended and launches nothing is left out: its resume is in the parent's log.
        """
        is_deep = self._has_deep(entry)
        drive = self._drives.get(entry.stream)
        if drive is not None and drive.log.state.head >= head:
            table = drive.log.state.children
            moving = [*table.active.values(), *table.queued.values()]
            children = table.values() if is_deep else moving
            items = [(c.session_id, c.agent, c.is_active or c.is_queued) for c in children]
        else:
            statuses = (None,) if is_deep else ACTIVE
            tasks = [
                item.task
                for status in statuses
                async for item in self._runs.tasks_of(entry.stream, status)
            ]
            items = [(t.session_id, t.agent, t.may_move) for t in tasks]
        return [name for name, agent, may_move in items if may_move or self._may_launch(agent)]

    def _may_launch(self, name: str) -> bool:
        agent = self._runs.find_agent(name)
        return agent is None or bool(agent.sub_agents)

    def _has_deep(self, entry: SessionEntry) -> bool:
        """Return whether what a session launches may launch something itself."""
        agent = self._runs.find_agent(entry.record.agent)
        return agent is None or any(self._may_launch(item.name) for item in agent.sub_agents)


async def _wait_briefly(changed: asyncio.Event, seconds: float = FOLLOW_S) -> bool:
    """Wait for a hint, at most this long; return whether it came."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await changed.wait()
    return changed.is_set()
