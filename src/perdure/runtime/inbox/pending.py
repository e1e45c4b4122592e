"""Commits that settle or update a pending call, by callers without a lease.

Each is one conditional commit that also wakes the session, after a check that its log can be read.
Of any number of callers that settle one call, exactly one wins.
"""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from perdure.core.log import events
from perdure.core.pending import record as pending
from perdure.core.pending import settlement as decide
from perdure.core.pending.commands import Command, Expire, SubmitResult
from perdure.core.pending.record import PendingRecord, Verb, moved
from perdure.core.pending.settlement import Settlement
from perdure.core.session import naming as index
from perdure.errors import Conflict, Corrupt, NotFound, PerdureError
from perdure.runtime.inbox.budgets import RaisedBudgets, raise_budgets
from perdure.runtime.inbox.commits import Commits
from perdure.runtime.records.cache import SessionCache
from perdure.runtime.records.entries import (
    PendingEntry,
    SessionEntry,
    all_entries,
    pending_not_found,
    pending_put,
)
from perdure.runtime.records.log import as_record
from perdure.runtime.records.verification import LogVerifier
from perdure.store.base import (
    DELETE,
    Entry,
    ForeignWrite,
    Gone,
    NoStream,
    Put,
    Store,
    VersionMoved,
    Write,
)

logger = logging.getLogger("perdure")

STARTED: Final = "started"  # kind of the entries of calls whose external work was started
Inspect = Callable[[PendingRecord], Awaitable[bool]]  # False: the tool is not known here
InspectCommand = Callable[[PendingRecord, Command], Awaitable[bool]]


class PendingInbox:
    """Commits of decisions, results, expiries and progress of pending calls."""

    def __init__(
        self, store: Store, commits: Commits, cache: SessionCache, verifier: LogVerifier
    ) -> None:
        self._store = store
        self._commits = commits
        self._cache = cache
        self._verifier = verifier

    async def pending_record(self, pending_id: str, tenant: str | None = None) -> PendingRecord:
        """Return the record of a pending call. Raises NotFound."""
        return (await self._read_entry(pending_id, tenant)).record

    async def _read_entry(self, pending_id: str, tenant: str | None) -> PendingEntry:
        index.check_id(pending_id, "pending id")
        entry = await self._store.get("pending", pending_id)
        pending_entry = None if entry is None else PendingEntry.decode(entry)
        if pending_entry is None or tenant not in (None, pending_entry.record.tenant):
            raise pending_not_found(pending_id)
        return pending_entry

    def _cached_entry(self, pending_id: str, tenant: str | None) -> PendingEntry | None:
        """Return the call as it was last written here: a guess for one conditional commit."""
        entry = self._cache.pending_entry(pending_id)
        return None if entry is None or tenant not in (None, entry.record.tenant) else entry

    async def settle(
        self,
        pending_id: str,
        command: Command,
        *,
        tenant: str | None = None,
        inspect: Inspect | None = None,
    ) -> Settlement:
        """Settle a pending call: of any number of callers, exactly one wins.

        `inspect` gets the open record first, and raises to refuse without settling the call.
        Raises NotFound, Corrupt if the session cannot be read, or Conflict with the winner.
        """
        guess = self._cached_entry(pending_id, tenant)
        while True:
            entry, guess = guess or await self._read_entry(pending_id, tenant), None
            record, now = entry.record, self._store.now()
            outcome = decide.settle(record, command, now)
            if outcome.duplicate:
                return outcome
            relied: int | None = None
            if not isinstance(command, Expire):
                relied = await self._verifier.rely_or_verify(entry.stream)
            is_accepted = outcome.voted or not outcome.record.is_open
            if inspect is not None and is_accepted and not outcome.expired:
                outcome = _inspected(outcome, command, is_checked=await inspect(record))
            if not await self._commit_settlement(entry, outcome, now, relied):
                continue
            if outcome.expired:
                raise decide.already_settled(outcome.record)
            if is_accepted or isinstance(command, Expire):
                return outcome
            # It was overdue and stays open for a grace period: settle it by the late command.

    async def settle_all(
        self,
        commands: Mapping[str, Command],
        *,
        tenant: str | None = None,
        inspect: InspectCommand | None = None,
    ) -> list[Settlement]:
        """Settle several calls in one commit: all of them, or none.

        Raises as `settle` does for the first that cannot be settled, with its id in `details`.
        """
        while True:
            batch: list[tuple[PendingEntry, Settlement]] = []
            now = self._store.now()
            for pending_id, command in commands.items():
                try:
                    batch.append(await self._decide(pending_id, command, tenant, inspect))
                except PerdureError as error:
                    error.details.setdefault("pendingID", pending_id)
                    raise
            if await self._commit_all(batch, now):
                return [outcome for _, outcome in batch]

    async def _decide(
        self, pending_id: str, command: Command, tenant: str | None, inspect: InspectCommand | None
    ) -> tuple[PendingEntry, Settlement]:
        """Return the settlement of one call of several, which is not committed yet."""
        while True:
            entry = await self._read_entry(pending_id, tenant)
            now = self._store.now()
            outcome = decide.settle(entry.record, command, now)
            if outcome.duplicate:
                return entry, outcome
            await self._verifier.verify(entry.stream)
            if outcome.voted or (not outcome.record.is_open and not outcome.expired):
                if inspect is not None:
                    is_checked = await inspect(entry.record, command)
                    outcome = _inspected(outcome, command, is_checked=is_checked)
                return entry, outcome
            # It is overdue: that is recorded by itself, whatever becomes of the others.
            if await self._commit_settlement(entry, outcome, now) and outcome.expired:
                raise decide.already_settled(outcome.record)

    async def _commit_all(self, batch: Sequence[tuple[PendingEntry, Settlement]], now: int) -> bool:
        batch = [(entry, outcome) for entry, outcome in batch if not outcome.duplicate]
        facts: dict[str, list[events.Event]] = {}
        puts: list[Put] = []
        for entry, outcome in batch:
            more, twin_puts = await self._with_twin(outcome, now)
            facts[entry.stream] = [*facts.get(entry.stream, ()), *more]
            puts += [entry.with_record(outcome.record).as_put, *twin_puts]
            if not outcome.record.is_open:
                puts += await self._ended_puts(entry.record)
        answered = [(outcome.record, entry.stream) for entry, outcome in batch]
        raised = await raise_budgets(self._store, answered, now)
        puts += raised.puts
        woken = {entry.stream for entry, outcome in batch if not outcome.voted} | raised.woken
        facts = raised.merged(facts)
        writes = [
            Write(stream, [as_record(f, now) for f in added], wake=now if stream in woken else None)
            for stream, added in facts.items()
        ]
        if not writes:
            return True
        try:
            heads = await self._commits.commit(writes, puts)
        except VersionMoved:
            return False
        except (NoStream, Gone) as error:
            name = next((e.record.id for e, _ in batch if e.stream == error.stream), None)
            if name is None:
                return False  # another session that its budget bounds was erased
            raise pending_not_found(name) from error
        for stream, added in facts.items():
            self._verifier.extend(stream, len(added), heads[stream])
            self._cache.remove(stream)
            self._cache.notify(stream, heads[stream])
        return True

    async def _commit_settlement(
        self, entry: PendingEntry, outcome: Settlement, now: int, relied: int | None = None
    ) -> bool:
        facts, stream = list(outcome.facts), entry.stream
        settled = entry.with_record(outcome.record)
        others: list[Put] = []
        if not _is_plain(entry, outcome):
            facts, others = await self._with_others(entry, outcome, now)
        raised = RaisedBudgets()
        if outcome.record.budget is not None:
            raised = await raise_budgets(self._store, [(outcome.record, stream)], now)
            facts += raised.facts.pop(stream, [])
            others += raised.puts
        records = [as_record(fact, now) for fact in facts]
        # One approval of several changes nothing for the driver.
        woken = records and not outcome.voted
        write = Write(stream, records, wake=now if woken else None, foreign_writes=relied)
        puts, began = [settled.as_put, *others], time.monotonic()
        try:
            heads = await self._commits.commit([write, *_raised_writes(raised, now)], puts)
        except (VersionMoved, ForeignWrite) as error:
            self._verifier.note_refusal(error)
            return False
        except (NoStream, Gone) as error:
            if error.stream != stream:
                return False  # another session that its budget bounds was erased
            raise pending_not_found(entry.record.id) from error
        self._verifier.extend(stream, len(records), heads[stream], time.monotonic() - began)
        for other, more in raised.facts.items():
            self._verifier.extend(other, len(more), heads[other])
            self._cache.remove(other)
            self._cache.notify(other, heads[other])
        if others:
            self._cache.remove(stream)
        pending = {entry.record.id: settled if outcome.record.is_open else None}
        self._cache.apply_commit(write, facts, heads, pending=pending)
        return True

    async def _with_others(
        self, entry: PendingEntry, outcome: Settlement, now: int
    ) -> tuple[list[events.Event], list[Put]]:
        """Return the facts of a settlement, and the puts of other entries that it changes."""
        others: list[Put] = []
        if any(isinstance(fact, events.Cancelled) for fact in outcome.facts):
            others += await self._cancelled_run_puts(outcome.record, entry.stream, now)
        facts, twin_puts = await self._with_twin(outcome, now)
        others += twin_puts
        if not outcome.record.is_open:
            others += await self._ended_puts(entry.record)
        return facts, others

    async def _with_twin(
        self, outcome: Settlement, now: int
    ) -> tuple[list[events.Event], list[Put]]:
        """Return the facts of a settlement, with those that close its twin, and the twin's put."""
        facts = list(outcome.facts)
        if outcome.record.twin and any(isinstance(fact, events.ToolResult) for fact in facts):
            closed, puts = await self._close_twin(outcome.record.twin, now)
            return facts + closed, puts
        return facts, []

    async def _close_twin(self, twin: str, now: int) -> tuple[list[events.Event], list[Put]]:
        """Return the facts and puts that close the other pending id of the same call."""
        entry = await self._store.get("pending", twin)
        if entry is None or entry.state != "open":
            return [], []
        closed = decide.close_twin(pending.decode(entry.data), now)
        return list(closed.facts), [pending_put(closed.record, entry.version, entry.stream)]

    async def _cancelled_run_puts(self, record: PendingRecord, stream: str, now: int) -> list[Put]:
        """Return the put of the session's entry, if an expiry ends its present run."""
        key = index.session_key(record.tenant, record.session_id)
        entry = await self._store.get("session", key)
        if entry is None or entry.stream != stream:
            return []
        session_entry = SessionEntry.decode(entry)
        if session_entry.record.is_over or session_entry.record.task_id != record.task_id:
            return []
        return [session_entry.put(state="cancelled", updated_at=now, problem=None)]

    async def update(
        self,
        pending_id: str,
        change: Callable[[PendingRecord], PendingRecord],
        fact: Callable[[PendingRecord], events.Event] | None = None,
    ) -> None:
        """Change the record of an open call; without a fact, its driver is not woken.

        A change that returns the record itself is none, and nothing is written.
        """
        while True:
            entry = await self._read_entry(pending_id, None)
            record, stream, now = entry.record, entry.stream, self._store.now()
            if not record.is_open:
                return
            after = change(record)
            if after is record:
                return
            facts = [] if fact is None else [fact(record)]
            changed = entry.with_record(after)
            write = Write(stream, [as_record(event, now) for event in facts])
            puts = [changed.as_put]
            if after.status == "processing" and record.status != "processing":
                puts.append(await self._started_put(pending_id, stream))
            try:
                heads = await self._store.commit([write], puts)
            except VersionMoved:
                continue
            self._cache.apply_commit(write, facts, heads, pending={pending_id: changed})
            return

    async def _started_put(self, pending_id: str, stream: str) -> Put:
        """Return the put of the entry by which a later start finds a call that was started."""
        entry = await self._store.get(STARTED, pending_id)
        return Put(STARTED, pending_id, entry.version if entry else 0, stream, "open", None, b"")

    async def _ended_puts(self, record: PendingRecord) -> list[Put]:
        """Return the put that removes the entry of a started call which is settled now."""
        if record.status != "processing":
            return []
        entry = await self._store.get(STARTED, record.id)
        return [] if entry is None else [_removed(entry)]

    async def started_calls(self) -> AsyncIterator[PendingRecord]:
        """Yield the open calls that were marked as started, without a look at the others."""
        async for entry in all_entries(self._store, STARTED):
            with suppress(Corrupt):
                stored = await self._store.get("pending", entry.key)
                record = None if stored is None else PendingEntry.decode(stored).record
                if record is not None and record.is_open:
                    yield record
                    continue
                with suppress(VersionMoved, NoStream, Gone):  # settled by a driver
                    await self._store.commit([Write(entry.stream)], [_removed(entry)])

    async def mark_started(self, pending_id: str) -> None:
        """Mark the external work of a call as started; again has no effect."""
        if (await self.pending_record(pending_id)).status == "processing":
            return
        now = self._store.now()

        def start(record: PendingRecord) -> PendingRecord:
            return moved(record, Verb.START, now)

        def fact(record: PendingRecord) -> events.Event:
            return events.Progress(
                pending_id=record.id,
                call_id=record.call_id,
                started=True,
                task_id=record.task_id,
            )

        await self.update(pending_id, start, fact)

    async def reset_stale(self, pending_id: str) -> bool:
        """Return a `processing` call to `waiting`, unless a driver has its session now."""
        entry = await self._read_entry(pending_id, None)
        if (await self._store.read(entry.stream, limit=0)).holder is not None:
            return False
        now = self._store.now()

        def reset(record: PendingRecord) -> PendingRecord:
            return moved(record, Verb.RESET, now)

        await self.update(pending_id, reset)
        return True

    async def expire_due(self) -> list[PendingRecord]:
        """Settle the overdue calls; a corrupt one does not stop the others."""
        overdue = all_entries(self._store, "pending", due_before=self._store.now())
        return [record async for entry in overdue if (record := await self._expire(entry.key))]

    async def _expire(self, pending_id: str) -> PendingRecord | None:
        try:
            outcome = await self.settle(pending_id, Expire())
        except (NotFound, Conflict):
            return None  # settled or erased in the meantime
        except Corrupt as error:
            logger.warning("%s cannot expire: %s", pending_id, error.message)
            return None
        return None if outcome.duplicate or outcome.record.is_open else outcome.record


def _inspected(outcome: Settlement, command: Command, *, is_checked: bool) -> Settlement:
    """Return the settlement; a result that could not be validated here is marked so."""
    is_unchecked = isinstance(command, SubmitResult) and not is_checked
    return decide.as_unchecked(outcome) if is_unchecked else outcome


def _is_plain(entry: PendingEntry, outcome: Settlement) -> bool:
    """Return whether a settlement changes no entry but its own."""
    return (
        not outcome.record.twin
        and entry.record.status != "processing"
        and events.Cancelled not in map(type, outcome.facts)
    )


def _raised_writes(raised: RaisedBudgets, now: int) -> list[Write]:
    """Return the writes that wake the other sessions whose questions were answered."""
    return [
        Write(stream, [as_record(fact, now) for fact in facts], wake=now if facts else None)
        for stream, facts in raised.facts.items()
    ]


def _removed(entry: Entry) -> Put:
    return Put(entry.kind, entry.key, entry.version, entry.stream, entry.state, None, DELETE)
