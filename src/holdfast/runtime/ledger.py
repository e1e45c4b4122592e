"""A session's log under a lease: the one place where a driver writes."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio

from holdfast.core import events, pending
from holdfast.core.effects import Park
from holdfast.core.events import Event, Stamped
from holdfast.core.pending import PendingRecord
from holdfast.core.sessions import State, fold
from holdfast.core.turns import Change, Draft
from holdfast.errors import HoldfastError, StoreError
from holdfast.runtime.agents import ReadyAgent
from holdfast.runtime.entries import Known, pending_put
from holdfast.runtime.log import Log, as_record
from holdfast.runtime.outbox import Outbox
from holdfast.store.base import (
    HeadMoved,
    Lease,
    Put,
    Release,
    Slice,
    Store,
    Unavailable,
    VersionMoved,
    Write,
)

ATTEMPTS: Final = 6

Rest = Callable[[State], Park | None]


class Ledger:
    """Facts go in under the fence; decisions under the fence, and at the head that was folded."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        log: Log,
        known: Known,
        agent: ReadyAgent,
        outbox: Outbox,
    ) -> None:
        self.lease = lease
        self.log = log
        self._store = store
        self._outbox = outbox
        self._known = known
        # Said with the first thing written: who drives, and with which version of the agent.
        self._agent: ReadyAgent | None = agent
        self._opened: dict[str, Put] = {}  # pending calls as we last wrote them

    @property
    def known(self) -> Known:
        """The session's entry as far as we know it."""
        return self._known

    async def fact(self, draft: Draft, rest: Rest) -> bool:
        """Append what happened, wherever the log ends; True if that parked the session.

        If nothing is left to do afterwards, the lease is given back in the same commit. That is a
        decision, which needs the head; the fact itself does not.
        """
        after = self._after(self._opening(draft.facts))
        parks = rest(after)
        if parks is not None:
            with suppress(HeadMoved):
                return await self._write(draft, self.log.state.head, after, parks)
        return await self._write(draft, None, None, None)

    async def decide(self, draft: Draft, rest: Rest) -> bool:
        """Append what was decided from all that was folded; True if that parked the session.

        `rest` says of the state afterwards whether nothing is left to do here: then the lease is
        given back in the same commit.
        """
        after = self._after(self._opening(draft.facts))
        return await self._write(draft, self.log.state.head, after, rest(after))

    async def park(self, rest: Park, problem: HoldfastError | None = None) -> None:
        """Give the lease back at the head that was folded."""
        await self._write(Draft(), self.log.state.head, self.log.state, rest, problem)

    def _opening(self, facts: Sequence[Event]) -> list[Event]:
        state, agent = self.log.state, self._agent
        if agent is None or not facts or state.run is None or self._is_introduced():
            return list(facts)
        changed = state.digest != agent.digest
        start = events.AgentStart(
            run=state.run.id,
            agent=agent.name,
            digest=agent.digest,
            worker=self.lease.holder,
            tools=agent.tool_digests if changed else None,
        )
        opening: list[Event] = [start]
        if state.digest and changed:
            opening.append(_difference(state.tools, agent.tool_digests))
        return opening + list(facts)

    def _is_introduced(self) -> bool:
        """Whether we did it already: the answer to that commit may have been lost."""
        since = self.log.events[self.lease.head :]
        return any(isinstance(e, events.AgentStart) and e.worker for _, _, e in since)

    def _after(self, facts: Sequence[Event]) -> State:
        head, now = self.log.state.head, self._store.now()
        return fold(
            [Stamped(head + n, now, fact) for n, fact in enumerate(facts, 1)], self.log.state
        )

    async def _write(
        self,
        draft: Draft,
        head: int | None,
        after: State | None,
        rest: Park | None,
        problem: HoldfastError | None = None,
    ) -> bool:
        facts, now = self._opening(draft.facts), draft.at or self._store.now()
        write = Write(
            self.lease.stream,
            [as_record(fact, now) for fact in facts],
            fence=self.lease,
            head=head,
            release=None if rest is None else Release(rest.due),
        )
        puts = [pending_put(record, 0, self.lease.stream) for record in draft.opened]
        puts += await self._changes(draft.changed)
        if after is not None:
            puts += self._listing(after, problem, now, parked=rest is not None)
        heads = await self._commit(write, puts)
        if facts:
            self._agent = None
        self._remember(puts)
        if heads[self.lease.stream] == self.log.state.head + len(facts):
            self.log.append(facts, now)
        else:
            await self.log.catch_up()  # somebody wrote in between
        if rest is not None:
            self.log.at = Slice((), self.log.state.head, None, rest.due)
        return rest is not None

    async def _commit(self, write: Write, puts: Sequence[Put]) -> dict[str, int]:
        writes, puts = self._outbox.also([write], puts)
        for attempt in range(ATTEMPTS):
            try:
                return await self._store.commit(writes, puts)
            except Unavailable as error:
                if attempt == ATTEMPTS - 1:
                    raise StoreError(
                        f"failed to save execution state: {error.message}",
                        code=error.code,
                        hint=error.hint,
                    ) from error
                await anyio.sleep(0.02 * 2**attempt)
        raise AssertionError("unreachable")

    async def _changes(self, changed: dict[str, Change]) -> list[Put]:
        puts = []
        for pending_id, change in changed.items():
            mine = self._opened.pop(pending_id, None)  # tried once; moved by others: look
            if mine is not None and isinstance(mine.data, bytes):
                version, record = mine.expect + 1, pending.decode(mine.data)
            else:
                entry = await self._store.get("pending", pending_id)
                if entry is None:
                    continue
                version, record = entry.version, pending.decode(entry.data)
                if not record.is_open:
                    # somebody settled it: their record moved the head, so look again
                    raise VersionMoved(f"{pending_id} is settled", entry=entry)
            puts.append(pending_put(change(record), version, self.lease.stream))
        return puts

    def pending(self, pending_id: str) -> PendingRecord | None:
        """The record of a call as this drive wrote it, if it did."""
        put = self._opened.get(pending_id)
        return None if put is None or not isinstance(put.data, bytes) else pending.decode(put.data)

    def _listing(
        self, after: State, problem: HoldfastError | None, now: int, *, parked: bool
    ) -> list[Put]:
        record = self._known.record
        state = after.status if problem is None else "waiting"
        told = None if problem is None else problem.code
        is_same = record.state == state and record.problem == told
        if is_same and (not parked or after.head == self.log.state.head):
            return []
        run = after.run.id if after.run is not None else record.task_id
        text = None if problem is None else problem.message
        return [
            self._known.put(
                state=state, problem=told, problem_text=text, updated_at=now, task_id=run
            )
        ]

    def _remember(self, puts: Sequence[Put]) -> None:
        for put in puts:
            if put.kind == "session":
                self._known = Known.put_as(put)
            elif put.state == "open":
                self._opened[put.key] = put

    def moved(self, error: VersionMoved) -> None:
        """Take in the present entry of the session, if that is what had moved."""
        entry = error.entry
        if entry is not None and entry.kind == "session":
            self._known = Known.of(entry)


def _difference(before: Any, now: Any) -> events.AgentChanged:
    return events.AgentChanged(
        added=sorted(set(now) - set(before)),
        removed=sorted(set(before) - set(now)),
        changed=sorted(name for name in set(now) & set(before) if now[name] != before[name]),
    )
