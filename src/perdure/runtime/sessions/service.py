"""The service that HTTP, the command line and the Python API share: verbs on sessions."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure.core.log.events import Content as StoredContent
from perdure.core.log.events import Event as LogEvent
from perdure.core.log.events import Revoked, User
from perdure.core.session import queues
from perdure.core.session.child_tasks import ChildTask
from perdure.core.session.naming import check_id
from perdure.core.session.state import State
from perdure.core.webhooks.deliveries import Hook
from perdure.errors import Corrupt, NotFound
from perdure.runtime.agents.agents import Agents
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.runtime.engine.drives import Drives
from perdure.runtime.inbox.sessions import NewMessage, Receipt
from perdure.runtime.records.cache import CachedSession
from perdure.runtime.records.content import check_text, read_bytes, stored_content
from perdure.runtime.records.entries import (
    STUCK,
    SessionEntry,
    SessionRef,
    all_readable,
    erased_as_not_found,
)
from perdure.runtime.records.history import state_at
from perdure.runtime.records.listings import SESSIONS, listed_page
from perdure.runtime.records.log import Log, as_record, read_log, reading
from perdure.runtime.records.retention import KEEP_MS, Retention
from perdure.runtime.records.write_probe import WriteProbe
from perdure.runtime.resources import Resources
from perdure.runtime.sessions.background import BackgroundTasks
from perdure.runtime.sessions.feed import EventFeed
from perdure.runtime.sessions.pending_calls import PendingCalls
from perdure.runtime.sessions.runs import Runs, SentMessage
from perdure.runtime.sessions.snapshot import Snapshots
from perdure.runtime.views import Snapshot
from perdure.runtime.webhooks.deliveries import Deliveries
from perdure.store.base import NoStream, Page, Write
from perdure.tasks.first_use import TasksAtFirstUse
from perdure.views.base import bound
from perdure.views.events import Event
from perdure.views.sessions import PastState, Result
from perdure.views.values import Content

if TYPE_CHECKING:
    from perdure.runtime.sessions.task_lists import AllTasks
    from perdure.runtime.sessions.transfers import Transfers
    from perdure.tasks.service import Tasks


class Service:
    """Verbs on sessions; `calls`, `runs`, `feed` and other attributes have those of their nouns.

    `inbox` has the commits to sessions that need nothing else: create, cancel, wake, metadata.
    """

    def __init__(
        self,
        resources: Resources,
        agents: Agents,
        drives: Drives,
        tasks: TasksAtFirstUse,
        *,
        resumes_running: bool = True,
        keep_settled_ms: int = KEEP_MS,
    ) -> None:
        self._resources = resources
        self.inbox = resources.session_inbox
        self._snapshots = Snapshots(resources, agents)
        self.agents = agents
        self.drives = drives
        self.runs = Runs(resources, agents, drives)
        self.calls = PendingCalls(resources, agents, self.runs)
        self.feed = EventFeed(resources, drives)
        self.background = BackgroundTasks(resources, agents, self.runs, self._process_name)
        self.deliveries = Deliveries(resources.outbox)
        self.tasks_at_first_use = tasks
        self.resumes_running = resumes_running  # at a start; else they are failed
        self.running_before: dict[str, SessionEntry] = {}  # by stream, when this process started
        self.keep_settled_ms = keep_settled_ms  # how long settled calls are kept
        self.worked_at: float | None = None  # monotonic; the last round of a worker here
        self._probe = WriteProbe(resources.store)

    @property
    def tasks(self) -> "Tasks":
        """Tasks with a workspace, which are built now if nobody has used them."""
        return self.tasks_at_first_use.get()

    @property
    def all_tasks(self) -> "AllTasks":
        """Lists of tasks of every kind."""
        from perdure.runtime.sessions.task_lists import AllTasks

        return AllTasks(self._resources.store, self.inbox)

    @property
    def transfers(self) -> "Transfers":
        """Fork, export, import and adoption of sessions."""
        from perdure.runtime.sessions.transfers import Transfers

        resources = self._resources
        return Transfers(resources.store, self.inbox, resources.child_inbox, self.runs)

    async def _process_name(self) -> str:
        return await self.tasks.process_name()

    def now(self) -> int:
        """Return the store's time, in ms."""
        return self._resources.store.now()

    @property
    def public_url(self) -> str | None:
        """The address under which receivers and submitters reach this runtime."""
        return self._resources.address.url

    @property
    def webhook_secret(self) -> str | None:
        """The secret that signs webhooks."""
        return self._resources.address.webhook_secret

    # --- finding ------------------------------------------------------------------------------

    def new_ref(
        self,
        tenant: str,
        session_id: str,
        agent: ReadyAgent | str | None,
        *,
        metadata: Mapping[str, Any] | None = None,
        notify: Hook | None = None,
        queue: str | None = None,
    ) -> SessionRef:
        """Return the reference to a session that a message to it may create.

        Raises NotFound for a name that none of the agents here has: see `Agents.expect`.
        """
        ready = self.agents.expect(agent) if isinstance(agent, str) else agent
        names: tuple[str, ...] = (agent,) if isinstance(agent, str) else ()
        if ready is not None:
            names = (ready.name, *ready.agent.aliases)
        mode = "queue" if ready is None else ready.agent.while_waiting
        own = queues.DEFAULT if ready is None else ready.agent.queue
        chosen = own if queue is None else queues.check_queue(queue)
        return SessionRef(tenant, check_id(session_id), names, mode, metadata, notify, chosen)

    async def find(self, ref: SessionRef) -> SessionEntry | None:
        """Return a session's entry, or None. Raises Conflict if another agent owns it."""
        return await self.inbox.find(ref)

    async def get(self, ref: SessionRef) -> SessionEntry:
        """Return a session's entry. Raises NotFound."""
        return await self.inbox.session_entry(ref)

    async def sessions(
        self, tenant: str | None, state: str | None = None, *, damaged: bool = False
    ) -> AsyncIterator[SessionEntry]:
        """Yield the sessions of a tenant, or all, by their entries; no log is read.

        Entries that cannot be read are left out or, with `damaged`, failed sessions.
        """
        store = self._resources.store
        decode = SessionEntry.decode_listed if damaged else SessionEntry.decode
        async for entry in all_readable(store, "session", decode, state=state):
            if tenant is None or entry.record.tenant == tenant:
                yield entry

    async def session_page(
        self, after: str | None, limit: int = 500, *, state: str | None = None
    ) -> Page:
        """Return a page of session entries after a cursor."""
        return await self._resources.store.find("session", state=state, after=after, limit=limit)

    async def recent_page(self, after: str | None, limit: int) -> Page:
        """Return a page of session entries, the last changed first. Raises ValueError."""
        store = self._resources.store
        return await listed_page(store, "session", [SESSIONS], "newest", after, limit)

    async def count_by_state(self) -> dict[str, int]:
        """Return the numbers of sessions by the state of their entries."""
        census = await self._resources.store.census(["session"])
        return {state: count for (_, state), count in census.entries.items()}

    async def check_writable(self) -> None:
        """Raise StoreError if the store cannot be written."""
        await self._probe.check()

    # --- reading ------------------------------------------------------------------------------

    async def log(self, entry: SessionEntry) -> Log:
        """Return the whole log of a session. Raises NotFound, Corrupt."""
        return await read_log(self._resources.store, entry)

    def reading(self, entry: SessionEntry) -> AbstractAsyncContextManager[Log]:
        """Return a context with the whole log; few long ones are open at a time."""
        return reading(self._resources.store, entry)

    async def authors(self, ref: SessionRef) -> set[str]:
        """Return who has sent messages to a session; nobody if it does not exist."""
        entry = await self.find(ref)
        if entry is None:
            return set()
        messages = [item.event for item in (await self.log(entry)).events]
        return {item.by for item in messages if isinstance(item, User) and item.by}

    async def clear_own(self, tenant: str, author: str) -> list[ChildTask]:
        """Cancel the background agents that an author launched, and remove them from lists.

        Those of sessions stay, and those that others launched.
        """
        cleared: list[ChildTask] = []
        async for task in self.background.tasks(tenant):
            ref = SessionRef(task.tenant, task.session_id)
            if task.parent is None and author in await self.authors(ref):
                cleared += await self._resources.child_inbox.clear(task.stream, author)
        return cleared

    async def events(
        self, entry: SessionEntry, after: int = 0, limit: int | None = None
    ) -> list[Event]:
        """Return events of a session after a seq, oldest first."""
        events, _ = await self.feed.events(entry, after, limit)
        return events

    async def state_at(self, entry: SessionEntry, seq: int) -> PastState:
        """Return the session as it was after an event. Raises NotFound, Corrupt."""
        return await state_at(self._resources.store, entry, seq)

    async def head(self, entry: SessionEntry) -> int:
        """Return the seq of the session's last event."""
        return (await self.feed.read(entry.stream, limit=0)).head

    async def snapshot(self, entry: SessionEntry, cached: CachedSession | None = None) -> Snapshot:
        """Return everything about a session, from its log and its open calls."""
        return await self._snapshots.take(entry, cached, has_worker=self.worked_at is not None)

    async def result(self, entry: SessionEntry, cached: CachedSession | None = None) -> Result[Any]:
        """Return a session as it stands, or as a drive here has just parked it.

        One that cannot be read is failed, with the error. Raises Corrupt if it was over before:
        its output would be missing.
        """
        result = await self.listed_result(entry, cached)
        snapshot: Snapshot | None = bound(result, "_snapshot")
        problem = None if snapshot is None else snapshot.problem
        if result.state != "failed" and isinstance(problem, Corrupt):
            raise problem
        return result

    async def listed_result(
        self, entry: SessionEntry, cached: CachedSession | None = None
    ) -> Result[Any]:
        """Return the same; if the log is corrupt, what the entry says, with the problem."""
        try:
            if entry.is_damaged:
                SessionEntry.decode(entry.index_entry)
            snapshot = await self.snapshot(entry, cached)
        except Corrupt as error:
            snapshot = Snapshot(entry.record, State(), problem=error)
        return self._snapshots.as_result(snapshot)

    # --- writing ------------------------------------------------------------------------------

    async def send(self, ref: SessionRef, message: NewMessage) -> Receipt:
        """Record a message and wake the session. Raises Conflict KEY_REUSED, SESSION_WAITING."""
        return await self.inbox.send(await self._with_agent_options(ref), message)

    async def send_and_drive(self, ref: SessionRef, message: NewMessage) -> SentMessage:
        """Do the same, and drive the session here until it parks if nobody else does."""
        return await self.runs.send_and_drive(await self._with_agent_options(ref), message)

    async def _with_agent_options(self, ref: SessionRef) -> SessionRef:
        """Add what the session's own agent does with messages while calls are open."""
        if ref.agents:
            return ref
        entry = await self.find(ref)
        agent = None if entry is None else self.agents.find(entry.record.agent)
        return ref if agent is None else replace(ref, while_waiting=agent.agent.while_waiting)

    async def change_metadata(
        self, ref: SessionRef, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> None:
        """Change metadata by a function of its present value; concurrent changes are repeated."""
        while True:
            entry = await self.get(ref)
            changes = change(dict((await self.log(entry)).state.metadata))
            if not changes or await self.inbox.put_metadata(entry, changes):
                return

    async def erase(self, ref: SessionRef, by: str | None = None, via: str = "python") -> str:
        """Delete a session and everything that finds it; return the last state of its run.

        A run that is not over is cancelled first. Raises NotFound.
        """
        return await self.background.erase_tree(ref, by, via)

    async def append(
        self, entry: SessionEntry, facts: Sequence[LogEvent], *, head: int | None = None
    ) -> None:
        """Append events without waking the session. Raises NotFound, HeadMoved."""
        now = self.now()
        records = [as_record(event, now) for event in facts]
        with erased_as_not_found(entry.record.id):
            await self._resources.store.commit([Write(entry.stream, records, head=head)])

    async def revoke(self, entry: SessionEntry, number: int, by: str, via: str) -> None:
        """Take back the permission that a decision granted. Raises NotFound."""
        check_text("by", by)
        if all(allowed.number != number for allowed in (await self.log(entry)).state.permissions):
            raise NotFound(
                f"session {entry.record.id!r} remembers no permission {number}",
                code="PERMISSION_NOT_FOUND",
                hint=f"perdure sessions permissions {entry.record.id}",
            )
        await self.append(entry, [Revoked(decision=number, by=by, via=via)])

    async def fail_corrupt(self, entry: SessionEntry, error: Corrupt) -> Corrupt:
        """Mark a session as failed whose log cannot be read; return the error for the caller."""
        return await self._resources.verifier.fail_session(entry.stream, error)

    async def wake_stuck(self) -> None:
        """Wake sessions that other code could not continue, if their agent is known here."""
        async for entry in self.sessions(None, STUCK):
            if self.agents.find(entry.record.agent) is not None:
                with suppress(NotFound):  # deleted meanwhile
                    await self.inbox.wake(entry)

    async def remove_settled(self) -> int:
        """Remove the entries of calls that were settled long ago; returns their number."""
        return await Retention(self._resources.store, self.keep_settled_ms).run_round()

    # --- content ------------------------------------------------------------------------------

    async def store_content(self, content: Content) -> StoredContent:
        """Store the files of a message and return the content that its event keeps."""
        return await stored_content(self._resources.store, content)

    async def read_file(self, digest: str) -> bytes | None:
        """Return the bytes of a stored file; None if it is not there."""
        try:
            return await read_bytes(self._resources.store, digest)
        except NoStream:
            return None
