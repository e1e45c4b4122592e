"""Commits that settle or update a pending call, by callers without a lease.

Each is one conditional commit that also wakes the session, after a check that its log can be read.
Of any number of callers that settle one call, exactly one wins.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from perdure import host
from perdure.core.log import events
from perdure.core.pending import record as pending
from perdure.core.pending import settlement as decide
from perdure.core.pending.commands import Command, Expire, SubmitResult
from perdure.core.pending.record import PendingRecord, Verb, moved, pending_not_found
from perdure.core.pending.settlement import Settlement
from perdure.core.session import naming as index
from perdure.errors import Conflict, Corrupt, NotFound, PerdureError, Refused
from perdure.runtime.inbox.budgets import raise_budgets
from perdure.runtime.inbox.commits import Commits
from perdure.runtime.records.cache import SessionCache
from perdure.runtime.records.entries import PendingEntry, SessionEntry, pending_put
from perdure.runtime.records.log import as_record
from perdure.runtime.records.verification import LogVerifier
from perdure.store.base import (
    DELETE,
    Entry,
    ForeignWrite,
    Gone,
    Lease,
    NoStream,
    Put,
    Store,
    VersionMoved,
    Write,
)
from perdure.store.shared.all_pages import all_entries

logger = logging.getLogger("perdure")

STARTED: Final = "started"  # kind of the entries of calls whose external work was started
Inspect = Callable[[PendingRecord, Command], Awaitable[bool]]  # False: the tool is not known here


class SettledCalls(NamedTuple):
    """Settlements in the order of their commands, and the leases that their commit claimed."""

    outcomes: list[Settlement]
    leases: Mapping[str, Lease]  # by stream


class StreamClaim(NamedTuple):
    """The holder that will drive a stream: see Write."""

    stream: str
    holder: str


class _Scope(NamedTuple):
    """The calls that a caller may settle: of one tenant, of one session's stream, or all."""

    tenant: str | None = None
    stream: str | None = None

    def has(self, entry: PendingEntry) -> bool:
        """Return whether a call is one of them."""
        is_of_tenant = self.tenant is None or self.tenant == entry.record.tenant
        return is_of_tenant and self.stream in (None, entry.stream)


_ANYWHERE: Final = _Scope()


class _SettlementBatch(Struct):
    """Settlements that one commit will write, and how they are found and checked."""

    now: int = 0
    scope: _Scope = _ANYWHERE
    inspect: Inspect | None = None
    claim: StreamClaim | None = None
    may_guess: bool = True  # cached entries may be used
    relied: dict[str, int | None] = field(default_factory=dict)  # foreign writes, by stream
    calls: list[tuple[PendingEntry, Settlement]] = field(default_factory=list)


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
        return (await self._read_entry(pending_id, _Scope(tenant))).record

    async def _read_entry(self, pending_id: str, scope: _Scope) -> PendingEntry:
        index.check_id(pending_id, "pending id")
        entry = await self._store.get("pending", pending_id)
        pending_entry = None if entry is None else PendingEntry.decode(entry)
        if pending_entry is None or not scope.has(pending_entry):
            raise pending_not_found(pending_id)
        return pending_entry

    def _cached_entry(self, pending_id: str, scope: _Scope) -> PendingEntry | None:
        """Return the call as it was last written here: a guess for one conditional commit."""
        entry = self._cache.pending_entry(pending_id)
        return None if entry is None or not scope.has(entry) else entry

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
        batch = _SettlementBatch(scope=_Scope(tenant), inspect=inspect)
        return (await self._settle(batch, {pending_id: command})).outcomes[0]

    async def settle_all(
        self,
        commands: Mapping[str, Command],
        *,
        tenant: str | None = None,
        stream: str | None = None,
        inspect: Inspect | None = None,
        claim: StreamClaim | None = None,
    ) -> SettledCalls:
        """Settle calls in one commit: all of them, or none.

        `tenant` and `stream` limit which they may be. Raises as `settle` does for the first that
        cannot be settled, with its id in `details`.
        """
        batch = _SettlementBatch(scope=_Scope(tenant, stream), inspect=inspect, claim=claim)
        return await self._settle(batch, commands, names_call=True)

    async def _settle(
        self, batch: _SettlementBatch, commands: Mapping[str, Command], *, names_call: bool = False
    ) -> SettledCalls:
        while True:
            batch = replace(batch, now=self._store.now(), calls=[], relied={})
            for pending_id, command in commands.items():
                try:
                    is_current = await self._add_call(batch, pending_id, command)
                    if is_current and len(commands) > 1:
                        _check_twin(batch.calls[-1][0].record, commands)
                except PerdureError as error:
                    if names_call:
                        error.details.setdefault("pendingID", pending_id)
                    raise
                if not is_current:
                    break
            else:
                leases = await self._commit(batch)
                if leases is not None:
                    return SettledCalls([outcome for _, outcome in batch.calls], leases)
            batch = replace(batch, may_guess=False)

    async def _add_call(self, batch: _SettlementBatch, pending_id: str, command: Command) -> bool:
        """Add the settlement of one call to a batch; an overdue one is expired by itself.

        Returns False if something has changed meanwhile, so that the whole batch is outdated.
        """
        guess = self._cached_entry(pending_id, batch.scope) if batch.may_guess else None
        while True:
            entry, guess = guess or await self._read_entry(pending_id, batch.scope), None
            outcome = decide.settle(entry.record, command, batch.now)
            if outcome.duplicate or isinstance(command, Expire):
                break
            if entry.stream not in batch.relied:
                relied = await self._verifier.rely_or_verify(entry.stream)
                batch.relied[entry.stream] = relied
            if outcome.voted or (not outcome.record.is_open and not outcome.expired):
                if batch.inspect is not None:
                    is_checked = await batch.inspect(entry.record, command)
                    outcome = _inspected(outcome, command, is_checked=is_checked)
                break
            # It is overdue, whatever becomes of the others. If it stays open for a grace period, it
            # is settled by the late command.
            alone = _SettlementBatch(batch.now, relied=batch.relied, calls=[(entry, outcome)])
            if await self._commit(alone) is None:
                return False
            if outcome.expired:
                raise decide.already_settled(outcome.record)
        batch.calls.append((entry, outcome))
        return True

    async def _commit(self, batch: _SettlementBatch) -> Mapping[str, Lease] | None:
        """Commit a batch and return the leases that it claimed; None if an entry has changed."""
        calls = [call for call in batch.calls if not call[1].duplicate]
        if not calls:
            return {}
        facts, puts, woken, changed = await self._collect(calls, batch.now)
        claimed, holder = batch.claim or (None, None)
        writes = [
            Write(
                stream,
                [as_record(fact, batch.now) for fact in added],
                wake=batch.now if added and stream in woken else None,
                claim=holder if stream == claimed else None,
                foreign_writes=batch.relied.get(stream),
            )
            for stream, added in facts.items()
        ]
        began = host.elapsed()
        try:
            heads = await self._commits.commit(writes, puts)
        except (VersionMoved, ForeignWrite) as error:
            self._verifier.note_refusal(error)
            return None
        except (NoStream, Gone) as error:
            name = next((e.record.id for e, _ in calls if e.stream == error.stream), None)
            if name is None:
                return None  # another session that its budget bounds was erased
            raise pending_not_found(name) from error
        took_s = host.elapsed() - began
        for write in writes:
            stream = write.stream
            self._verifier.extend(stream, len(write.records), heads[stream], took_s)
            if stream in changed:
                self._cache.remove(stream)
            entries = _entries_after(calls, stream)
            self._cache.apply_commit(write, facts[stream], heads, pending=entries)
        return heads.leases

    async def _collect(
        self, calls: Sequence[tuple[PendingEntry, Settlement]], now: int
    ) -> tuple[dict[str, list[events.Event]], list[Put], set[str], set[str]]:
        """Return the facts by stream and the puts of settlements.

        Then the streams that they wake, and the streams in which they also change other entries.
        """
        facts: dict[str, list[events.Event]] = {}
        puts: list[Put] = []
        woken: set[str] = set()
        changed: set[str] = set()
        for entry, outcome in calls:
            added, others = outcome.facts, list[Put]()
            if not _is_plain(entry, outcome):
                added, others = await self._with_others(entry, outcome, now)
                changed |= {put.stream for put in others}
            facts.setdefault(entry.stream, []).extend(added)
            puts += [entry.with_record(outcome.record).as_put, *others]
            if not outcome.voted:  # one approval of several changes nothing for the driver
                woken.add(entry.stream)
        if any(outcome.record.budget is not None for _, outcome in calls):
            answered = [(outcome.record, entry.stream) for entry, outcome in calls]
            raised = await raise_budgets(self._store, answered, now)
            facts, puts = raised.merged(facts), puts + raised.puts
            woken |= raised.woken
            changed |= raised.facts.keys()
        return facts, puts, woken, changed

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
            entry = await self._read_entry(pending_id, _ANYWHERE)
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
        entry = await self._read_entry(pending_id, _ANYWHERE)
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


def _check_twin(record: PendingRecord, commands: Mapping[str, Command]) -> None:
    """Refuse to settle both ids of one call: the outcome of one of them closes the other."""
    if record.twin in commands:
        raise Refused(
            f"{record.id} and {record.twin} are two ids of one call",
            code="VALUE_INVALID",
            hint="settle one of them: submit the result, or decide whether the call runs again",
        )


def _is_plain(entry: PendingEntry, outcome: Settlement) -> bool:
    """Return whether a settlement changes no entry but its own."""
    return (
        not outcome.record.twin
        and entry.record.status != "processing"
        and events.Cancelled not in map(type, outcome.facts)
    )


def _entries_after(
    calls: Sequence[tuple[PendingEntry, Settlement]], stream: str
) -> dict[str, PendingEntry | None]:
    """Return the entries of the open calls of a stream after a commit, None for settled ones."""
    return {
        entry.record.id: entry.with_record(outcome.record) if outcome.record.is_open else None
        for entry, outcome in calls
        if entry.stream == stream
    }


def _removed(entry: Entry) -> Put:
    return Put(entry.kind, entry.key, entry.version, entry.stream, entry.state, None, DELETE)
