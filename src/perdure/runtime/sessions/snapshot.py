"""Snapshots of sessions, and the results that users hold."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct, field

from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session import budgets
from perdure.core.session import naming as index
from perdure.core.session.budgets import USAGE, UsageRecord, usage_below
from perdure.core.session.naming import SessionRecord
from perdure.core.session.state import State
from perdure.core.session.usage import Amounts, sum_usage
from perdure.errors import PerdureError, Refused
from perdure.runtime.agents.agents import Agents
from perdure.runtime.diagnosis.agents import call_problem, find_agent
from perdure.runtime.diagnosis.calls import diagnosed, narrowed
from perdure.runtime.diagnosis.reasons import OVERDUE, stored_reason
from perdure.runtime.queues import held_back_problem, no_worker_problem
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
from perdure.runtime.views import Snapshot, session_view
from perdure.store.base import Entry
from perdure.views.base import bind
from perdure.views.calls import PendingCall
from perdure.views.sessions import Result

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
        if len(records) > 1:
            order = {call.id: call.index for call in log.state.calls.values()}
            records.sort(key=lambda call: (call.time.created, order.get(call.call_id, 0), call.id))
        below: list[PendingRecord] = []
        if log.state.children.active:
            below = await self._calls_below(entry.record.tenant, log.state)
        now, agents = self.resources.store.now(), self.agents
        problems = [call_problem(agents, record, now) for record in (*records, *below)]
        own = [item for item in problems[: len(records)] if item and item.code != OVERDUE]
        is_over = run is not None and run.end is not None and not log.state.is_summary_due
        return Snapshot(
            entry.record,
            log.state,
            tuple(records),
            tuple(map(self._call, (*records, *below), problems)),
            log.slice.holder,
            None if log.slice.holder else log.slice.due,
            now,
            None if is_over else await self._problem(entry, log, own[:1], has_worker=has_worker),
            await self._usage(entry.record, log.state, guess) if log.state.children else None,
            agents.find(entry.record.agent) is not None,
        )

    def _call(self, record: PendingRecord, problem: PerdureError | None) -> PendingCall:
        return diagnosed(self.resources.pending_call(narrowed(record, problem)), problem)

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
    ) -> Amounts:
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

    async def _tree_usage(self, record: SessionRecord, state: State) -> Amounts:
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
        return list(tree.all)

    async def _problem(
        self,
        entry: SessionEntry,
        log: FoldedLog,
        of_calls: Sequence[PerdureError],
        *,
        has_worker: bool,
    ) -> PerdureError | None:
        record, now, agents = entry.record, self.resources.store.now(), self.agents
        stored = stored_reason(record.problem, record.problem_text)
        if stored is not None or of_calls:
            return stored or of_calls[0]
        store, due, since = self.resources.store, log.slice.due, log.state.updated_at
        held = await held_back_problem(store, log.slice, record.queue, since or record.updated_at)
        if held is not None or log.slice.holder is not None or due is None or due > now:
            return held
        agent = find_agent(agents.by_name, record.agent)
        if isinstance(agent, PerdureError):
            return agent
        if agent is not None and has_worker and now - due < CLAIM_MS:
            return None  # the worker here is about to claim it
        return await no_worker_problem(store, record)

    def as_result(self, snapshot: Snapshot) -> Result[Any]:
        """Return a snapshot as the public value."""
        result = session_view(snapshot)
        agent = self.agents.find(snapshot.record.agent)
        output = None
        if result.output_json is not None and agent is not None and not agent.output.is_text:
            with suppress(Refused):  # the type has changed since: return the stored value
                output = agent.output.load(result.output_json)
        return bind(result, _output=output, _snapshot=snapshot)


def _usage_record(entry: Entry) -> UsageRecord:
    return budgets.decode(entry.data, UsageRecord)
