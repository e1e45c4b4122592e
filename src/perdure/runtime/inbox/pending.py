"""Giving a pending call its outcome, from outside: of any number of callers exactly one wins.

Each is one conditional commit that also wakes the session; none reads its log.
"""

import logging
from collections.abc import Awaitable, Callable

from perdure.core.log import events
from perdure.core.pending import record as pending
from perdure.core.pending import settlement as decide
from perdure.core.pending.commands import Command, Expire
from perdure.core.pending.record import PendingRecord, PendingStatus, Verb, moved
from perdure.core.pending.settlement import Settlement
from perdure.core.session import naming as index
from perdure.errors import Conflict, Corrupt, NotFound
from perdure.runtime.records.cache import SessionCache
from perdure.runtime.records.entries import (
    PendingEntry,
    SessionEntry,
    pending_not_found,
    pending_put,
)
from perdure.runtime.records.log import as_record
from perdure.runtime.webhooks.outbox import Outbox
from perdure.store.base import Gone, NoStream, Put, Store, VersionMoved, Write

logger = logging.getLogger("perdure")

Inspect = Callable[[PendingRecord], Awaitable[None]]


class PendingInbox:
    """The door for decisions, results, expiries and news of calls that wait."""

    def __init__(
        self, store: Store, outbox: Outbox | None = None, near: SessionCache | None = None
    ) -> None:
        self._store = store
        self._outbox = outbox or Outbox(store)
        self._near = near or SessionCache()

    async def pending(self, pending_id: str, tenant: str | None = None) -> PendingRecord:
        """One pending call. Raises NotFound."""
        return (await self._waiting(pending_id, tenant)).record

    async def _waiting(self, pending_id: str, tenant: str | None) -> PendingEntry:
        index.check_id(pending_id, "pending id")
        entry = await self._store.get("pending", pending_id)
        found = None if entry is None else PendingEntry.of(entry)
        if found is None or (tenant is not None and found.record.tenant != tenant):
            raise pending_not_found(pending_id)
        return found

    def _remembered(self, pending_id: str, tenant: str | None) -> PendingEntry | None:
        """The call as it was last written here: a guess, good for one conditional commit."""
        found = self._near.waiting(pending_id)
        return None if found is None or tenant not in (None, found.record.tenant) else found

    async def settle(
        self,
        pending_id: str,
        command: Command,
        *,
        tenant: str | None = None,
        inspect: Inspect | None = None,
    ) -> Settlement:
        """Give a pending call its outcome: of any number of callers exactly one wins.

        `inspect` sees the open record first and raises to refuse, which consumes nothing.
        Raises NotFound, or Conflict with the winner.
        """
        guess = self._remembered(pending_id, tenant)
        while True:
            found, guess = guess or await self._waiting(pending_id, tenant), None
            record, now = found.record, self._store.now()
            outcome = decide.settle(record, command, now)
            if outcome.duplicate:
                return outcome
            if inspect is not None and not outcome.record.is_open and not outcome.expired:
                await inspect(record)
            if not await self._settled(found, outcome, now):
                continue
            if outcome.expired:
                raise decide.already_settled(outcome.record)
            if not outcome.record.is_open or isinstance(command, Expire):
                return outcome
            # it was overdue and is kept open: now the command itself, as a late one

    async def _settled(self, found: PendingEntry, outcome: Settlement, now: int) -> bool:
        facts, stream = list(outcome.facts), found.stream
        settled = found.changed(outcome.record)
        others: list[Put] = []
        if any(isinstance(fact, events.Cancelled) for fact in facts):
            others += await self._run_cancelled(outcome.record, stream, now)
        if outcome.record.twin and any(isinstance(fact, events.ToolResult) for fact in facts):
            closed, twin = await self._twin_closed(outcome.record.twin, now)
            facts, others = facts + closed, others + twin
        records = [as_record(fact, now) for fact in facts]
        write = Write(stream, records, wake=now if records else None)
        try:
            puts = [settled.as_put, *others]
            heads = await self._store.commit(*self._outbox.also([write], puts))
        except VersionMoved:
            return False
        except (NoStream, Gone) as error:
            raise pending_not_found(found.record.id) from error
        if others:
            self._near.forget(stream)
        waits = {found.record.id: settled if outcome.record.is_open else None}
        self._near.wrote(write, facts, heads, waits=waits)
        return True

    async def _twin_closed(self, twin: str, now: int) -> tuple[list[events.Event], list[Put]]:
        """The other id of a call that waits under two, closed in the same commit."""
        entry = await self._store.get("pending", twin)
        if entry is None or entry.state != "open":
            return [], []
        closed = decide.close_twin(pending.decode(entry.data), now)
        return list(closed.facts), [pending_put(closed.record, entry.version, entry.stream)]

    async def _run_cancelled(self, record: PendingRecord, stream: str, now: int) -> list[Put]:
        """The session's entry, where an expiry ends the run that it stands for."""
        key = index.session_key(record.tenant, record.session_id)
        entry = await self._store.get("session", key)
        if entry is None or entry.stream != stream:
            return []
        found = SessionEntry.of(entry)
        if found.record.is_over:
            return []
        if found.record.task_id != record.task_id:
            return []
        return [found.put(state="cancelled", updated_at=now, problem=None)]

    async def update(
        self,
        pending_id: str,
        change: Callable[[PendingRecord], PendingRecord],
        fact: Callable[[PendingRecord], events.Event] | None = None,
    ) -> None:
        """News of an open call; without a fact it never disturbs the driver."""
        while True:
            found = await self._waiting(pending_id, None)
            record, stream, now = found.record, found.stream, self._store.now()
            if not record.is_open:
                return
            facts = [] if fact is None else [fact(record)]
            changed = found.changed(change(record))
            write = Write(stream, [as_record(one, now) for one in facts])
            try:
                heads = await self._store.commit([write], [changed.as_put])
            except VersionMoved:
                continue
            self._near.wrote(write, facts, heads, waits={pending_id: changed})
            return

    async def mark_started(self, pending_id: str) -> None:
        """The work outside has begun; again changes nothing."""
        if (await self.pending(pending_id)).status is PendingStatus.PROCESSING:
            return
        now = self._store.now()

        def begin(record: PendingRecord) -> PendingRecord:
            return moved(record, Verb.START, now)

        def fact(record: PendingRecord) -> events.Event:
            return events.Progress(
                pending_id=record.id,
                call_id=record.call_id,
                started=True,
                task_id=record.task_id,
            )

        await self.update(pending_id, begin, fact)

    async def expire_due(self) -> list[PendingRecord]:
        """Settle what is overdue; one bad call never stops the others."""
        now, after = self._store.now(), None
        expired: list[PendingRecord] = []
        while True:
            page = await self._store.find("pending", due_before=now, after=after, limit=500)
            expired += [gone for entry in page.entries if (gone := await self._expired(entry.key))]
            if page.next is None:
                return expired
            after = page.next

    async def _expired(self, pending_id: str) -> PendingRecord | None:
        try:
            outcome = await self.settle(pending_id, Expire())
        except (NotFound, Conflict):
            return None  # settled or deleted meanwhile
        except Corrupt as error:
            logger.warning("%s cannot expire: %s", pending_id, error.message)
            return None
        return None if outcome.duplicate or outcome.record.is_open else outcome.record
