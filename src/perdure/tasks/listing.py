"""Lists of tasks of every kind, newest first, merged from index entries."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from perdure.store.base import Entry, Store
from perdure.store.shared.all_pages import all_entries
from perdure.store.shared.paging import page_cursor
from perdure.tasks.model import record
from perdure.tasks.model.record import ListState
from perdure.tasks.model.status import Status
from perdure.tasks.values import TaskFilters

_PAGE: Final = 500  # the most entries per read
_SPARE: Final = 10  # entries that are read of each source beyond its share of a page
_STRIDE: Final = 4  # blocks of every source that make up an offset
_SMALLEST: Final = 16  # block worth a read of its own: merging so many entries costs as much


class Source(NamedTuple):
    """Entries in the order of their keys, newest first: of a kind, or of one state or stream."""

    kind: str
    state: str | None = None
    stream: str | None = None


class _BlockEnd(NamedTuple):
    """End of a block: the key of its last entry, and the cursor behind it (None: the last one)."""

    key: str
    number: int
    source: Source
    after: str | None


_Starts = dict[Source, str | None]  # by source the cursor after which it is read


class TaskLists:
    """Lists of tasks in a store: sources of entries, merged by their keys.

    An offset reads no entry: one source skips in its index, several skip blocks of their indexes
    until what is left is small enough to merge.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    # --- pages --------------------------------------------------------------------------------

    async def page(
        self, sources: Sequence[Source], offset: int, limit: int | None, start: str | None = None
    ) -> list[Entry]:
        """Return the entries of the sources after the key `start`, from the offset on."""
        if limit == 0:
            return []
        after = None if start is None else page_cursor((0, start))
        starts: _Starts = dict.fromkeys(sources, after)
        offset = await self._skip(starts, offset)
        end = None if limit is None else offset + limit
        if len(starts) == 1:
            ((source, after),) = starts.items()
            page = _PAGE if limit is None else min(limit, _PAGE)
            return await _first(limit, self._entries(source, after, page, offset))
        page = _PAGE if end is None else min(end // max(len(starts), 1) + _SPARE, end, _PAGE)
        return (await _first(end, self._merged(starts, page)))[offset:]

    async def _entries(
        self, source: Source, after: str | None, page: int, skip: int = 0
    ) -> AsyncIterator[Entry]:
        kind, state, stream = source
        while True:
            result = await self._store.find(
                kind, state=state, stream=stream, after=after, skip=skip, limit=page
            )
            for entry in result.entries:
                yield entry
            after, skip = result.next, 0
            if after is None:
                return

    async def _merged(self, starts: _Starts, page: int) -> AsyncIterator[Entry]:
        """Yield the entries of several sources in the order of their keys."""
        readers = [self._entries(source, after, page) for source, after in starts.items()]
        firsts = await asyncio.gather(*(anext(reader, None) for reader in readers))
        heads = [
            (entry.key, number, entry) for number, entry in enumerate(firsts) if entry is not None
        ]
        heapify(heads)
        while heads:
            _, number, entry = heappop(heads)
            yield entry
            following = await anext(readers[number], None)
            if following is not None:
                heappush(heads, (following.key, number, following))

    # --- offsets ------------------------------------------------------------------------------

    async def _skip(self, starts: _Starts, offset: int) -> int:
        """Move the starts over entries before the offset; return how many are still to skip."""
        while len(starts) > 1:
            block = offset // (_STRIDE * len(starts))
            if block < _SMALLEST:
                break
            offset = await self._skip_blocks(starts, offset, block)
        return offset

    async def _skip_blocks(self, starts: _Starts, offset: int, block: int) -> int:
        """Skip blocks while what is up to their ends is before the offset; return what is left.

        Up to the end of the block that ends first, every other source has less than a block.
        """
        sources = list(enumerate(starts.items()))
        probes = (self._block_end(number, item, block) for number, item in sources)
        ends = [end for end in await asyncio.gather(*probes) if end is not None]
        heapify(ends)
        while block * len(starts) <= offset:
            if not ends:  # less than a block is left of every source
                starts.clear()
                break
            _, number, source, after = heappop(ends)
            offset -= block
            if after is None:
                del starts[source]
                continue
            starts[source] = after
            end = await self._block_end(number, (source, after), block)
            if end is not None:
                heappush(ends, end)
        return offset

    async def _block_end(
        self, number: int, item: tuple[Source, str | None], block: int
    ) -> _BlockEnd | None:
        """Return the end of the next block of a source; None if less than a block is left."""
        source, after = item
        page = await self._store.find(
            source.kind,
            state=source.state,
            stream=source.stream,
            after=after,
            skip=block - 1,
            limit=1,
        )
        ends = [_BlockEnd(entry.key, number, source, page.next) for entry in page.entries]
        return ends[0] if ends else None

    # --- sources and counts -------------------------------------------------------------------

    async def shared(self, tenant: str | None, filters: TaskFilters) -> list[Source]:
        """Return the sources of the shared tasks that match, of all tenants if it is None."""
        kind = record.BY_STATUS if filters.owner is None else record.BY_OWNER
        if filters.status is None and filters.owner is None and filters.kind is None:
            groups = await self._store.find(record.GROUP, limit=2)
            tenants = {record.parse_group_key(entry.key)[0] for entry in groups.entries}
            if tenant is None or tenants == {tenant}:
                return [Source(kind)]
        statuses = [filters.status] if filters.status else [str(status) for status in Status]
        return [
            Source(kind, ListState(task_kind, name, status, filters.owner).text)
            for name, task_kind in await self._groups(tenant)
            if filters.kind in (None, task_kind)
            for status in statuses
        ]

    async def _groups(self, tenant: str | None) -> list[tuple[str, str]]:
        """Return a tenant, or all that have tasks, with the kinds of these."""
        if tenant is not None:
            return [(tenant, record.LISTED)]
        entries = all_entries(self._store, record.GROUP)
        return [record.parse_group_key(entry.key) async for entry in entries]

    async def count_shared(self, tenant: str | None, filters: TaskFilters) -> int:
        """Return the number of all shared tasks that match, whatever the offset and limit."""
        kind = record.BY_STATUS if filters.owner is None else record.BY_OWNER

        def is_match(state: ListState) -> bool:
            return (
                filters.status in (None, state.status)
                and filters.kind in (None, state.kind)
                and filters.owner == state.owner
            )

        return sum((await self.states(kind, tenant, is_match)).values())

    async def states(
        self, kind: str, tenant: str | None, is_match: Callable[[ListState], bool]
    ) -> dict[str, int]:
        """Return the states of a kind that match, each with the number of its entries."""
        census = await self._store.census([kind])
        return {
            text: number
            for (_, text), number in census.entries.items()
            if tenant in (None, (state := ListState.parse(text)).tenant) and is_match(state)
        }


async def _first(end: int | None, entries: AsyncIterator[Entry]) -> list[Entry]:
    """Return the first entries up to a position, or all."""
    first: list[Entry] = []
    async for entry in entries:
        first.append(entry)
        if len(first) == end:
            break
    return first
