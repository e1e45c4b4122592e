"""A session as it stands: what is seen of it, and the result that users hold."""

from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Struct

from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.core.session.state import State
from perdure.core.session.usage import Usage, shown_usage, summed
from perdure.errors import Corrupt, NotFound, PerdureError, Refused
from perdure.runtime.agents.agents import Agents
from perdure.runtime.queues import nobody_drives
from perdure.runtime.records.cache import CachedSession
from perdure.runtime.records.entries import (
    SessionEntry,
    SessionRef,
    erased_as_not_found,
    open_calls,
)
from perdure.runtime.records.log import Log
from perdure.runtime.resources import Resources
from perdure.runtime.views import Result, Snapshot, error_of, instant, problem_of, stop_of
from perdure.store.base import Store


async def tree_usage(desk: Resources, known: SessionEntry, folded: State) -> Usage | None:
    """The usage of a session with its children, and theirs; None if it has started nobody.

    Children are named by its log, so that no list of all sessions must be read.
    """
    if not folded.children:
        return None
    usages, seen = [folded.usage], {known.record.id}
    left = [(known.record.id, child) for child in folded.children]
    while left:
        parent, name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        state = await _child(desk, SessionRef(known.record.tenant, name), parent)
        if state is not None:
            usages.append(state.usage)
            left += [(name, child) for child in state.children]
    return summed(usages)


async def _child(desk: Resources, address: SessionRef, parent: str) -> State | None:
    """The session of that name as it stands; None if it is not there, or somebody else's."""
    try:
        known = await desk.outside.known(address)
        if known.record.parent != parent:
            return None
        log = Log(desk.store, known.stream)
        with erased_as_not_found(known.record.id):
            await log.catch_up()
    except (NotFound, Corrupt):  # of a child; `doctor` tells of it
        return None
    return log.state


PATIENCE_MS: Final = 5_000  # what is due may wait so long for a worker that is there


class Snapshots(Struct, frozen=True):
    """Looks at sessions with what is known here."""

    desk: Resources
    agents: Agents
    has_worker: bool  # one runs here

    async def sight(self, known: SessionEntry, rested: CachedSession | None = None) -> Snapshot:
        """Everything about a session, from its open calls and its log, which we may have."""
        log = await read_log(self.desk.store, known) if rested is None else rested.log
        records: list[PendingRecord] = []
        if rested is not None and rested.waits is not None:
            records = [one.record for one in rested.waits.values()]
        elif log.state.open_calls:
            entries = open_calls(self.desk.store, known.stream)
            records = [pending.decode(entry.data) async for entry in entries]
        if len(records) > 1:
            place = {call.id: call.index for call in log.state.calls.values()}
            records.sort(key=lambda one: (one.time.created, place.get(one.call_id, 0), one.id))
        now = self.desk.store.now()
        over = log.state.run is not None and log.state.run.end is not None
        over = over and not log.state.needs_summary
        return Snapshot(
            known.record,
            log.state,
            tuple(records),
            tuple([self.desk.pending_call(one) for one in records]),
            log.at.holder,
            None if log.at.holder else log.at.due,
            now,
            None if over else await self._problem(known, log, records, now),
            await tree_usage(self.desk, known, log.state) if log.state.children else None,
        )

    async def _problem(
        self, known: SessionEntry, log: Log, records: list[PendingRecord], now: int
    ) -> PerdureError | None:
        record = known.record
        if record.problem is not None:
            return problem_of(record.problem, record.problem_text)
        for one in records:
            if one.problem is not None:
                return problem_of(one.problem)
        if log.at.holder is not None or log.at.due is None or log.at.due > now:
            return None
        if self.agents.names() and self.agents.find(record.agent) is None:
            return PerdureError(
                f"agent {record.agent!r} is not known here",
                code="AGENT_UNKNOWN",
                hint="start a worker that has it",
            )
        is_ours = self.has_worker and self.agents.find(record.agent) is not None
        if is_ours and now - log.at.due < PATIENCE_MS:
            return None  # the worker here is about to take it
        return await nobody_drives(self.desk.store, record)

    def as_result(self, sight: Snapshot) -> Result[Any]:
        """What was seen, as users hold it."""
        record, folded = sight.record, sight.folded
        run = folded.run
        output = None if run is None or run.output is None else msgspec.json.decode(run.output)
        agent = self.agents.find(record.agent)
        if output is not None and agent is not None and not agent.output.is_text:
            with suppress(Refused):  # the type has changed since: the stored value is shown
                output = agent.output.load(output)
        return Result(
            session_id=record.id,
            tenant=record.tenant,
            agent=record.agent,
            state=sight.state,
            output=output,
            pending=sight.calls,
            stop=stop_of(folded),
            error=error_of(folded),
            problem=sight.problem,
            usage=shown_usage(folded.usage),
            tree_usage=shown_usage(folded.usage if sight.tree is None else sight.tree),
            todos=folded.todos,
            metadata=dict(folded.metadata),
            parent=record.parent,
            seq=folded.head,
            created_at=instant(folded.created_at or record.created_at),
            updated_at=instant(folded.updated_at or record.updated_at),
            task_id=None if run is None else run.id,
            queue=record.queue,
            _sight=sight,
        )


async def read_log(store: Store, known: SessionEntry) -> Log:
    """The log of a session. Raises NotFound."""
    log = Log(store, known.stream)
    with erased_as_not_found(known.record.id):
        await log.catch_up()
    return log
