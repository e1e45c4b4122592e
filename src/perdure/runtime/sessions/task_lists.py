"""List of tasks of every kind, newest first, with the number of all that match."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from perdure.core.session.child_tasks import ChildTask
from perdure.core.session.children import TASK_STATUSES
from perdure.errors import Corrupt
from perdure.runtime.inbox.commits import ChildEntry
from perdure.runtime.inbox.sessions import SessionInbox
from perdure.runtime.records.entries import SessionRef
from perdure.store.base import Entry, Store
from perdure.store.shared.all_pages import all_entries
from perdure.tasks.entries import readable
from perdure.tasks.listing import Source, TaskLists
from perdure.tasks.model import record
from perdure.tasks.model.record import ListState, TaskRecord
from perdure.tasks.model.status import Status
from perdure.tasks.values import TaskFilters, check_part, from_mapping, invalid
from perdure.views.cursors import decode_cursor, encode_cursor

ListedTask = TaskRecord | ChildTask

STATUSES: Final = tuple(dict.fromkeys([*map(str, Status), *TASK_STATUSES]))
MAX_PAGE: Final = 1_000
# What shared tasks and background agents call the same thing.
_SAME: Final = {"failed": "error"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQuery(TaskFilters):
    """Part of the list of all tasks; `cursor` is the `next` of the page before it."""

    parent: str | None = None  # session that launched the background agents
    cursor: str | None = None
    limit: int | None = 100

    @property
    def has_shared(self) -> bool:
        """True if shared tasks can match."""
        is_status = self.status is None or self.status in set(Status)
        return self.kind in (None, "sandbox") and self.parent is None and is_status

    @property
    def has_background(self) -> bool:
        """True if background agents can match."""
        is_status = self.status is None or self.child_status in TASK_STATUSES
        return self.kind in (None, "background") and self.owner is None and is_status

    @property
    def child_status(self) -> str | None:
        """The status as background agents have it."""
        return None if self.status is None else _SAME.get(self.status, self.status)


class TaskListPage(NamedTuple):
    """Page of the list of all tasks, and the cursor of the next one."""

    tasks: list[ListedTask]
    next: str | None


def check_query(filters: Mapping[str, Any]) -> TaskQuery:
    """Return a valid query from its fields; None leaves one out. Raises Refused."""
    fields = {name: value for name, value in filters.items() if value is not None}
    query = from_mapping(fields, TaskQuery, "filters")
    if query.status is not None and query.status not in STATUSES:
        raise invalid(f"{str(query.status)[:60]!a} is not a status: use {', '.join(STATUSES)}")
    return check_part(query)


class AllTasks:
    """Tasks of one tenant, or of all tenants (None): shared ones and background agents."""

    def __init__(self, store: Store, sessions: SessionInbox) -> None:
        self._store = store
        self._lists = TaskLists(store)
        self._sessions = sessions

    async def page(self, tenant: str | None, query: TaskQuery) -> TaskListPage:
        """Return the tasks that match, newest first.

        Raises NotFound if there is no parent, Refused for a cursor that no page has returned.
        """
        position = decode_cursor(query.cursor)
        start = query.start if position is None else position[1]
        limit = MAX_PAGE if query.limit is None else min(query.limit, MAX_PAGE)
        sources = await self._lists.shared(tenant, query) if query.has_shared else []
        if query.has_background:
            sources += await self._background(tenant, query)
        entries = await self._lists.page(sources, query.offset, limit + 1 if limit else 0, start)
        has_more = len(entries) > limit
        tasks = [task for entry in entries[:limit] if (task := _readable(entry)) is not None]
        following = encode_cursor((0, entries[limit - 1].key, "")) if has_more else None
        return TaskListPage(tasks, following)

    async def count(self, tenant: str | None, query: TaskQuery) -> int:
        """Return the number of all tasks that match, whatever the offset and limit."""
        number = await self._lists.count_shared(tenant, query) if query.has_shared else 0
        if query.has_background and query.parent is not None:
            kind, state, stream = await self._of_parent(tenant, query)
            matches = all_entries(self._store, kind, stream=stream, state=state)
            number += len([entry async for entry in matches])
        elif query.has_background:
            number += sum((await self._states(tenant, query)).values())
        return number

    async def _background(self, tenant: str | None, query: TaskQuery) -> Sequence[Source]:
        if query.parent is not None:
            return [await self._of_parent(tenant, query)]
        if tenant is None and query.status is None:
            return [Source(record.BACKGROUND)]
        return [Source(record.BACKGROUND, state) for state in await self._states(tenant, query)]

    async def _of_parent(self, tenant: str | None, query: TaskQuery) -> Source:
        """Return the entries of the parent's stream that match."""
        ref = SessionRef(tenant or "", query.parent or "")
        stream = (await self._sessions.session_entry(ref)).stream
        status = query.child_status
        state = None if status is None else ListState("background", ref.tenant, status).text
        return Source(record.BACKGROUND, state, stream)

    async def _states(self, tenant: str | None, query: TaskQuery) -> dict[str, int]:
        """Return the states of the background agents that match, each with their number."""
        status = query.child_status
        return await self._lists.states(
            record.BACKGROUND, tenant, lambda state: status in (None, state.status)
        )


def _readable(entry: Entry) -> ListedTask | None:
    """Return the task of a list entry; None if it is damaged, which `doctor` reports."""
    if entry.kind != record.BACKGROUND:
        return readable(entry)
    try:
        return ChildEntry.decode(entry).task
    except Corrupt:
        return None
