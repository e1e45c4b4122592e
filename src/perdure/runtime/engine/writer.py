"""A session's log under a lease: the one place where a driver writes."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final, NamedTuple

import anyio

from perdure.core.driver.drafts import Change, Draft
from perdure.core.driver.effects import Park
from perdure.core.log import events
from perdure.core.log.events import Event
from perdure.core.pending.record import PendingRecord
from perdure.core.session.state import State
from perdure.errors import PerdureError, StoreError
from perdure.runtime.agents.agents import ReadyAgent
from perdure.runtime.records.cache import CachedSession
from perdure.runtime.records.entries import PendingEntry, SessionEntry
from perdure.runtime.records.log import After, as_record
from perdure.runtime.resources import Resources
from perdure.store.base import (
    HeadMoved,
    Lease,
    Put,
    Release,
    Slice,
    Unavailable,
    VersionMoved,
    Write,
)

ATTEMPTS: Final = 6
LONGEST_S: Final = 0.64  # between two attempts
PATIENT_S: Final = 10.0  # with a fact, which cannot be had again

Rest = Callable[[State], Park | None]


class LeasedWriter:
    """Facts go in under the fence; decisions under the fence, and at the head that was folded."""

    def __init__(
        self,
        desk: Resources,
        lease: Lease,
        rested: CachedSession,
        agent: ReadyAgent,
        is_alive: Callable[[], bool],
    ) -> None:
        self.lease = lease
        self._is_alive = is_alive
        self.log = rested.log
        self.known = rested.known  # the session's entry, as far as we know it
        self._near = desk.near
        self._store = desk.store
        self._outbox = desk.outbox
        # Said with the first thing written: who drives, and with which version of the agent.
        self._agent: ReadyAgent | None = agent
        self.trace: str | None = None  # of this drive
        self._began = desk.store.now()
        self._waits = dict(rested.waits or {})  # calls that wait, as they were last written here

    async def catch_up(self) -> None:
        """Read what is new; with a message somebody may have come who is to be told."""
        new = await self.log.catch_up()
        if any(isinstance(e, events.User) and seq > self.lease.head for seq, _, e in new):
            entry = await self._store.get("session", self.known.entry.key)
            if entry is not None and entry.stream == self.lease.stream:
                self.known = SessionEntry.of(entry)

    async def fact(self, draft: Draft, rest: Rest) -> bool:
        """Append what happened, wherever the log ends; True if that parked the session.

        If nothing is left to do afterwards, the lease is given back in the same commit. That is a
        decision, which needs the head; the fact itself does not. It cannot be had again, so a
        store that is away is waited for, for a while and while the lease is good.
        """
        page = self._page(draft)
        parks = rest(page.after.state)
        if parks is not None:
            with suppress(HeadMoved):
                return await self._write(page, parks, patient=True)
        return await self._write(page, None, anywhere=True, patient=True)

    async def decide(self, draft: Draft, rest: Rest) -> bool:
        """Append what was decided from all that was folded; True if that parked the session.

        `rest` says of the state afterwards whether nothing is left to do here: then the lease is
        given back in the same commit.
        """
        page = self._page(draft)
        return await self._write(page, rest(page.after.state))

    async def park(self, rest: Park, problem: PerdureError | None = None) -> None:
        """Give the lease back at the head that was folded."""
        await self._write(self._page(Draft()), rest, problem)

    def _page(self, draft: Draft) -> "_Page":
        facts, now = self._opening(draft.facts), draft.at or self._store.now()
        return _Page(draft, facts, now, self.log.after(facts, now))

    def _opening(self, facts: Sequence[Event]) -> list[Event]:
        state, agent = self.log.state, self._agent
        if agent is None or not facts or state.run is None or self._is_introduced():
            return list(facts)
        # Of an agent whose tools are not all known here nothing can be said to have changed.
        digest = agent.digest if agent.problem is None else state.digest
        changed = state.digest != digest
        start = events.AgentStart(
            run=state.run.id,
            agent=agent.name,
            digest=digest,
            worker=self.lease.holder,
            tools=agent.tool_digests if changed else None,
            since=0 if agent.limits.running_ms is None else self._began,
            trace=self.trace or "",
        )
        opening: list[Event] = [start]
        if state.digest and changed:
            opening.append(_difference(state.tools, agent.tool_digests))
        return opening + list(facts)

    def _is_introduced(self) -> bool:
        """Whether we did it already: the answer to that commit may have been lost."""
        since = self.log.events[self.lease.head :]
        return any(isinstance(e, events.AgentStart) and e.worker for _, _, e in since)

    async def _write(
        self,
        page: "_Page",
        rest: Park | None,
        problem: PerdureError | None = None,
        *,
        anywhere: bool = False,
        patient: bool = False,
    ) -> bool:
        stream, head = self.lease.stream, self.log.state.head
        records = [as_record(fact, page.now) for fact in page.facts]
        write = Write(
            stream,
            records,
            fence=self.lease,
            head=None if anywhere else head,
            release=None if rest is None else Release(rest.due),
        )
        waits = [PendingEntry(stream, 1, record) for record in page.draft.opened]
        waits += await self._changes(page.draft.changed)
        known = None if anywhere else self._listed(page, problem, parked=rest is not None)
        puts = [one.as_put for one in (*waits, known) if one is not None]
        heads = await self._commit(write, puts, patient=patient)
        if page.facts:
            self._agent = None
        self.known = known or self.known
        self._waits.update((one.record.id, one) for one in waits)
        if heads[stream] == head + len(page.facts):
            self.log.adopt(page.after, records)
        else:
            await self.catch_up()  # somebody wrote in between
        if rest is not None:
            self.log.at = Slice((), self.log.state.head, None, rest.due)
            self._near.keep(CachedSession(self.log, self.known, self.waits()))
        self._near.tell(stream, heads[stream])
        return rest is not None

    async def _commit(self, write: Write, puts: Sequence[Put], *, patient: bool) -> dict[str, int]:
        writes, puts = self._outbox.also([write], puts)
        until = anyio.current_time() + PATIENT_S if patient else 0.0
        for attempt in count(1):
            try:
                return await self._store.commit(writes, puts)
            except Unavailable as error:
                waits = anyio.current_time() < until and self._is_alive()
                if attempt >= ATTEMPTS and not waits:
                    raise StoreError(
                        f"failed to save execution state: {error.message}",
                        code=error.code,
                        hint=error.hint,
                    ) from error
                await anyio.sleep(min(0.01 * 2**attempt, LONGEST_S))
        raise AssertionError("unreachable")

    async def _changes(self, changed: dict[str, Change]) -> list[PendingEntry]:
        found = []
        for pending_id, change in changed.items():
            waiting = self._waits.pop(pending_id, None)  # tried once; moved by others: look
            if waiting is None:
                entry = await self._store.get("pending", pending_id)
                if entry is None:
                    continue
                waiting = PendingEntry.of(entry)
                if not waiting.record.is_open:
                    # somebody settled it: their record moved the head, so look again
                    raise VersionMoved(f"{pending_id} is settled", entry=entry)
            found.append(waiting.changed(change(waiting.record)))
        return found

    def pending(self, pending_id: str) -> PendingRecord | None:
        """The record of a call as it was last written here, if it was."""
        waiting = self._waits.get(pending_id)
        return None if waiting is None else waiting.record

    def waits(self) -> dict[str, PendingEntry] | None:
        """Every call that waits; None if one of them is not known here."""
        ids = [one for call in self.log.state.open_calls for one in (call.gate, call.wait) if one]
        known = {one: self._waits[one] for one in ids if one in self._waits}
        return known if len(known) == len(ids) else None

    def _listed(
        self, page: "_Page", problem: PerdureError | None, *, parked: bool
    ) -> SessionEntry | None:
        after, record = page.after.state, self.known.record
        state = after.status if problem is None else "waiting"
        told = None if problem is None else problem.code
        is_same = record.state == state and record.problem == told
        if is_same and (not parked or not page.facts):
            return None
        run = after.run.id if after.run is not None else record.task_id
        text = None if problem is None else problem.message
        return self.known.changed(
            state=state, problem=told, problem_text=text, updated_at=page.now, task_id=run
        )

    def moved(self, error: VersionMoved) -> None:
        """Take in the present entry of the session, if that is what had moved."""
        entry = error.entry
        if entry is not None and entry.kind == "session":
            self.known = SessionEntry.of(entry)


class _Page(NamedTuple):
    """What one commit would add, and what the log would then fold to."""

    draft: Draft
    facts: list[Event]
    now: int
    after: After


def _difference(before: Any, now: Any) -> events.AgentChanged:
    return events.AgentChanged(
        added=sorted(set(now) - set(before)),
        removed=sorted(set(before) - set(now)),
        changed=sorted(name for name in set(now) & set(before) if now[name] != before[name]),
    )
