"""Lists of tasks, newest first, by index entries; and the number of all that match."""

from collections.abc import AsyncIterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import product
from typing import Final

from perdure.core.tasks import record
from perdure.core.tasks.record import KINDS, ListState, TaskRecord
from perdure.core.tasks.status import Status
from perdure.runtime.records.entries import all_entries
from perdure.runtime.tasks.entries import readable
from perdure.runtime.tasks.values import TaskFilters
from perdure.store.base import Entry, Store

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
        rows: list[TaskRecord] = []
        position = 0
        async for entry in self._entries(tenant, filters, min(end or _PAGE, _PAGE)):
            position += 1
            if position > filters.offset:
                task = readable(entry)
                if task is not None:
                    rows.append(task.record)
            if end is not None and position >= end:
                break
        return rows

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
        has_filter = filters.status or filters.owner is not None or filters.kind
        if tenant is None and not has_filter:
            entries = self._of_state(record.BY_STATUS, None, page)
        else:
            kind = record.BY_STATUS if filters.owner is None else record.BY_OWNER
            entries = self._merged(kind, await self._states(tenant, filters), page)
        async for entry in entries:
            yield entry

    async def _states(self, tenant: str | None, filters: TaskFilters) -> list[str]:
        tenants = [tenant] if tenant is not None else await self._tenants()
        kinds = [filters.kind] if filters.kind else list(KINDS)
        statuses = [filters.status] if filters.status else [str(status) for status in Status]
        names = product(kinds, tenants, statuses)
        return [ListState(kind, name, status, filters.owner).text for kind, name, status in names]

    async def _tenants(self) -> list[str]:
        return [entry.key[1:] async for entry in all_entries(self._store, record.TENANT)]

    async def _of_state(self, kind: str, state: str | None, page: int) -> AsyncIterator[Entry]:
        after: str | None = None
        while True:
            result = await self._store.find(kind, state=state, after=after, limit=page)
            for entry in result.entries:
                yield entry
            after = result.next
            if after is None:
                return

    async def _merged(self, kind: str, states: Sequence[str], page: int) -> AsyncIterator[Entry]:
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
