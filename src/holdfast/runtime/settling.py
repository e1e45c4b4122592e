"""Giving a pending call its outcome, from outside: of any number of callers exactly one wins.

Each is one conditional commit that also wakes the session; none reads its log.
"""

import logging
from collections.abc import Awaitable, Callable

from holdfast.core import decide, events, index, pending
from holdfast.core.commands import Command, Expire
from holdfast.core.decide import Settlement
from holdfast.core.pending import PendingRecord, PendingStatus, Verb, moved
from holdfast.errors import Conflict, Corrupt, NotFound
from holdfast.runtime.entries import Known, pending_not_found, pending_put
from holdfast.runtime.log import as_record
from holdfast.runtime.outbox import Outbox
from holdfast.store.base import (
    Entry,
    Gone,
    NoStream,
    Put,
    Store,
    VersionMoved,
    Write,
)

logger = logging.getLogger("holdfast")

Inspect = Callable[[PendingRecord], Awaitable[None]]


class Settling:
    """The door for decisions, results, expiries and news of calls that wait."""

    def __init__(self, store: Store, outbox: Outbox | None = None) -> None:
        self._store = store
        self._outbox = outbox or Outbox(store)

    async def pending(self, pending_id: str, tenant: str | None = None) -> PendingRecord:
        """One pending call. Raises NotFound."""
        return pending.decode((await self._pending_entry(pending_id, tenant)).data)

    async def _pending_entry(self, pending_id: str, tenant: str | None) -> Entry:
        index.check_id(pending_id, "pending id")
        entry = await self._store.get("pending", pending_id)
        if entry is None or (tenant is not None and pending.decode(entry.data).tenant != tenant):
            raise pending_not_found(pending_id)
        return entry

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
        while True:
            entry = await self._pending_entry(pending_id, tenant)
            record, now = pending.decode(entry.data), self._store.now()
            outcome = decide.settle(record, command, now)
            if outcome.duplicate:
                return outcome
            if inspect is not None and not outcome.record.is_open and not outcome.expired:
                await inspect(record)
            if not await self._settled(entry, outcome, now):
                continue
            if outcome.expired:
                raise decide.already_settled(outcome.record)
            if not outcome.record.is_open or isinstance(command, Expire):
                return outcome
            # it was overdue and is kept open: now the command itself, as a late one

    async def _settled(self, entry: Entry, outcome: Settlement, now: int) -> bool:
        facts = list(outcome.facts)
        puts = [pending_put(outcome.record, entry.version, entry.stream)]
        if any(isinstance(fact, events.Cancelled) for fact in facts):
            puts += await self._run_cancelled(outcome.record, entry.stream, now)
        if any(isinstance(fact, events.ToolResult) for fact in facts):
            closed, twin = await self._twin_closed(outcome.record, now)
            facts, puts = facts + closed, puts + twin
        records = [as_record(fact, now) for fact in facts]
        wake = now if records else None
        try:
            write = Write(entry.stream, records, wake=wake)
            await self._store.commit(*self._outbox.also([write], puts))
        except VersionMoved:
            return False
        except (NoStream, Gone) as error:
            raise pending_not_found(entry.key) from error
        return True

    async def _twin_closed(
        self, record: PendingRecord, now: int
    ) -> tuple[list[events.Event], list[Put]]:
        """The other id of a call that waits under two, closed in the same commit."""
        entry = None if record.twin is None else await self._store.get("pending", record.twin)
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
        found = Known.of(entry)
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
            entry = await self._pending_entry(pending_id, None)
            record, now = pending.decode(entry.data), self._store.now()
            if not record.is_open:
                return
            records = [] if fact is None else [as_record(fact(record), now)]
            try:
                await self._store.commit(
                    [Write(entry.stream, records)],
                    [pending_put(change(record), entry.version, entry.stream)],
                )
            except VersionMoved:
                continue
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
