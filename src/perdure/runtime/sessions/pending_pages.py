"""Pages of pending calls that match a filter, and their number.

Ids of calls are random, so an index has them in no useful order, and sorting all of them for each
page would cost more the more there are. A list is therefore cut into blocks by id, and each block
is sorted by age. Up to `BLOCK` calls are one block, hence oldest first; a page of a longer list
costs as much as one of a short list.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.runtime.records.entries import decode_readable
from perdure.store.base import Entry, Store
from perdure.store.shared.paging import page_cursor

BLOCK: Final = 1_000  # entries
# The state of the index entries that have a status; None is every state.
STATES: Final = {None: "open", "all": None, "waiting": "open", "processing": "open"}
OPEN_STATUSES: Final = ("waiting", "processing")


class Age(NamedTuple):
    """Place of a call in its block: by creation, then by the order of its turn."""

    created: int = -1
    part_id: str = ""
    id: str = ""


class PagePosition(NamedTuple):
    """End of a page: the block it is in, after one id up to another, and its last call."""

    after: str | None = None
    up_to: str | None = None  # None: of a block that no page has begun
    age: Age = Age()


@dataclass(frozen=True, slots=True)
class PendingFilter:
    """Filter of a list of pending calls; None matches all, and without a status the open ones."""

    status: str | None = None
    tenant: str | None = None
    kind: str | None = None
    tool: str | None = None
    session_id: str | None = None
    may_read: Callable[[PendingRecord], bool] | None = None

    @property
    def state(self) -> str | None:
        """The state of the index entries that may match."""
        return STATES.get(self.status, self.status)

    @property
    def is_by_state(self) -> bool:
        """True if every entry in that state matches, so that the index knows their number."""
        others = (self.tenant, self.kind, self.tool, self.session_id, self.may_read)
        return self.status not in OPEN_STATUSES and all(value is None for value in others)

    def is_match(self, record: PendingRecord) -> bool:
        """Return whether a record matches."""
        return (
            self.tenant in (None, record.tenant)
            and self.kind in (None, record.kind)
            and self.tool in (None, record.tool)
            and self.session_id in (None, record.session_id)
            and (self.status not in OPEN_STATUSES or record.status == self.status)
            and (self.may_read is None or self.may_read(record))
        )


async def pending_page(
    store: Store, pending_filter: PendingFilter, position: PagePosition, limit: int
) -> tuple[list[PendingRecord], PagePosition | None]:
    """Return up to `limit` calls after a position, and the position after them if more follow."""
    records: list[PendingRecord] = []
    while True:
        entries, has_more = await _block(store, pending_filter.state, position)
        matching = filter(pending_filter.is_match, decode_readable(entries, _decode))
        later = sorted((record for record in matching if _age(record) > position.age), key=_age)
        added = later[: limit - len(records)]
        records += added
        end = position.up_to or (entries[-1].key if entries else None)
        if len(added) < len(later):
            return records, PagePosition(position.after, end, _age(records[-1]))
        if not has_more:
            return records, None
        position = PagePosition(end)
        if len(records) == limit:
            return records, position


async def _block(
    store: Store, state: str | None, position: PagePosition
) -> tuple[list[Entry], bool]:
    """Return the entries of a block, and whether more follow it.

    A block that a page has begun ends where it ended then, however many calls are new in it.
    """
    entries: list[Entry] = []
    after = None if position.after is None else page_cursor((0, position.after))
    while True:
        page = await store.find("pending", state=state, after=after, limit=BLOCK)
        entries += page.entries
        after, up_to = page.next, position.up_to
        if up_to is None or after is None or entries[-1].key >= up_to:
            break
    inside = entries if up_to is None else [entry for entry in entries if entry.key <= up_to]
    return inside, after is not None or len(inside) < len(entries)


async def count_pending(store: Store, pending_filter: PendingFilter) -> int:
    """Return the number of all calls that match: by the index if it can tell, else read."""
    if pending_filter.is_by_state:
        census = await store.census(["pending"])
        state = pending_filter.state
        return sum(count for (_, name), count in census.entries.items() if state in (None, name))
    count, position, has_more = 0, PagePosition(), True
    while has_more:
        entries, has_more = await _block(store, pending_filter.state, position)
        matching = filter(pending_filter.is_match, decode_readable(entries, _decode))
        count += sum(1 for _ in matching)
        position = PagePosition(entries[-1].key if entries else None)
    return count


def _age(record: PendingRecord) -> Age:
    return Age(record.time.created, record.part_id, record.id)


def _decode(entry: Entry) -> PendingRecord:
    return pending.decode(entry.data)
