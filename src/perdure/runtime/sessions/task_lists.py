"""Lists of tasks of every kind, newest first, with the number of all that match."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from perdure.core.session.child_tasks import ChildTask
from perdure.core.session.children import TASK_STATUSES
from perdure.errors import Corrupt
from perdure.runtime.inbox.commits import ChildEntry
from perdure.runtime.inbox.sessions import SessionInbox
from perdure.runtime.records.entries import SessionRef
from perdure.store.base import Entry, Store
from perdure.store.shared.all_pages import all_entries
from perdure.tasks.model import record
from perdure.tasks.model.record import ListState, TaskRecord
from perdure.tasks.model.status import Status
from perdure.tasks.registry import Registry
from perdure.tasks.values import (
    TaskFilters,
    check_count,
    check_kind,
    check_owner_filter,
    from_mapping,
    invalid,
)

ListedTask = TaskRecord | ChildTask

STATUSES: Final = tuple(dict.fromkeys([*map(str, Status), *TASK_STATUSES]))
MAX_PAGE: Final = 1_000
# What shared tasks and background agents call the same thing.
_SAME: Final = {"failed": "error"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQuery:
    """Part of the list of all tasks: newest first, from `offset` on, at most `limit`."""

    kind: str | None = None
    status: str | None = None
    owner: str | None = None
    parent: str | None = None  # session that launched the background agents
    limit: int = 100
    offset: int = 0

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

    def filters(self, end: int) -> TaskFilters:
        """Return the filters of shared tasks, up to a position."""
        return TaskFilters(status=self.status, owner=self.owner, kind=self.kind, limit=end)


def check_query(filters: Mapping[str, Any]) -> TaskQuery:
    """Return a valid query from its fields; None leaves one out. Raises Refused."""
    fields = {name: value for name, value in filters.items() if value is not None}
    query = from_mapping(fields, TaskQuery, "filters")
    if query.status is not None and query.status not in STATUSES:
        raise invalid(f"{str(query.status)[:60]!a} is not a status: use {', '.join(STATUSES)}")
    if query.kind is not None:
        check_kind(query.kind)
    if query.owner is not None:
        check_owner_filter(query.owner)
    check_count(query.limit, "limit")
    check_count(query.offset, "offset")
    return query


class AllTasks:
    """Tasks of one tenant, or of all tenants (None): shared ones and background agents."""

    def __init__(self, store: Store, registry: Registry, sessions: SessionInbox) -> None:
        self._store = store
        self._registry = registry
        self._sessions = sessions

    async def page(self, tenant: str | None, query: TaskQuery) -> list[ListedTask]:
        """Return the tasks that match, newest first. Raises NotFound if there is no parent."""
        end = query.offset + min(query.limit, MAX_PAGE)
        if query.limit == 0:
            return []
        rows: list[tuple[str, ListedTask]] = []
        if query.has_shared:
            shared = await self._registry.list(tenant, query.filters(end))
            rows += [(record.list_key(row), row) for row in shared]
        if query.has_background:
            entries = await self._background(tenant, query, end)
            rows += [(entry.key, task) for entry in entries if (task := _readable(entry))]
        rows.sort(key=lambda row: row[0])
        return [task for _, task in rows[query.offset : end]]

    async def count(self, tenant: str | None, query: TaskQuery) -> int:
        """Return the number of all tasks that match, whatever the offset and limit."""
        number = 0
        if query.has_shared:
            number += await self._registry.count(tenant, query.filters(0))
        if query.has_background and query.parent is not None:
            stream, state = await self._of_parent(tenant, query)
            matches = all_entries(self._store, record.BACKGROUND, stream=stream, state=state)
            number += len([entry async for entry in matches])
        elif query.has_background:
            number += sum((await self._states(tenant, query.child_status)).values())
        return number

    async def _background(self, tenant: str | None, query: TaskQuery, end: int) -> Sequence[Entry]:
        if query.parent is not None:
            stream, state = await self._of_parent(tenant, query)
            return await self._first(end, state, stream)
        if tenant is None and query.status is None:
            return await self._first(end, None)
        states = await self._states(tenant, query.child_status)
        pages = await asyncio.gather(*(self._first(end, state) for state in states))
        return [entry for page in pages for entry in page]

    async def _first(self, end: int, state: str | None, stream: str | None = None) -> list[Entry]:
        """Return the first entries of a state, or of any."""
        entries: list[Entry] = []
        after: str | None = None
        while len(entries) < end:
            limit = min(end - len(entries), MAX_PAGE)
            page = await self._store.find(
                record.BACKGROUND, state=state, stream=stream, after=after, limit=limit
            )
            entries += page.entries
            after = page.next
            if after is None:
                break
        return entries

    async def _of_parent(self, tenant: str | None, query: TaskQuery) -> tuple[str, str | None]:
        """Return the stream of the parent, and the state of the entries that match."""
        ref = SessionRef(tenant or "", query.parent or "")
        stream = (await self._sessions.session_entry(ref)).stream
        status = query.child_status
        state = None if status is None else ListState("background", ref.tenant, status).text
        return stream, state

    async def _states(self, tenant: str | None, status: str | None) -> dict[str, int]:
        """Return the states of the background agents that match, each with their number."""
        census = await self._store.census([record.BACKGROUND])
        states = {text: number for (_, text), number in census.entries.items()}
        return {
            text: number
            for text, number in states.items()
            if tenant in (None, (state := ListState.parse(text)).tenant)
            and status in (None, state.status)
        }


def _readable(entry: Entry) -> ChildTask | None:
    """Return the task of a list entry; None if it is damaged, which `doctor` reports."""
    try:
        return ChildEntry.decode(entry).task
    except Corrupt:
        return None
