"""Commits to a session under a lease: the one place where a driver reads and writes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, TypeVar

from msgspec import Struct

from perdure import host
from perdure.core.driver.draft_builder import Draft, RecordChange
from perdure.core.driver.effects import Park
from perdure.core.log import events
from perdure.core.log.events import Event
from perdure.core.pending import record as pending_records
from perdure.core.pending.commands import Expire
from perdure.core.pending.record import PendingRecord
from perdure.core.session.naming import MOST_WAITING, POISONED
from perdure.core.session.state import State
from perdure.errors import PerdureError
from perdure.runtime.agents.ready_agent import ReadyAgent
from perdure.runtime.engine.leases import leased_session
from perdure.runtime.inbox.children import taken_put
from perdure.runtime.inbox.commits import unsaved
from perdure.runtime.records.budgets import Spending, SpendingCommit
from perdure.runtime.records.cache import CachedSession
from perdure.runtime.records.entries import PendingEntry, SessionEntry, open_calls
from perdure.runtime.records.log import Log, LogExtension, as_record
from perdure.runtime.resources import Resources
from perdure.store.base import (
    Check,
    Fenced,
    Gone,
    Heads,
    Lease,
    NoStream,
    Put,
    Release,
    Slice,
    Unavailable,
    Unknown,
    VersionMoved,
    Write,
)

T = TypeVar("T")

ATTEMPTS: Final = 6  # to commit, if the store is unavailable
MAX_PAUSE_S: Final = 0.64  # between two attempts
FACT_PATIENCE_S: Final = 10.0  # for a fact, which cannot be obtained again


class PlannedCommit(Struct, frozen=True, gc=False):
    """Content of one commit, and what the log folds to with it."""

    draft: Draft
    facts: Sequence[Event]
    now: int
    after: LogExtension


class Deadlines:
    """Deadlines of the pending calls of a drive, the next one first.

    One that was put off or settled elsewhere stays: the settlement then changes nothing.
    """

    __slots__ = ("_dues", "_heap", "is_complete")

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._dues: dict[str, int] = {}  # by pending id
        self.is_complete = False  # with the calls that earlier drives have opened

    def add(self, records: Iterable[PendingRecord]) -> None:
        """Add the deadlines of calls, or change them."""
        for record in records:
            if record.due is not None and self._dues.get(record.id) != record.due:
                self._dues[record.id] = record.due
                heappush(self._heap, (record.due, record.id))

    def next(self) -> int | None:
        """Return the next deadline, past or future."""
        return self._heap[0][0] if self._heap else None

    def take_overdue(self, now: int) -> list[str]:
        """Return the ids of overdue calls, and forget them: each is expired once."""
        overdue = []
        while self._heap and self._heap[0][0] <= now:
            due, pending_id = heappop(self._heap)
            if self._dues.get(pending_id) == due:
                overdue.append(pending_id)
        return overdue


class LeasedWriter:
    """One session under one lease: its log and entries, as last read or written here.

    A fact is written under the fence, a decision under the fence and at the folded head.
    """

    __slots__ = (
        "_has_start",
        "_parked_head",
        "_started_at",
        "_unknown_count",
        "agent",
        "deadlines",
        "entry",
        "expected_head",
        "has_written",
        "is_valid",
        "lease",
        "log",
        "on_progress",
        "parked_session",
        "pending",
        "resources",
        "spending",
        "trace",
    )
    entry: SessionEntry  # set by `load`, unless the session is cached

    def __init__(
        self,
        resources: Resources,
        lease: Lease,
        agent: ReadyAgent,
        is_valid: Callable[[Lease], bool],
    ) -> None:
        self.resources = resources
        self.lease = lease
        self.agent = agent
        self.is_valid = is_valid
        self.pending: dict[str, PendingEntry] = {}  # as they were last written here
        self.deadlines = Deadlines()
        self.spending: Spending | None = None  # of a session with a parent or a budget
        self.trace: str | None = None  # of this drive
        self.has_written = False
        self.on_progress: Callable[[], None] | None = None  # called at the first commit
        self.parked_session: CachedSession | None = None  # cached: later commits are added to it
        self._parked_head = 0  # of the session as this drive left it
        self.expected_head = lease.head  # with the commit that is under way
        self._has_start = False  # the first commit also records the driver and its agent
        self._started_at = resources.store.now()
        self._unknown_count = 0  # commits in a row without a known outcome
        cached = resources.cache.remove(lease.stream)
        if cached is None or cached.log.state.head != lease.head:
            self.log = Log(resources.store, lease.stream)
        else:
            self.log, self.entry = cached.log, cached.entry
            self.pending |= cached.pending_entries or {}

    # --- reading ------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read the session, unless it is cached. Raises Gone, Fenced."""
        store = self.resources.store
        if not self.log.events:
            self.entry = await leased_session(store, self.lease)
            # A command that was verified a moment ago has left the log that it read.
            self.log = self.resources.cache.decoded.take(self.lease.stream) or self.log
            self.log.require(self.entry.record.head)
            await self.catch_up()
        limits, record = self.agent.budget, self.entry.record
        if limits or record.parent is not None:
            self.spending = Spending(store, self.lease.stream, record, limits)

    async def catch_up(self, *, patient: bool = False) -> None:
        """Read new records; a message may have added a receiver to the entry. Raises Fenced.

        `patient`: an unavailable store is waited for.
        """
        read_before = max(self.log.state.head, self.lease.head)
        try:
            await self.log.catch_up()
        except Unavailable as error:
            if not patient:
                raise
            await self._retry(self.log.catch_up, error, patient)
        new = self.log.events[read_before:]
        messages = events.User | events.FollowUpQueued
        if any(isinstance(stamped.event, messages) for stamped in new):
            entry = await self.resources.store.get("session", self.entry.index_entry.key)
            if entry is not None and entry.stream == self.lease.stream:
                self.entry = SessionEntry.decode(entry)
        holder = self.log.slice.holder
        if holder != self.lease.holder:
            raise Fenced(f"{self.lease.holder} lost the lease to {holder or 'nobody'}")

    def refresh_entry(self, error: VersionMoved) -> None:
        """Use the present entry of the session, if that is what had changed."""
        entry = error.entry
        if self.spending is not None:
            self.spending.forget()
        if entry is not None and entry.kind == "session":
            self.entry = SessionEntry.decode(entry)

    def _cache_parked(self, park: Park) -> None:
        """Cache the session as this drive leaves it."""
        self.log.slice = Slice((), self.log.state.head, None, park.due)
        ids = self.log.state.pending_ids
        entries = {item: self.pending[item] for item in ids if item in self.pending}
        # Without an entry of one of them, none is known.
        is_complete = len(entries) == len(ids)
        self.parked_session = CachedSession(self.log, self.entry, entries if is_complete else None)
        self._parked_head = self.parked_session.head
        self.resources.cache.add(self.parked_session)

    @property
    def is_outdated(self) -> bool:
        """True if the session that this drive parked has changed since, by commits made here."""
        return self.parked_session is not None and self.parked_session.head != self._parked_head

    def pending_record(self, pending_id: str | None) -> PendingRecord | None:
        """Return the record of a call as it was last written here, if it was."""
        pending = None if pending_id is None else self.pending.get(pending_id)
        return None if pending is None else pending.record

    # --- deadlines ----------------------------------------------------------------------------

    async def next_deadline(self) -> int | None:
        """Return when the next pending call of the session expires."""
        ids = () if self.deadlines.is_complete else self.log.state.pending_ids
        if ids:
            self.deadlines.is_complete = True
            if all(pending_id in self.pending for pending_id in ids):
                self.deadlines.add([self.pending[pending_id].record for pending_id in ids])
            else:
                entries = open_calls(self.resources.store, self.lease.stream)
                self.deadlines.add([pending_records.decode(entry.data) async for entry in entries])
        return self.deadlines.next()

    async def expire_overdue(self) -> None:
        """Settle the pending calls whose deadlines have passed."""
        for pending_id in self.deadlines.take_overdue(self.resources.store.now()):
            self.pending.pop(pending_id, None)  # a guess, which is read again if it is needed
            with suppress(PerdureError):  # another process has settled it
                outcome = await self.resources.pending_inbox.settle(pending_id, Expire())
                self.deadlines.add([outcome.record])  # if it was put off

    # --- planning a commit --------------------------------------------------------------------

    def plan_commit(self, draft: Draft) -> PlannedCommit:
        """Return a commit of the draft, with the start of this drive if none is recorded yet."""
        facts, now = draft.facts, draft.at or self.resources.store.now()
        if (run := self._new_run(facts)) is not None:
            facts = [facts[0], *self._start_events(run), *facts[1:]]
        elif facts and not self._has_start:
            facts = [*self._start_events(), *facts]
        return PlannedCommit(draft, facts, now, self.log.extension(facts, now))

    def plan_start(self) -> PlannedCommit:
        """Return a commit that records only that this drive has started."""
        facts, now = self._start_events(), self.resources.store.now()
        return PlannedCommit(Draft(), facts, now, self.log.extension(facts, now))

    def _new_run(self, facts: Sequence[Event]) -> str | None:
        """Return the id of the run that a notification starts in a session at rest."""
        run = self.log.state.run
        if not facts or not isinstance(facts[0], events.User):
            return None
        return facts[0].task_id if run is None or run.end is not None else None

    def _start_events(self, new_run: str | None = None) -> list[Event]:
        state, agent = self.log.state, self.agent
        since = self.log.events[self.lease.head :]
        # It may be recorded already: the reply to that commit may have been lost.
        starts = [stamped.event for stamped in since if type(stamped.event) is events.AgentStart]
        is_recorded = any(start.worker for start in starts)
        run = new_run if new_run is not None or state.run is None else state.run.id
        if run is None or (is_recorded and new_run is None):
            return []
        # Without the complete list of the agent's tools, a change cannot be detected.
        digest = agent.digest if agent.problem is None else state.digest
        changed = state.digest != digest
        start = events.AgentStart(
            run=run,
            agent=agent.name,
            digest=digest,
            worker=self.lease.holder,
            tools=agent.tool_digests if changed else None,
            since=0 if agent.limits.running_ms is None else self._started_at,
            trace=self.trace or "",
        )
        if state.digest and changed:
            return [start, _difference(state.tools, agent.tool_digests)]
        return [start]

    # --- writing ------------------------------------------------------------------------------

    async def write(
        self,
        commit: PlannedCommit,
        park: Park | None,
        problem: PerdureError | None = None,
        *,
        anywhere: bool = False,
        patient: bool = False,
    ) -> None:
        """Write a commit, and apply it here; `park` releases the lease with it.

        `anywhere`: a fact, at any head. `patient`: an unavailable store is waited for.
        """
        stream, head, draft = self.lease.stream, self.log.state.head, commit.draft
        records = [as_record(fact, commit.now) for fact in commit.facts]
        pending, same = await self._changed_pending(draft)
        entry = None if anywhere else self._changed_entry(commit, problem, is_park=park is not None)
        release = None if park is None else Release(park.due)
        writes = [Write(stream, records, self.lease, None if anywhere else head, release=release)]
        puts = [item.as_put for item in pending]
        spent = await self._spending_commit(commit, is_park=park is not None)
        if draft.taken_mail or spent is not None:
            puts += await self._taken_mail(draft)
            puts += () if spent is None else spent.all_puts
            writes += map(Write, dict.fromkeys(p.stream for p in puts if p.stream != stream))
        if entry is not None:
            puts.append(entry.as_put)
        self.expected_head = head + len(records)
        heads = await self._commit(writes, puts, [item.as_check for item in same], patient=patient)
        if self.spending is not None and spent is not None:
            self.spending.apply(spent)
        self._note_progress()
        self._has_start = self._has_start or bool(records)
        self.entry = entry or self.entry
        self._note_pending(pending, same)
        if heads[stream] == self.expected_head:
            self.log.apply(commit.after, records, heads.foreign_writes)
        else:
            await self.catch_up()  # another writer was faster
        if park is not None:
            self._cache_parked(park)
        self.resources.cache.notify(stream, heads[stream])

    async def _spending_commit(
        self, commit: PlannedCommit, *, is_park: bool
    ) -> SpendingCommit | None:
        """Return the entries that count what the commit spent, if a budget bounds the session."""
        if self.spending is None:
            return None
        states = (self.log.state, commit.after.state)
        spent = await self.spending.plan_commit(commit.facts, *states, commit.now, is_park=is_park)
        questions = self.spending.question_puts(commit.draft.new_records)
        return spent._replace(questions=questions)

    async def _commit(
        self,
        writes: Sequence[Write],
        puts: Sequence[Put],
        checks: Sequence[Check],
        *,
        patient: bool,
    ) -> Heads:
        """Commit, again if the store is unavailable.

        A budget of a session that was erased bounds nobody: the caller plans again without it.
        """
        commit = partial(self.resources.commits.commit, writes, puts, checks=checks)
        try:
            try:
                return await commit()
            except Unavailable as error:
                return await self._retry(commit, error, patient)
        except (Gone, NoStream) as error:
            if error.stream == self.lease.stream or self.spending is None:
                raise
            if not self.spending.drop(error.stream):
                raise
            raise VersionMoved(f"the budget in {error.stream} is gone") from error

    async def _retry(
        self, use_store: Callable[[], Awaitable[T]], error: Unavailable, patient: bool
    ) -> T:
        """Use the store again after it was unavailable. Raises StoreError if it stays so."""
        until = host.elapsed() + (FACT_PATIENCE_S if patient else 0.0)
        for attempt in count(1):
            may_wait = host.elapsed() < until and self.is_valid(self.lease)
            if attempt >= ATTEMPTS and not may_wait:
                raise unsaved(error) from error
            await asyncio.sleep(_pause_s(attempt))
            try:
                return await use_store()
            except Unavailable as again:
                error = again
        raise AssertionError("unreachable")

    async def wait_after_unknown(self, error: Unknown) -> None:
        """Pause before the log is read and the commit, perhaps, written again.

        Raises StoreError if one commit after the other has had no known outcome.
        """
        self._unknown_count += 1
        if self.spending is not None:
            self.spending.forget()
        if self._unknown_count >= ATTEMPTS:
            raise unsaved(error) from error
        await asyncio.sleep(_pause_s(self._unknown_count))

    async def _changed_pending(self, draft: Draft) -> tuple[list[PendingEntry], list[PendingEntry]]:
        """Return the new and changed entries of calls, and those that stay as they are.

        A settled one may be removed since.
        """
        same: list[PendingEntry] = []
        entries = [PendingEntry(self.lease.stream, 1, record) for record in draft.new_records]
        for pending_id, change in draft.record_changes.items():
            pending = self.pending.pop(pending_id, None)  # a guess: after a refusal it is read
            if pending is None:
                pending = await self._read_pending(pending_id)
                if pending is not None and not pending.record.is_open:
                    # A caller has settled it, and its record moved the head: read again.
                    raise VersionMoved(f"{pending_id} is settled")
            changed = _changed(pending, change)
            if pending is not None and changed[0].record == pending.record:
                same.append(pending)
            else:
                entries += changed
        for pending_id, change in draft.settled_changes.items():
            entries += _changed(await self._read_pending(pending_id), change)
        return entries, same

    def _note_progress(self) -> None:
        self._unknown_count = 0
        if not self.has_written:
            self.has_written = True
            if self.on_progress is not None:
                self.on_progress()

    def _note_pending(self, changed: list[PendingEntry], same: list[PendingEntry]) -> None:
        self.pending.update({item.record.id: item for item in (*changed, *same)})
        self.deadlines.add([item.record for item in changed])

    async def _taken_mail(self, draft: Draft) -> list[Put]:
        """Return the puts of the mail that the draft delivers."""
        puts = []
        for mail in draft.taken_mail:
            inbox, tenant = self.resources.child_inbox, self.entry.record.tenant
            entry = await inbox.mail_entry(tenant, mail)
            if entry is not None and entry.state != "open":
                raise VersionMoved(f"mail {mail} was taken")  # its record moved the head
            puts += [] if entry is None else [taken_put(entry)]
        return puts

    async def _read_pending(self, pending_id: str) -> PendingEntry | None:
        entry = await self.resources.store.get("pending", pending_id)
        return None if entry is None else PendingEntry.decode(entry)

    def _changed_entry(
        self, commit: PlannedCommit, problem: PerdureError | None, *, is_park: bool
    ) -> SessionEntry | None:
        after, record = commit.after.state, self.entry.record
        state = after.status if problem is None else "waiting"
        problem = problem or _poisoning(after)
        code = None if problem is None else problem.code
        is_same = record.state == state and record.problem == code
        if is_same and not (is_park and commit.facts):
            return None
        run = after.run.id if after.run is not None else record.task_id
        text = None if problem is None else problem.message
        return self.entry.with_changes(
            state=state,
            problem=code,
            problem_text=text,
            updated_at=commit.now,
            task_id=run,
            head=after.head,
            turns=after.turn,
            usage=dict(after.usage),
            waiting=tuple(after.pending_ids[:MOST_WAITING]),
        )


def _changed(pending: PendingEntry | None, change: RecordChange) -> list[PendingEntry]:
    return [] if pending is None else [pending.with_record(change(pending.record))]


def _pause_s(attempt: int) -> float:
    return float(min(0.01 * 2**attempt, MAX_PAUSE_S))


def _poisoning(state: State) -> PerdureError | None:
    error = None if state.run is None else state.run.error
    if error is None or error.code != POISONED:
        return None
    return PerdureError(error.error, code=POISONED)


def _difference(before: Any, now: Any) -> events.AgentChanged:
    return events.AgentChanged(
        added=sorted(set(now) - set(before)),
        removed=sorted(set(before) - set(now)),
        changed=sorted(name for name in set(now) & set(before) if now[name] != before[name]),
    )
