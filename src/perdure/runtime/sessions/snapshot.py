"""Snapshots of sessions, and the results that users hold."""

from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session import budgets
from perdure.core.session import naming as index
from perdure.core.session.budgets import USAGE, UsageRecord, usage_below
from perdure.core.session.naming import SUSPECT_FROM_TRY, SessionRecord
from perdure.core.session.state import State
from perdure.core.session.usage import Usage, display_usage, sum_usage
from perdure.errors import PerdureError, Refused
from perdure.runtime.agents.agents import Agents
from perdure.runtime.queues import no_worker_problem
from perdure.runtime.records.cache import CachedSession
from perdure.runtime.records.entries import (
    SessionEntry,
    SessionRef,
    all_readable,
    erased_as_not_found,
    open_calls,
)
from perdure.runtime.records.folded import FoldedLog, FoldedLogs
from perdure.runtime.resources import Resources
from perdure.runtime.sessions.command_checks import with_problem
from perdure.runtime.views import Result, Snapshot, early_stop, instant, stored_problem
from perdure.store.base import Entry

CLAIM_MS: Final = 5_000  # a due session may wait this long for the worker of this process


class Snapshots(Struct, frozen=True):
    """Takes snapshots of sessions with the agents that are known here."""

    resources: Resources
    agents: Agents
    folded: FoldedLogs = field(default_factory=FoldedLogs)

    async def take(
        self, entry: SessionEntry, cached: CachedSession | None, *, has_worker: bool
    ) -> Snapshot:
        """Return everything about a session, from its log and its open calls."""
        guess = self.resources.cache.get(entry.stream) if cached is None else cached
        log = await self._log(entry, guess, is_current=cached is not None)
        run = log.state.run
        records: list[PendingRecord] = []
        if cached is not None and cached.pending_entries is not None:
            records = [pending_entry.record for pending_entry in cached.pending_entries.values()]
        elif log.state.pending_ids:
            calls = open_calls(self.resources.store, entry.stream)
            records = [pending.decode(call.data) async for call in calls]
        if records:
            records = [with_problem(self.agents, record) for record in records]
        if len(records) > 1:
            order = {call.id: call.index for call in log.state.calls.values()}
            records.sort(key=lambda call: (call.time.created, order.get(call.call_id, 0), call.id))
        below: list[PendingRecord] = []
        if log.state.children.active:
            below = await self._calls_below(entry.record.tenant, log.state)
        now = self.resources.store.now()
        is_over = run is not None and run.end is not None and not log.state.is_summary_due
        return Snapshot(
            entry.record,
            log.state,
            tuple(records),
            tuple(map(self.resources.pending_call, (*records, *below))),
            log.slice.holder,
            None if log.slice.holder else log.slice.due,
            now,
            None if is_over else await self._problem(entry, log, records, has_worker=has_worker),
            await self._usage(entry.record, log.state, guess) if log.state.children else None,
        )

    async def _log(
        self, entry: SessionEntry, guess: CachedSession | None, *, is_current: bool
    ) -> FoldedLog:
        """Return the folded log of a session: the cached one, if it has not grown since then."""
        if guess is not None and is_current:
            return FoldedLog(guess.log.state, guess.log.slice)
        if guess is not None:
            with erased_as_not_found(entry.record.id):
                position = await self.resources.store.read(entry.stream, limit=0)
            if position.head == guess.log.state.head:
                return FoldedLog(guess.log.state, position)
        return await self.folded.read(self.resources.store, entry)

    async def _usage(
        self, record: SessionRecord, state: State, guess: CachedSession | None
    ) -> Usage:
        """Return the usage of a session with everything below it.

        While no child runs, and none launches others, it changes only with the session's own log:
        then it is kept with the cached session.
        """
        is_settled = not state.children.active and not any(
            self.agents.may_launch(name)
            for name in {child.agent for child in state.children.values()}
        )
        is_cached = is_settled and guess is not None and guess.log.state.head == state.head
        if is_cached and guess is not None and guess.tree_usage is not None:
            return guess.tree_usage
        usage = await self._tree_usage(record, state)
        if is_cached and guess is not None:
            guess.tree_usage = usage
        return usage

    async def _tree_usage(self, record: SessionRecord, state: State) -> Usage:
        """Return the usage of a session with everything below it."""
        root = index.session_key(record.tenant, (*record.ancestry, record.id)[0])
        records = [
            item
            async for item in all_readable(self.resources.store, USAGE, _usage_record, state=root)
        ]
        return sum_usage((state.usage, *usage_below(records, record.id, len(record.ancestry))))

    async def _calls_below(self, tenant: str, state: State) -> list[PendingRecord]:
        """Return the open calls of the active background agents below a session."""
        names = [
            (SessionRef(tenant, child.session_id), child.agent)
            for child in state.children.active.values()
        ]
        tree = await self.resources.open_trees.below(names, self.agents.may_launch)
        return [with_problem(self.agents, record) for record in tree.all]

    async def _problem(
        self, entry: SessionEntry, log: FoldedLog, records: list[PendingRecord], *, has_worker: bool
    ) -> PerdureError | None:
        record, now = entry.record, self.resources.store.now()
        if record.problem is not None:
            return stored_problem(record.problem, record.problem_text)
        for call in records:
            if call.problem is not None:
                return stored_problem(call.problem)
        if log.slice.holder is not None or log.slice.due is None or log.slice.due > now:
            return None
        if self.agents.names() and self.agents.find(record.agent) is None:
            return PerdureError(
                f"agent {record.agent!r} is not known here",
                code="AGENT_UNKNOWN",
                hint="start a worker that has it",
            )
        is_ours = has_worker and self.agents.find(record.agent) is not None
        if is_ours and log.slice.tries + 1 < SUSPECT_FROM_TRY and now - log.slice.due < CLAIM_MS:
            return None  # the worker here is about to claim it
        return await no_worker_problem(self.resources.store, record, log.slice.tries)

    def as_result(self, snapshot: Snapshot) -> Result[Any]:
        """Return a snapshot as the public value."""
        record, state = snapshot.record, snapshot.log_state
        run = state.run
        output = None if run is None or run.output is None else msgspec.json.decode(run.output)
        agent = self.agents.find(record.agent)
        if output is not None and agent is not None and not agent.output.is_text:
            with suppress(Refused):  # the type has changed since: return the stored value
                output = agent.output.load(output)
        usage = display_usage(state.usage)
        return Result(
            session_id=record.id,
            tenant=record.tenant,
            agent=record.agent,
            state=snapshot.state,
            output=output,
            pending=snapshot.calls,
            stop=early_stop(state),
            error=snapshot.error,
            problem=snapshot.problem,
            usage=usage,
            tree_usage=usage if snapshot.tree is None else display_usage(snapshot.tree),
            todos=state.todos,
            metadata=dict(state.metadata),
            parent=record.parent,
            seq=state.head,
            created_at=instant(state.created_at or record.created_at),
            updated_at=instant(state.updated_at or record.updated_at),
            task_id=None if run is None else run.id,
            queue=record.queue,
            _snapshot=snapshot,
        )


def _usage_record(entry: Entry) -> UsageRecord:
    return budgets.decode(entry.data, UsageRecord)
