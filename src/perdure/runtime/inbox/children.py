"""Background agents, for callers without a lease: found, resumed, read, cancelled and cleared."""

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Final

import msgspec
from msgspec.structs import replace

from perdure.core.log import events
from perdure.core.session import child_tasks
from perdure.core.session import naming as index
from perdure.core.session.child_tasks import (
    CLEARED,
    DELETED,
    MAIL,
    TASK,
    UNKNOWN,
    ChildMail,
    ChildMove,
    ChildTask,
    task_not_found,
)
from perdure.core.session.children import BACKGROUND_AUTHOR, Reservation, mail_id
from perdure.core.session.follow_ups import NO_RULES, FollowUpRules, check_follow_up
from perdure.errors import Conflict, Corrupt, NotFound, Refused
from perdure.runtime.inbox.commits import ChildEntry, task_puts
from perdure.runtime.inbox.launches import Launch, Launches
from perdure.runtime.inbox.message_keys import entry_key
from perdure.runtime.inbox.sessions import NewMessage, SessionInbox
from perdure.runtime.records.cache import SessionCache
from perdure.runtime.records.entries import SessionEntry, SessionRef, all_readable
from perdure.runtime.records.log import as_record
from perdure.store.base import Check, Entry, Gone, NoStream, Put, Store, VersionMoved, Write
from perdure.tasks.model.record import BACKGROUND, ListState

CANCELLED_REASON: Final = "its parent ended it"
MOST_REFUSALS: Final = 20  # of commits about a task that has not moved meanwhile


class Refusals:
    """Counter of refused commits about a task: one that never moves has lost an entry beside it."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._number = 0

    def count(self, entry: Entry | None, error: Exception) -> None:
        """Count one more. Raises Corrupt instead of letting the caller try for ever."""
        version = None if entry is None else entry.version
        self._number = self._number + 1 if version == self._version else 1
        self._version = version
        if entry is not None and self._number >= MOST_REFUSALS:
            text = f"an entry of the background agent {entry.key} is missing"
            raise Corrupt(text, hint="run perdure doctor") from error


class ChildInbox:
    """Commits of callers to background agents and their parents."""

    def __init__(self, store: Store, sessions: SessionInbox, cache: SessionCache) -> None:
        self._store = store
        self._launches = Launches(store, sessions, cache)
        self._sessions = sessions
        self._cache = cache

    # --- finding ------------------------------------------------------------------------------

    async def find(self, tenant: str, task_id: str, parent: str | None = None) -> ChildEntry:
        """Return a task that is not cleared; `parent` limits it to the tasks of one session.

        Raises NotFound, whose `reason` says whether the task was cleared.
        """
        index.check_id(task_id, "task id")
        entry = await self._store.get(TASK, child_tasks.task_key(tenant, task_id))
        if entry is None:
            raise task_not_found(task_id, await self._missing_reason(tenant, task_id))
        child = ChildEntry.decode(entry)
        if parent is not None and child.task.parent != parent:
            raise task_not_found(task_id)
        if child.task.is_cleared:
            raise task_not_found(task_id, DELETED if child.task.is_deleted else CLEARED)
        return child

    async def _missing_reason(self, tenant: str, task_id: str) -> str:
        """Return why a task has no entry: its session was erased, or nothing is known of it."""
        with suppress(NoStream):
            try:
                await self._store.read(child_tasks.task_stream(tenant, task_id), limit=0)
            except Gone:
                return DELETED
        return UNKNOWN

    async def find_by_prefix(self, tenant: str, prefix: str, parent: str) -> ChildEntry:
        """Return a task of a session by its id or by an unambiguous beginning of it."""
        with suppress(NotFound):
            return await self.find(tenant, prefix, parent)
        matches = [
            item
            async for item in self.tasks_of(await self._parent_stream(tenant, parent))
            if prefix and item.task.id.startswith(prefix) and not item.task.is_cleared
        ]
        if len(matches) == 1:
            return matches[0]
        if not matches:
            return await self.find(tenant, prefix, parent)
        raise task_not_found(prefix, "ambiguous: " + ", ".join(sorted(m.task.id for m in matches)))

    async def _parent_stream(self, tenant: str, parent: str) -> str:
        return (await self._sessions.session_entry(SessionRef(tenant, parent))).stream

    def tasks_of(self, stream: str, status: str | None = None) -> AsyncIterator[ChildEntry]:
        """Find the tasks that a session launched: all, cleared ones included, or by status."""
        return all_readable(self._store, TASK, ChildEntry.decode, stream=stream, state=status)

    def tasks(self, status: str | None = None) -> AsyncIterator[ChildEntry]:
        """Find the tasks of all sessions, by status."""
        return all_readable(self._store, TASK, ChildEntry.decode, state=status)

    async def tenants(self) -> set[str]:
        """Return the tenants that have tasks in lists."""
        census = await self._store.census([BACKGROUND])
        return {ListState.parse(state).tenant for _, state in census.entries}

    # --- launching ----------------------------------------------------------------------------

    async def launch(
        self, tenant: str, parent: SessionEntry | None, request: Launch
    ) -> tuple[ChildTask, bool]:
        """Launch a background agent in one commit; return its task, and whether it is new.

        The same key again returns the task that exists. Raises Conflict, NotFound, Refused.
        """
        return await self._launches.launch(tenant, parent, request)

    # --- resuming -----------------------------------------------------------------------------

    async def resume(
        self, child: ChildEntry, message: NewMessage, rules: FollowUpRules = NO_RULES
    ) -> ChildTask:
        """Send a follow-up to a completed task: of any number of callers, exactly one wins.

        `rules` may allow more: a task that has failed, or one message that is queued. The same
        message under its key again changes nothing. Raises Conflict, NotFound.
        """
        task = child.task
        ref = SessionRef(task.tenant, task.session_id)
        session = await self._store.get("session", ref.key)
        if not await self._was_sent(session, message.key):
            check_follow_up(task, rules)
        if session is None:
            raise session_expired()
        try:
            receipt = await self._sessions.send(ref, replace(message, follow_up=rules))
        except (NotFound, Refused) as error:
            raise session_expired() if error.code in _GONE else error from error
        if receipt.task is not None:  # not as it is now: another caller may have resumed it since
            return receipt.task
        entry = await self._store.get(TASK, task.key)
        return task if entry is None else ChildEntry.decode(entry).task

    async def _was_sent(self, session: Entry | None, key: str | None) -> bool:
        if session is None or key is None:
            return False
        return await self._store.get("key", entry_key(session.stream, key)) is not None

    # --- mail ---------------------------------------------------------------------------------

    async def mail_entry(self, tenant: str, mail: str) -> Entry | None:
        """Return the entry of an outcome, delivered or not; an imported session has none."""
        return await self._store.get(MAIL, child_tasks.mail_key(tenant, mail))

    async def mail(self, tenant: str, mail: str) -> tuple[Entry, ChildMail] | None:
        """Return an outcome that was not delivered yet, with its entry; None without one."""
        entry = await self.mail_entry(tenant, mail)
        if entry is None or entry.state != "open":
            return None
        return entry, child_tasks.decode_mail(entry.data)

    async def take(self, tenant: str, mail: str, by: str | None) -> bool:
        """Take an outcome for a caller outside the parent; return False if it was delivered."""
        undelivered = await self.mail(tenant, mail)
        if undelivered is None:
            return False
        entry, now = undelivered[0], self._store.now()
        fact = events.MailTaken(mail=(mail,), by=by)
        # A parent that waits for the end of the reservation has nothing to wait for any more.
        write = Write(entry.stream, [as_record(fact, now)], wake=now)
        try:
            heads = await self._store.commit([write], [taken_put(entry)])
        except (VersionMoved, Gone, NoStream):
            return False
        self._notify(heads)
        return True

    async def reserve(self, task: ChildTask, item: Reservation) -> ChildTask | None:
        """Reserve the outcome of a run that has not ended, or of the one that is queued after it.

        Returns None if it has ended, or another caller waits for the outcome.
        """
        refusals = Refusals()
        while True:
            entry = await self._store.get(TASK, task.key)
            current = None if entry is None else ChildEntry.decode(entry).task
            if entry is None or current is None or not current.may_move or current.reservation:
                return None
            after = child_tasks.reserved(current, item)
            try:
                await self._store.commit(
                    [Write(entry.stream)], task_puts(after, entry, entry.stream)
                )
            except VersionMoved as error:
                refusals.count(entry, error)
                continue
            return after

    async def end_reservation(self, task: ChildTask) -> None:
        """Let the parent have the answer to the last message: its caller does not wait any more."""
        number, refusals = task.answer_number, Refusals()
        while True:
            entry = await self._store.get(TASK, task.key)
            if entry is None or task.parent is None:
                return
            after = child_tasks.unreserved(ChildEntry.decode(entry).task, number)
            try:
                if after is None:  # the run has ended
                    await self._release_mail(task.tenant, mail_id(task.id, number))
                else:
                    puts = task_puts(after, entry, entry.stream)
                    await self._store.commit([Write(entry.stream)], puts)
            except VersionMoved as error:
                refusals.count(entry, error)
                continue
            except (Gone, NoStream):
                return
            return

    async def _release_mail(self, tenant: str, mail: str) -> None:
        """End the reservation of an outcome that exists, and wake the parent."""
        undelivered = await self.mail(tenant, mail)
        if undelivered is None:
            return
        entry, now = undelivered[0], self._store.now()
        fact = as_record(events.ReservationEnded(mail=(mail,)), now)
        check = Check(entry.kind, entry.key, entry.version, entry.stream)
        self._notify(await self._store.commit([Write(entry.stream, [fact], wake=now)], [], [check]))

    # --- ending -------------------------------------------------------------------------------

    async def cancel(
        self, child: ChildEntry, by: str | None, reason: str | None, via: str = "python"
    ) -> ChildTask:
        """Cancel the run of a task, or the one that a queued message would start.

        Raises Conflict if it has ended.
        """
        task = child.task
        if not task.may_move:
            raise Conflict(
                f'Cannot cancel task: current status is "{task.status}". '
                "Only running tasks can be cancelled.",
                code="NOT_RUNNING",
                hint=f"perdure tasks show {task.id}",
                details={"task_id": task.id, "status": task.status},
            )
        await self.end_child(task, child.entry.stream, by, reason, via)
        return (await self.find(task.tenant, task.id)).task

    async def end_child(
        self, task: ChildTask, stream: str, by: str | None, reason: str | None, via: str = "python"
    ) -> None:
        """Cancel the run of a task of the session with that stream, if there is one."""
        ref = SessionRef(task.tenant, task.session_id)
        try:
            await self._sessions.cancel(ref, by, reason, via)
            is_lost = await self._is_overdue(task)
        except NotFound:
            is_lost = True
        if is_lost:
            await self._end_lost(task, stream)

    async def _is_overdue(self, task: ChildTask) -> bool:
        """Return whether a task has no end, although its session is over.

        Both are written in one commit. A parent whose log was repaired may have lost the end.
        """
        before = await self._store.get(TASK, task.key)
        if before is None or not ChildEntry.decode(before).task.may_move:
            return False
        session = await self._sessions.session_entry(SessionRef(task.tenant, task.session_id))
        after = await self._store.get(TASK, task.key)
        is_same = after is not None and after.version == before.version
        return session.record.is_over and is_same

    async def _end_lost(self, task: ChildTask, stream: str) -> None:
        """Record the end of a task whose session is gone or over, and cannot record it itself."""
        fact = events.DelegationComplete(
            task_id=task.id, status="cancelled", number=task.number, quiet=True
        )
        refusals = Refusals()
        while True:
            now, entry = self._store.now(), await self._store.get(TASK, task.key)
            puts: list[Put] = []
            if entry is not None:
                stream = entry.stream  # a repair may have replaced the one that the caller read
                before = ChildEntry.decode(entry).task
                after = before.moved(ChildMove.CANCEL, updated_at=now)
                if not before.is_active:  # the session is gone, and its queued message with it
                    after = replace(before, is_queued=False, queued_reserved=None)
                    fact = replace(fact, status=before.status)
                puts = task_puts(after, entry, stream)
            write = Write(stream, [as_record(fact, now)])
            try:
                self._notify(await self._store.commit([write], puts))
            except VersionMoved as error:
                refusals.count(entry, error)
                continue
            except (Gone, NoStream):
                if entry is not None:
                    continue  # its parent was erased, and the entry with it, or repaired
                return
            return

    async def clear(self, stream: str, by: str | None = None) -> list[ChildTask]:
        """Cancel the active tasks of a session and remove all of them from its list."""
        cleared: list[ChildTask] = []
        async for item in self.tasks_of(stream):
            if item.task.is_cleared:
                continue
            if (task := await self.clear_task(item.task, by)) is not None:
                cleared.append(task)
        return cleared

    async def purge(self, task: ChildTask, by: str | None = None) -> None:
        """Remove a task whose session was erased; its id still says that it was deleted."""
        await self.clear_task(task, by, is_deleted=True)

    async def clear_task(
        self, task: ChildTask, by: str | None, *, is_deleted: bool = False
    ) -> ChildTask | None:
        """Cancel a task and remove it from lists; return None if it was removed before."""
        refusals = Refusals()
        while True:
            entry = await self._store.get(TASK, task.key)
            if entry is None or (entry.state == CLEARED and not is_deleted):
                return None
            current, stream = ChildEntry.decode(entry).task, entry.stream
            if current.is_active:
                await self.end_child(current, stream, BACKGROUND_AUTHOR, CANCELLED_REASON)
                continue
            changes = {"is_queued": False, "queued_reserved": None}
            after = replace(current, is_cleared=True, is_deleted=is_deleted, **changes)
            puts = [*task_puts(after, entry, stream), *await self._open_mail(after)]
            fact = events.DelegationCleared(task_ids=(task.id,), by=by)
            records = [] if after.parent is None else [as_record(fact, self._store.now())]
            writes = [Write(stream, records)]
            if current.is_queued and not is_deleted:
                writes = await self._with_dropped(writes[0], current, by)
            try:
                self._notify(await self._store.commit(writes, puts))
            except (VersionMoved, Gone, NoStream) as error:
                refusals.count(entry, error)
                continue  # an erased parent has no entries, and an erased child no message
            return after

    async def _with_dropped(self, write: Write, task: ChildTask, by: str | None) -> list[Write]:
        """Return the writes of a clear that also drops a queued message, if its session exists."""
        # Not the stream of the task, which a repair of its session has replaced.
        key = SessionRef(task.tenant, task.session_id).key
        session = await self._store.get("session", key)
        if session is None:
            return [write]
        record = as_record(events.FollowUpDropped(by=by), self._store.now())
        if write.stream == session.stream:
            return [Write(write.stream, [*write.records, record])]
        return [write, Write(session.stream, [record])]

    async def _open_mail(self, task: ChildTask) -> list[Put]:
        """Return the puts that take all mail of a task."""
        ids = [mail_id(task.id, number) for number in range(1, task.number + 1)]
        items = [await self.mail(task.tenant, mail) for mail in ids]
        return [taken_put(item[0]) for item in items if item is not None]

    def _notify(self, heads: Mapping[str, int]) -> None:
        for stream, head in heads.items():
            self._cache.notify(stream, head)


_GONE: Final = frozenset({"SESSION_NOT_FOUND", "AGENT_NEEDED"})


def taken_put(entry: Entry) -> Put:
    """Return the put that marks mail as delivered; its content is in a log then."""
    data = child_tasks.encode(
        replace(child_tasks.decode_mail(entry.data), output=msgspec.UNSET, error=None)
    )
    return Put(MAIL, entry.key, entry.version, entry.stream, "taken", None, data)


def session_expired() -> NotFound:
    """Return the error of a follow-up to a task whose session was deleted."""
    return NotFound(
        "Session expired or was deleted. Start a new background_task to continue.",
        code="SESSION_EXPIRED",
        hint="start a new background_task",
    )
