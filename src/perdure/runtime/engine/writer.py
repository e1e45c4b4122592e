"""Commits to a session under a lease: the one place where a driver writes."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final, NamedTuple

from perdure.core.driver.draft_builder import Draft, RecordChange
from perdure.core.driver.effects import Park
from perdure.core.log import events
from perdure.core.log.events import Event
from perdure.core.pending.record import PendingRecord
from perdure.core.session.naming import POISONED
from perdure.core.session.state import State
from perdure.errors import PerdureError, StoreError
from perdure.runtime.agents.agents import ReadyAgent
from perdure.runtime.records.cache import CachedSession
from perdure.runtime.records.entries import PendingEntry, SessionEntry
from perdure.runtime.records.log import LogExtension, as_record
from perdure.runtime.resources import Resources
from perdure.store.base import (
    HeadMoved,
    Lease,
    Put,
    Release,
    Slice,
    Unavailable,
    Unknown,
    VersionMoved,
    Write,
)

ATTEMPTS: Final = 6  # to commit, if the store is unavailable
MAX_PAUSE_S: Final = 0.64  # between two attempts
FACT_PATIENCE_S: Final = 10.0  # for a fact, which cannot be obtained again

ParkAfter = Callable[[State], Park | None]


class LeasedWriter:
    """Writes facts under the fence, and decisions under the fence and at the folded head."""

    def __init__(
        self,
        resources: Resources,
        lease: Lease,
        session: CachedSession,
        agent: ReadyAgent,
        is_alive: Callable[[], bool],
    ) -> None:
        self.lease = lease
        self._is_alive = is_alive
        self.log = session.log
        self.entry = session.entry  # as last read or written here
        self._cache = resources.cache
        self._store = resources.store
        self._outbox = resources.outbox
        # The first commit also records the driver and its version of the agent.
        self._agent: ReadyAgent | None = agent
        self.trace: str | None = None  # of this drive
        self._started_at = resources.store.now()
        self._unknown_count = 0  # commits in a row without a known outcome
        # Pending calls, as they were last written here.
        self._pending = dict(session.pending_entries or {})

    async def catch_up(self) -> None:
        """Read new records; a message may have added a receiver to the session's entry."""
        new = await self.log.catch_up()
        if any(isinstance(e, events.User) and seq > self.lease.head for seq, _, e in new):
            entry = await self._store.get("session", self.entry.index_entry.key)
            if entry is not None and entry.stream == self.lease.stream:
                self.entry = SessionEntry.decode(entry)

    async def write_fact(self, draft: Draft, park_after: ParkAfter) -> bool:
        """Append a fact at any head; return True if that parked the session.

        If nothing is left to do afterwards, the same commit releases the lease. That is a driver
        decision, which needs the head; the fact itself does not. A fact cannot be obtained again,
        so an unavailable store is waited for, for a while and while the lease is valid.
        """
        plan = self._plan_commit(draft)
        park = park_after(plan.after.state)
        if park is not None:
            with suppress(HeadMoved):
                return await self._write(plan, park, patient=True)
        return await self._write(plan, None, anywhere=True, patient=True)

    async def write_decision(
        self, draft: Draft, park_after: ParkAfter, *, patient: bool = False
    ) -> bool:
        """Append a driver decision at the folded head; return True if that parked the session.

        `park_after` gets the state afterwards. If nothing is left to do, it returns how to park,
        and the same commit releases the lease.
        """
        plan = self._plan_commit(draft)
        return await self._write(plan, park_after(plan.after.state), patient=patient)

    async def write_start(self) -> None:
        """Record that this drive has started, before its first effect."""
        facts, now = self._start_events(), self._store.now()
        plan = _PlannedCommit(Draft(), facts, now, self.log.extension(facts, now))
        await self._write(plan, None)

    async def park(self, park: Park, problem: PerdureError | None = None) -> None:
        """Release the lease at the folded head."""
        await self._write(self._plan_commit(Draft()), park, problem)

    def _plan_commit(self, draft: Draft) -> "_PlannedCommit":
        facts, now = self._with_start(draft.facts), draft.at or self._store.now()
        return _PlannedCommit(draft, facts, now, self.log.extension(facts, now))

    def _with_start(self, facts: Sequence[Event]) -> list[Event]:
        return [*self._start_events(), *facts] if facts else []

    def _start_events(self) -> list[Event]:
        state, agent = self.log.state, self._agent
        if agent is None or state.run is None or self._has_start():
            return []
        # Without the complete list of the agent's tools, a change cannot be detected.
        digest = agent.digest if agent.problem is None else state.digest
        changed = state.digest != digest
        start = events.AgentStart(
            run=state.run.id,
            agent=agent.name,
            digest=digest,
            worker=self.lease.holder,
            tools=agent.tool_digests if changed else None,
            since=0 if agent.limits.running_ms is None else self._started_at,
            trace=self.trace or "",
        )
        opening: list[Event] = [start]
        if state.digest and changed:
            opening.append(_difference(state.tools, agent.tool_digests))
        return opening

    def _has_start(self) -> bool:
        """Return whether it is recorded already: the reply to that commit may have been lost."""
        since = self.log.events[self.lease.head :]
        return any(isinstance(e, events.AgentStart) and e.worker for _, _, e in since)

    async def _write(
        self,
        plan: "_PlannedCommit",
        park: Park | None,
        problem: PerdureError | None = None,
        *,
        anywhere: bool = False,
        patient: bool = False,
    ) -> bool:
        stream, head = self.lease.stream, self.log.state.head
        records = [as_record(fact, plan.now) for fact in plan.facts]
        write = Write(
            stream,
            records,
            fence=self.lease,
            head=None if anywhere else head,
            release=None if park is None else Release(park.due),
        )
        pending = [PendingEntry(stream, 1, record) for record in plan.draft.new_records]
        pending += await self._changed_entries(plan.draft.record_changes)
        pending += await self._changed_settled(plan.draft.settled_changes)
        entry = None if anywhere else self._updated_entry(plan, problem, parked=park is not None)
        puts = [item.as_put for item in (*pending, entry) if item is not None]
        heads = await self._commit(write, puts, patient=patient)
        self._unknown_count = 0
        if plan.facts:
            self._agent = None
        self.entry = entry or self.entry
        self._pending.update((item.record.id, item) for item in pending)
        if heads[stream] == head + len(plan.facts):
            self.log.apply(plan.after, records)
        else:
            await self.catch_up()  # another writer was faster
        if park is not None:
            self.log.slice = Slice((), self.log.state.head, None, park.due)
            self._cache.add(CachedSession(self.log, self.entry, self.pending_entries()))
        self._cache.notify(stream, heads[stream])
        return park is not None

    async def _commit(self, write: Write, puts: Sequence[Put], *, patient: bool) -> dict[str, int]:
        writes, puts = self._outbox.with_deliveries([write], puts)
        until = time.monotonic() + FACT_PATIENCE_S if patient else 0.0
        for attempt in count(1):
            try:
                return await self._store.commit(writes, puts)
            except Unavailable as error:
                may_wait = time.monotonic() < until and self._is_alive()
                if attempt >= ATTEMPTS and not may_wait:
                    raise unsaved(error) from error
                await asyncio.sleep(_pause_s(attempt))
        raise AssertionError("unreachable")

    async def wait_after_unknown(self, error: Unknown) -> None:
        """Pause before the log is read and the commit, perhaps, written again.

        Raises StoreError if one commit after the other has had no known outcome.
        """
        self._unknown_count += 1
        if self._unknown_count >= ATTEMPTS:
            raise unsaved(error) from error
        await asyncio.sleep(_pause_s(self._unknown_count))

    async def _changed_entries(self, changes: dict[str, RecordChange]) -> list[PendingEntry]:
        entries = []
        for pending_id, change in changes.items():
            pending = self._pending.pop(pending_id, None)  # a guess: after a refusal it is read
            if pending is None:
                entry = await self._store.get("pending", pending_id)
                if entry is None:
                    continue
                pending = PendingEntry.decode(entry)
                if not pending.record.is_open:
                    # A caller has settled it, and its record moved the head: read again.
                    raise VersionMoved(f"{pending_id} is settled", entry=entry)
            entries.append(pending.with_record(change(pending.record)))
        return entries

    async def _changed_settled(self, changes: dict[str, RecordChange]) -> list[PendingEntry]:
        """Return changed entries of settled calls; one that was removed since has none."""
        entries = []
        for pending_id, change in changes.items():
            entry = await self._store.get("pending", pending_id)
            if entry is not None:
                pending = PendingEntry.decode(entry)
                entries.append(pending.with_record(change(pending.record)))
        return entries

    def pending_record(self, pending_id: str) -> PendingRecord | None:
        """Return the record of a call as it was last written here, if it was."""
        pending = self._pending.get(pending_id)
        return None if pending is None else pending.record

    def pending_entries(self) -> dict[str, PendingEntry] | None:
        """Return the entries of all open calls; None if one of them is not known here."""
        ids = [
            pending_id
            for call in self.log.state.calls.active.values()
            for pending_id in (call.approval_id, call.pending_id)
            if pending_id
        ]
        entries = {item: self._pending[item] for item in ids if item in self._pending}
        return entries if len(entries) == len(ids) else None

    def _updated_entry(
        self, plan: "_PlannedCommit", problem: PerdureError | None, *, parked: bool
    ) -> SessionEntry | None:
        after, record = plan.after.state, self.entry.record
        state = after.status if problem is None else "waiting"
        problem = problem or _poisoning(after)
        code = None if problem is None else problem.code
        is_same = record.state == state and record.problem == code
        if is_same and (not parked or not plan.facts):
            return None
        run = after.run.id if after.run is not None else record.task_id
        text = None if problem is None else problem.message
        return self.entry.with_changes(
            state=state,
            problem=code,
            problem_text=text,
            updated_at=plan.now,
            task_id=run,
            head=after.head,
        )

    def refresh_entry(self, error: VersionMoved) -> None:
        """Use the present entry of the session, if that is what had changed."""
        entry = error.entry
        if entry is not None and entry.kind == "session":
            self.entry = SessionEntry.decode(entry)


class _PlannedCommit(NamedTuple):
    """Content of one commit, and what the log folds to with it."""

    draft: Draft
    facts: list[Event]
    now: int
    after: LogExtension


def unsaved(error: StoreError) -> StoreError:
    """Return the error of a run whose progress the store did not take."""
    return StoreError(
        f"failed to save execution state: {error.message}", code=error.code, hint=error.hint
    )


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
