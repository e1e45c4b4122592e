"""Open calls of a session and of the background agents below it: which of them wait for people."""

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from perdure.core.pending import record as pending
from perdure.core.pending.record import APPROVER_KINDS, PendingRecord
from perdure.core.session.child_tasks import ChildTask
from perdure.runtime.inbox.children import ChildInbox
from perdure.runtime.inbox.sessions import SessionInbox
from perdure.runtime.records.entries import SessionRef, all_readable
from perdure.store.base import Entry, Store

MayLaunch = Callable[[str], bool]  # whether the agent of a name may have launched others
# Kinds of calls with which a session waits for nothing but people, itself or through its children.
_FOR_PEOPLE: Final = APPROVER_KINDS | {"child"}
_FROM_OUTSIDE: Final = APPROVER_KINDS | {"tool"}


class TreeCalls(Struct, frozen=True):
    """Open calls of a tree of sessions, one tuple for each session whose run has not ended."""

    sessions: tuple[tuple[PendingRecord, ...], ...] = ()

    @property
    def all(self) -> tuple[PendingRecord, ...]:
        """All of them."""
        return tuple(record for calls in self.sessions for record in calls)

    @property
    def for_people(self) -> tuple[PendingRecord, ...]:
        """The calls that wait for an approver, oldest first."""
        return tuple(record for record in self.from_outside if record.kind in APPROVER_KINDS)

    @property
    def from_outside(self) -> tuple[PendingRecord, ...]:
        """The calls that wait for an approver or a submitter, oldest first."""
        records = [record for record in self.all if record.kind in _FROM_OUTSIDE]
        return tuple(sorted(records, key=lambda record: (record.time.created, record.id)))

    @property
    def is_left_to_people(self) -> bool:
        """True if nothing in the tree moves before an approver decides."""
        return bool(self.for_people) and all(
            calls and all(record.kind in _FOR_PEOPLE for record in calls) for calls in self.sessions
        )


def _launches(_: str) -> bool:
    """Return True: without its code, any agent may have launched others."""
    return True


class OpenTrees(Struct, frozen=True):
    """Reads the open calls of trees of sessions."""

    store: Store
    sessions: SessionInbox
    children: ChildInbox

    async def of_task(self, task: ChildTask, may_launch: MayLaunch = _launches) -> TreeCalls:
        """Return the open calls of a background agent and of those below it."""
        name = (SessionRef(task.tenant, task.session_id), task.agent)
        is_open = task.is_active or may_launch(task.agent)
        return await self.below([name] if is_open else [], may_launch)

    async def below(
        self, names: Iterable[tuple[SessionRef, str]], may_launch: MayLaunch = _launches
    ) -> TreeCalls:
        """Return the open calls of sessions, with their agents, and of all active ones below."""
        sessions: list[tuple[PendingRecord, ...]] = []
        remaining = [*names]
        while remaining:
            ref, agent = remaining.pop()
            entry = await self.sessions.find(ref)
            if entry is None:  # deleted meanwhile
                continue
            calls = all_readable(self.store, "pending", _decode, state="open", stream=entry.stream)
            sessions.append(tuple([record async for record in calls]))
            if may_launch(agent):
                items = [item.task async for item in self.children.tasks_of(entry.stream)]
                remaining += [
                    (SessionRef(task.tenant, task.session_id), task.agent)
                    for task in items
                    if task.is_active and task.stream != entry.stream
                ]
        return TreeCalls(tuple(sessions))


def _decode(entry: Entry) -> PendingRecord:
    return pending.decode(entry.data)
