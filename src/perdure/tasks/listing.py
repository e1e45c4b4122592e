"""Lists of tasks, newest first, by index entries; and the number of all that match."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from perdure.store.base import Entry, Store
from perdure.store.shared.all_pages import all_entries
from perdure.tasks.entries import readable
from perdure.tasks.model import record
from perdure.tasks.model.record import ListState, TaskRecord
from perdure.tasks.model.status import Status
from perdure.tasks.values import TaskFilters

_PAGE: Final = 500  # the most entries per read


class TaskLists:
    """Tasks of one tenant, or of all tenants (None)."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def page(self, tenant: str | None, filters: TaskFilters) -> list[TaskRecord]:
        """Return the tasks that match, newest first, from the offset on."""
        end = None if filters.limit is None else filters.offset + filters.limit
        if end == 0 or filters.limit == 0:
            return []
        if end is not None and end <= _PAGE:
            return await self._short_page(tenant, filters, end)
        rows: list[TaskRecord] = []
        position = 0
        async for entry in self._entries(tenant, filters, min(end or _PAGE, _PAGE)):
            position += 1
            if position > filters.offset:
                row = readable(entry)
                if row is not None:
                    rows.append(row)
            if end is not None and position >= end:
                break
        return rows

    async def _short_page(
        self, tenant: str | None, filters: TaskFilters, end: int
    ) -> list[TaskRecord]:
        """Return a page near the beginning, with one read per state."""
        kind, states = await self._query(tenant, filters)
        reads = [self._store.find(kind, state=state, limit=end) for state in states]
        if len(reads) == 1:
            entries = list((await reads[0]).entries)
        else:
            pages = await asyncio.gather(*reads)
            entries = [entry for page in pages for entry in page.entries]
            entries.sort(key=lambda entry: entry.key)
        rows = map(readable, entries[filters.offset : end])
        return [row for row in rows if row is not None]

    async def count(self, tenant: str | None, filters: TaskFilters) -> int:
        """Return the number of all tasks that match, whatever the offset and limit."""
        kind = record.BY_STATUS if filters.owner is None else record.BY_OWNER
        census = await self._store.census([kind])
        states = [(ListState.parse(text), n) for (_, text), n in census.entries.items()]
        return sum(
            number
            for state, number in states
            if (tenant is None or state.tenant == tenant)
            and filters.status in (None, state.status)
            and filters.kind in (None, state.kind)
            and filters.owner == state.owner
        )

    async def _entries(
        self, tenant: str | None, filters: TaskFilters, page: int
    ) -> AsyncIterator[Entry]:
        kind, states = await self._query(tenant, filters)
        async for entry in self._merged(kind, states, page):
            yield entry

    async def _query(
        self, tenant: str | None, filters: TaskFilters
    ) -> tuple[str, Sequence[str | None]]:
        """Return the kind and the states of the entries that match; None is any state."""
        has_filter = filters.status or filters.owner is not None or filters.kind
        if tenant is None and not has_filter:
            return record.BY_STATUS, [None]
        kind = record.BY_STATUS if filters.owner is None else record.BY_OWNER
        return kind, await self._states(tenant, filters)

    async def _states(self, tenant: str | None, filters: TaskFilters) -> list[str]:
        statuses = [filters.status] if filters.status else [str(status) for status in Status]
        return [
            ListState(kind, name, status, filters.owner).text
            for name, kind in await self._groups(tenant)
            if filters.kind in (None, kind)
            for status in statuses
        ]

    async def _groups(self, tenant: str | None) -> list[tuple[str, str]]:
        """Return a tenant, or all that have tasks, with the kinds of these."""
        if tenant is not None:
            return [(tenant, record.LISTED)]
        entries = all_entries(self._store, record.GROUP)
        return [record.parse_group_key(entry.key) async for entry in entries]

    async def _of_state(self, kind: str, state: str | None, page: int) -> AsyncIterator[Entry]:
        after: str | None = None
        while True:
            result = await self._store.find(kind, state=state, after=after, limit=page)
            for entry in result.entries:
                yield entry
            after = result.next
            if after is None:
                return

    async def _merged(
        self, kind: str, states: Sequence[str | None], page: int
    ) -> AsyncIterator[Entry]:
        """Yield the entries of several states in the order of their keys."""
        if len(states) == 1:
            async for entry in self._of_state(kind, states[0], page):
                yield entry
            return
        heads: list[tuple[str, int, Entry, AsyncIterator[Entry]]] = []
        for number, state in enumerate(states):
            entries = self._of_state(kind, state, page)
            first = await anext(entries, None)
            if first is not None:
                heads.append((first.key, number, first, entries))
        heapify(heads)
        while heads:
            _, number, entry, entries = heappop(heads)
            yield entry
            following = await anext(entries, None)
            if following is not None:
                heappush(heads, (following.key, number, following, entries))
