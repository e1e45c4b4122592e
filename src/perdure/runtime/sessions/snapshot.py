"""Snapshots of sessions, and the results that users hold."""

from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Struct

from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session import budgets
from perdure.core.session import naming as index
from perdure.core.session.budgets import USAGE, UsageRecord, usage_below
from perdure.core.session.naming import SessionRecord
from perdure.core.session.state import State
from perdure.core.session.usage import Usage, display_usage, sum_usage
from perdure.errors import PerdureError, Refused
from perdure.runtime.agents.agents import Agents
from perdure.runtime.queues import no_worker_problem
from perdure.runtime.records.cache import CachedSession
from perdure.runtime.records.entries import (
    SessionEntry,
    all_readable,
    open_calls,
)
from perdure.runtime.records.log import Log, read_log
from perdure.runtime.resources import Resources
from perdure.runtime.sessions.command_checks import with_problem
from perdure.runtime.views import Result, Snapshot, early_stop, instant, stored_problem
from perdure.store.base import Entry

CLAIM_MS: Final = 5_000  # a due session may wait this long for the worker of this process


class Snapshots(Struct, frozen=True):
    """Takes snapshots of sessions with the agents that are known here."""

    resources: Resources
    agents: Agents

    async def take(
        self, entry: SessionEntry, cached: CachedSession | None, *, has_worker: bool
    ) -> Snapshot:
        """Return everything about a session, from its log and its open calls."""
        log = await read_log(self.resources.store, entry) if cached is None else cached.log
        run = log.state.run
        records: list[PendingRecord] = []
        if cached is not None and cached.pending_entries is not None:
            records = [pending_entry.record for pending_entry in cached.pending_entries.values()]
        elif log.state.pending_ids:
            calls = open_calls(self.resources.store, entry.stream)
            records = [pending.decode(call.data) async for call in calls]
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
            tuple([self.resources.pending_call(call) for call in (*records, *below)]),
            log.slice.holder,
            None if log.slice.holder else log.slice.due,
            now,
            None if is_over else await self._problem(entry, log, records, has_worker=has_worker),
            await self._tree_usage(entry.record, log.state) if log.state.children else None,
        )

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
        records: list[PendingRecord] = []
        remaining = [(child.session_id, child.agent) for child in state.children.active.values()]
        while remaining:
            session_id, agent = remaining.pop()
            stream = index.session_stream(tenant, session_id)
            calls = open_calls(self.resources.store, stream)
            records += [pending.decode(call.data) async for call in calls]
            ready = self.agents.find(agent)
            if ready is None or ready.sub_agents:
                tasks = self.resources.child_inbox.tasks_of(stream)
                below = [item.task async for item in tasks if item.task.is_active]
                remaining += [(t.session_id, t.agent) for t in below if t.stream != stream]
        return [with_problem(self.agents, record) for record in records]

    async def _problem(
        self, entry: SessionEntry, log: Log, records: list[PendingRecord], *, has_worker: bool
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
        if is_ours and now - log.slice.due < CLAIM_MS:
            return None  # the worker here is about to claim it
        return await no_worker_problem(self.resources.store, record)

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
