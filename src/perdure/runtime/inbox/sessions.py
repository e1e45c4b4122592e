"""Commits to a session by callers without a lease: messages, cancellations, metadata.

Each is one conditional commit that also wakes the session. Those that need a driver are refused
if the log of the session cannot be read.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.log.redaction import MASK
from perdure.core.pending import record as pending
from perdure.core.pending import settlement as decide
from perdure.core.pending.commands import CancelCall
from perdure.core.session import naming as index
from perdure.core.session.child_tasks import TASK, ChildTask, decode_task, task_key
from perdure.core.session.children import Reservation
from perdure.core.session.follow_ups import FollowUpRules, queued_message
from perdure.core.session.naming import SessionRecord, session_not_found
from perdure.errors import Conflict, Corrupt, PerdureError, Refused
from perdure.ids import new_id
from perdure.runtime.inbox.commits import Commits, FollowUp
from perdure.runtime.inbox.message_keys import check_same, entry_key, message_key_puts
from perdure.runtime.records.cache import CachedSession, SessionCache
from perdure.runtime.records.content import check_json
from perdure.runtime.records.entries import (
    SessionEntry,
    SessionRef,
    WhileWaiting,
    erased_as_not_found,
    open_calls,
    pending_put,
)
from perdure.runtime.records.log import Log, as_record, read_log
from perdure.runtime.records.verification import LogVerifier
from perdure.runtime.webhooks.outbox import Outbox
from perdure.store.base import (
    Entry,
    ForeignWrite,
    Gone,
    HeadMoved,
    Lease,
    NoStream,
    Put,
    Store,
    StoreRefusal,
    VersionMoved,
    Write,
)

logger = logging.getLogger("perdure")

DELETED: Final = "the session was deleted"


class NewMessage(Struct, frozen=True):
    """A message to record."""

    content: events.Content
    key: str | None = None
    by: str | None = None
    redact: bool = False  # it holds redacted arguments
    via: str = "python"  # the channel that it came through
    follow_up: FollowUpRules | None = None  # to a background task, whose parent allows this
    reservation: Reservation | None = None  # of its outcome, for a caller that waits
    bounds: tuple[events.Bound, ...] = ()  # budgets of the run that it starts

    @property
    def title(self) -> str:
        """The beginning of the message, for lists."""
        return MASK if self.redact else message_title(self.content)


class Receipt(Struct, frozen=True):
    """A recorded message; its seq is not looked up for one that was sent before."""

    entry: "SessionEntry"
    seq: int | None = None
    is_new: bool = False  # this message created the session
    lease: Lease | None = None  # for the holder that claimed it with the message
    task: ChildTask | None = None  # that a follow-up has resumed, or waits for


class SessionInbox:
    """Commits to sessions by callers that do not drive them."""

    def __init__(
        self,
        store: Store,
        outbox: Outbox,
        commits: Commits,
        cache: SessionCache,
        verifier: LogVerifier,
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._commits = commits
        self._cache = cache
        self._verifier = verifier

    async def find(self, ref: SessionRef) -> SessionEntry | None:
        """Return the session's entry, or None. Raises Conflict if another agent owns it."""
        entry = await self._store.get("session", ref.key)
        return None if entry is None else _check_agent(ref, SessionEntry.decode(entry))

    def cached_entry(self, ref: SessionRef) -> SessionEntry | None:
        """Return the session's entry as it was last written here: a guess."""
        stream = index.session_stream(ref.tenant, ref.session_id)
        session = self._cache.get(stream)
        # Another agent may own it by now, which only the store can say.
        if session is None or not _is_of_agent(ref, session.entry):
            return None
        return session.entry

    async def session_entry(self, ref: SessionRef) -> SessionEntry:
        """Return the session's entry. Raises NotFound."""
        entry = await self.find(ref)
        if entry is None:
            raise session_not_found(ref.session_id)
        return entry

    async def send(self, ref: SessionRef, message: NewMessage, claim: str | None = None) -> Receipt:
        """Record a message and wake the session; the same key and content again changes nothing.

        `claim` names the holder that will drive a session without open calls: see Write. Raises
        Conflict with KEY_REUSED or SESSION_WAITING, Corrupt if it cannot be read, Refused if the
        message is blank.
        """
        if events.is_blank(message.content):
            raise Refused(
                "the message is empty",
                code="CONTENT_INVALID",
                hint="send text or a file; to continue without a message, run the session",
            )
        guess = None if message.follow_up is not None else self.cached_entry(ref)
        # A caller that drives mostly begins sessions: the commit says if there is one already.
        is_probably_new = claim is not None and guess is None and bool(ref.agents)
        while True:
            entry = None if is_probably_new else guess or await self.find(ref)
            if guess is None and entry is not None and message.key is not None:
                key_entry = await self._store.get("key", entry_key(entry.stream, message.key))
                if key_entry is not None:
                    check_same(key_entry, message.key, message.content)
                    return Receipt(entry)
            try:
                if entry is None:
                    return await self._create(ref, message, claim)
                return await self._append(
                    entry, ref, message, claim if entry.record.is_over else None
                )
            except (HeadMoved, ForeignWrite, VersionMoved, Gone) as error:
                guess = None  # another caller was faster, or it was sent before: read again
                self._verifier.note_refusal(error)
                if entry is None and not is_probably_new:
                    await self._check_entry(ref, error)
                is_probably_new = False

    async def create(self, ref: SessionRef) -> Receipt:
        """Create the session with its metadata and no message, unless it exists."""
        while True:
            entry = await self.find(ref)
            if entry is not None:
                return Receipt(entry)
            try:
                return await self._create(ref, None)
            except (HeadMoved, VersionMoved) as error:
                await self._check_entry(ref, error)

    async def _check_entry(self, ref: SessionRef, error: StoreRefusal) -> None:
        """Raise Corrupt if a session that could not be created has events, but no entry."""
        if not isinstance(error, HeadMoved) or await self.find(ref) is not None:
            return
        with suppress(NoStream, Gone):  # deleted meanwhile
            await self._store.read(error.stream, limit=0)
            raise Corrupt(
                f"the entry of session {ref.session_id!r} is lost",
                hint=f"perdure doctor {ref.session_id} --fix creates it again from its events",
            )

    async def _create(
        self, ref: SessionRef, message: NewMessage | None, claim: str | None = None
    ) -> Receipt:
        if not ref.agents:
            raise Refused(
                f"session {ref.session_id!r} is new, and no agent was named for it",
                code="AGENT_NEEDED",
                hint="pass agent=",
            )
        now = self._store.now()
        record = _new_record(ref, message, now)
        facts: list[events.Event] = []
        if record.metadata or message is None:
            facts.append(events.Metadata(changes=record.metadata))
        if message is not None:
            facts.append(_user_event(message, record.task_id))
        records = [as_record(fact, now) for fact in facts]
        wake = None if message is None else now
        generation = 1
        while True:
            stream = index.session_stream(ref.tenant, ref.session_id, generation)
            hook_puts = await self._hook_puts(ref, stream)
            entry = SessionEntry.new(replace(record, hooks=tuple(hook_puts)), stream)
            keys = [] if message is None else message_key_puts(message.key, message.content, stream)
            kind = index.stream_kind(record.agent, record.queue)
            write = Write(stream, records, create=kind, head=0, wake=wake, claim=claim)
            try:
                puts = [entry.as_put, *keys, *hook_puts.values()]
                heads = await self._store.commit([write], puts)
            except Gone:
                generation += 1  # erased before: a stream's name is never used again
                continue
            log = Log(self._store, stream)
            log.append(facts, records, heads.foreign_writes)
            self._cache.add(CachedSession(log, entry))
            return Receipt(entry, heads[stream], is_new=True, lease=heads.leases.get(stream))

    async def _hook_puts(self, ref: SessionRef, stream: str) -> dict[str, Put]:
        """Return the put of an additional receiver, by its name. Raises Refused."""
        if ref.notify is None:
            return {}
        return dict([await self._outbox.hook_put(stream, ref.notify)])

    async def _append(
        self, entry: SessionEntry, ref: SessionRef, message: NewMessage, claim: str | None
    ) -> Receipt:
        relied = await self._verifier.rely_or_verify(entry.stream)
        now, mode, hooks = self._store.now(), ref.while_waiting, entry.record.hooks
        hook_puts = await self._hook_puts(ref, entry.stream)
        hook_puts = {name: put for name, put in hook_puts.items() if name not in hooks}
        task = new_id("task") if entry.record.is_over else entry.record.task_id or new_id("task")
        state = "pending" if entry.record.is_over else entry.record.state
        facts: list[events.Event] = []
        title = entry.record.title or message.title
        updated = entry.with_changes(
            updated_at=now, task_id=task, state=state, title=title, hooks=(*hooks, *hook_puts)
        )
        puts = [updated.as_put, *hook_puts.values()]
        closed: list[Put] = []
        head: int | None = None
        if mode != "queue":
            head = (await self._store.read(entry.stream, limit=0)).head
            facts, closed = await self._settle_open_calls(
                entry, mode, CancelCall(message.by, message.via)
            )
            puts += closed
        is_queued = message.follow_up is not None and not entry.record.is_over
        facts.append(_queued_event(message) if is_queued else _user_event(message, task))
        records = [as_record(fact, now) for fact in facts]
        write = Write(
            entry.stream, records, head=head, wake=now, claim=claim, foreign_writes=relied
        )
        puts += message_key_puts(message.key, message.content, entry.stream)
        rules = message.follow_up
        follow_up = None if rules is None else FollowUp(rules, message.reservation)
        heads = await self._commits.commit([write], puts, follow_up)
        settled = dict.fromkeys(put.key for put in closed)
        self._cache.apply_commit(write, facts, heads, entry=updated, pending=settled)
        task_after = None if follow_up is None else follow_up.task
        lease = heads.leases.get(entry.stream)
        return Receipt(updated, heads[entry.stream], lease=lease, task=task_after)

    async def _settle_open_calls(
        self, entry: SessionEntry, mode: WhileWaiting, command: CancelCall
    ) -> tuple[list[events.Event], list[Put]]:
        open_entries = [call async for call in open_calls(self._store, entry.stream)]
        if open_entries and mode == "reject":
            calls = "1 call" if len(open_entries) == 1 else f"{len(open_entries)} calls"
            raise Conflict(
                f"session {entry.record.id!r} waits for {calls} and accepts no message until then",
                code="SESSION_WAITING",
                hint="settle or cancel them: perdure pending list",
            )
        # A run that waits at a limit of its budget waits for no call.
        of_calls = [item for item in open_entries if pending.decode(item.data).budget is None]
        return self._cancel_calls(of_calls, command)

    def _cancel_calls(
        self, open_entries: Sequence[Entry], command: CancelCall
    ) -> tuple[list[events.Event], list[Put]]:
        facts: list[events.Event] = []
        puts: list[Put] = []
        entries = {entry.key: entry for entry in open_entries}
        records = [pending.decode(entry.data) for entry in open_entries]
        for outcome in decide.cancel_all_open(records, command, self._store.now()):
            entry = entries[outcome.record.id]
            facts += outcome.facts
            puts.append(pending_put(outcome.record, entry.version, entry.stream))
        return facts, puts

    async def cancel(
        self,
        ref: SessionRef,
        by: str | None,
        reason: str | None,
        via: str = "python",
        *,
        keep_children: bool = False,
    ) -> None:
        """End the run: after this returns, no intent of it is recorded any more.

        A run that has ended stays as it is; the one that a queued follow-up would start is
        cancelled before it starts. Its driver then cancels the background agents that it launched,
        unless `keep_children` is set.
        """
        while not await self._try_cancel(ref, CancelCall(by, via), reason, keep_children):
            pass

    async def _try_cancel(
        self, ref: SessionRef, command: CancelCall, reason: str | None, keep_children: bool
    ) -> bool:
        """Cancel the run if there is one; return False if the session has changed meanwhile."""
        entry = await self.session_entry(ref)
        run, start = entry.record.task_id, list[events.Event]()
        try:
            with erased_as_not_found(ref.session_id):
                head = (await self._store.read(entry.stream, limit=0)).head
            if entry.record.is_over:
                queued = await self._queued_start(entry, head)
                if queued is None:
                    return True
                run, start = queued.task_id, [queued]
            open_entries = [call async for call in open_calls(self._store, entry.stream)]
            facts, puts = self._cancel_calls(open_entries, command)
            cancelled = events.Cancelled(
                by=command.by, reason=reason, keep_children=keep_children, task_id=run
            )
            now = self._store.now()
            puts.append(entry.put(state="cancelled", updated_at=now, problem=None, task_id=run))
            records = [as_record(fact, now) for fact in (*facts, *start, cancelled)]
            with erased_as_not_found(ref.session_id):
                await self._commit(Write(entry.stream, records, head=head, wake=now), puts)
        except (HeadMoved, VersionMoved):
            return False
        return True

    async def _queued_start(self, entry: SessionEntry, head: int) -> events.User | None:
        """Return the start of the run by a follow-up that waited for the end of the last one.

        Raises VersionMoved if the session has changed since its entry was read.
        """
        record = entry.record
        if record.background is None:
            return None
        task_entry = await self._store.get(TASK, task_key(record.tenant, record.background))
        task = None if task_entry is None else decode_task(task_entry.data)
        if task is not None and task.is_active:
            await self._check_same(entry)  # else a repair has left a task that its child ended
            return None
        if task is not None and not task.is_queued:
            return None
        state = (await read_log(self._store, entry)).state  # also if its parent was erased
        if state.head != head:
            raise VersionMoved(f"session {record.id} has changed")
        return queued_message(state.queued[0], new_id("task")) if state.queued else None

    async def _check_same(self, entry: SessionEntry) -> None:
        """Raise VersionMoved if the entry of a session has changed since it was read."""
        current = await self._store.get("session", entry.index_entry.key)
        if current is None or current.version != entry.index_entry.version:
            raise VersionMoved(f"session {entry.record.id} has changed")

    async def fail(self, entry: SessionEntry, error: PerdureError) -> bool:
        """Fail a run without a driver; return False if it has one, or the session has changed."""
        at = await self._store.read(entry.stream, limit=0)
        if at.holder is not None:
            return False
        open_entries = [call async for call in open_calls(self._store, entry.stream)]
        facts, puts = self._cancel_calls(open_entries, CancelCall(via="worker"))
        run, now = entry.record.task_id or "", self._store.now()
        facts.append(
            events.AgentError(run=run, error=error.message, code=error.code, hint=error.hint)
        )
        puts.append(entry.put(state="failed", updated_at=now, problem=None))
        records = [as_record(fact, now) for fact in facts]
        try:
            await self._commit(Write(entry.stream, records, head=at.head, wake=now), puts)
        except (HeadMoved, VersionMoved, Gone):
            return False
        return True

    async def start_new_run(self, entry: SessionEntry) -> None:
        """Start a new run after a failed one, from the recorded log; of n callers, one wins.

        Raises NotFound, Corrupt.
        """
        await self._verifier.verify(entry.stream)
        now, task = self._store.now(), new_id("task")
        fact = events.AgentStart(run=task, agent=entry.record.agent)
        put = entry.put(state="pending", task_id=task, updated_at=now, problem=None)
        write = Write(entry.stream, [as_record(fact, now)], wake=now)
        with erased_as_not_found(entry.record.id), suppress(VersionMoved):  # another caller has
            await self._commit(write, [put])

    async def retry_now(self, entry: SessionEntry) -> None:
        """End the back-off of a model request: the driver retries it now."""
        now, record = self._store.now(), entry.record
        fact = events.AgentStart(run=record.task_id or "", agent=record.agent)
        with erased_as_not_found(record.id):
            await self._commit(Write(entry.stream, [as_record(fact, now)], wake=now))

    async def request_summary(
        self, entry: SessionEntry, request: events.CompactionRequested, head: int
    ) -> None:
        """Record a caller's request for a summary. Raises HeadMoved."""
        now = self._store.now()
        with erased_as_not_found(entry.record.id):
            await self._commit(Write(entry.stream, [as_record(request, now)], head=head, wake=now))

    async def wake(self, entry: SessionEntry) -> None:
        """Make the session due, so that a worker drives it."""
        with erased_as_not_found(entry.record.id):
            await self._store.commit([Write(entry.stream, wake=self._store.now())])

    async def set_metadata(self, ref: SessionRef, changes: Mapping[str, Any]) -> None:
        """Change metadata; None removes a key."""
        while not await self.put_metadata(await self.session_entry(ref), changes):
            pass

    async def put_metadata(self, entry: SessionEntry, changes: Mapping[str, Any]) -> bool:
        """Change metadata; return False if the session's entry has changed since it was read."""
        check_json("metadata", changes, "METADATA_INVALID")
        now = self._store.now()
        merged = {**entry.record.metadata, **changes}
        indexed = index.index_metadata(merged)
        write = Write(entry.stream, [as_record(events.Metadata(changes=dict(changes)), now)])
        try:
            with erased_as_not_found(entry.record.id):
                await self._commit(write, [entry.put(metadata=indexed, updated_at=now)])
        except VersionMoved:
            return False
        return True

    async def end_for_deletion(self, ref: SessionRef, by: str | None, via: str) -> str:
        """Cancel a run that is not over; return the state that it has then.

        The reason is recorded for its readers and receivers.
        """
        with suppress(Corrupt):  # a damaged session can be deleted too
            await self.cancel(ref, by, DELETED, via)
        return (await self.session_entry(ref)).record.state

    async def erase(self, ref: SessionRef, head: int | None = None) -> None:
        """Erase a session with its entries. Raises HeadMoved if it has grown beyond `head`."""
        entry = await self.session_entry(ref)
        with erased_as_not_found(ref.session_id):
            await self._commit(Write(entry.stream, erase=True, head=head))

    async def _commit(self, write: Write, puts: Sequence[Put] = ()) -> None:
        """Commit, drop the session from the cache, and notify the listeners here."""
        heads = await self._commits.commit([write], puts)
        self._cache.remove(write.stream)
        self._cache.notify(write.stream, heads[write.stream])


def _is_of_agent(ref: SessionRef, entry: SessionEntry) -> bool:
    return not ref.agents or entry.record.agent in ref.agents


def _check_agent(ref: SessionRef, entry: SessionEntry) -> SessionEntry:
    if not _is_of_agent(ref, entry):
        raise Conflict(
            f"session {ref.session_id!r} belongs to agent {entry.record.agent!r}, "
            f"not to {ref.agents[0]!r}",
            code="SESSION_OF_OTHER_AGENT",
            hint="use another session id, or that agent",
        )
    return entry


def _new_record(ref: SessionRef, message: NewMessage | None, now: int) -> SessionRecord:
    metadata = {k: v for k, v in (ref.metadata or {}).items() if v is not None}
    check_json("metadata", metadata, "METADATA_INVALID")
    return SessionRecord(
        id=ref.session_id,
        tenant=ref.tenant,
        agent=ref.agents[0],
        queue=ref.queue,
        task_id=None if message is None else new_id("task"),
        created_at=now,
        updated_at=now,
        metadata=metadata,
        title="" if message is None else message.title,
    )


def _user_event(message: NewMessage, task: str | None) -> events.User:
    return events.User(
        role="user",
        content=message.content,
        task_id=task,
        key=message.key,
        by=message.by,
        redact=message.redact,
        bounds=message.bounds,
    )


def _queued_event(message: NewMessage) -> events.FollowUpQueued:
    return events.FollowUpQueued(
        content=message.content,
        key=message.key,
        by=message.by,
        bounds=message.bounds,
    )


def message_title(content: events.Content) -> str:
    """Return the beginning of a message, for lists."""
    if not isinstance(content, str):
        names = ("text", "name", "mediaType")
        content = " ".join(next((part[n] for n in names if part.get(n)), "") for part in content)
    return " ".join(content.split())[:80]
