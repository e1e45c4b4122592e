"""Pages of pending calls that match a filter, in an order that an index keeps, and their number."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from perdure.core.pending import record as pending
from perdure.core.pending.record import PendingRecord
from perdure.runtime.records.entries import decode_readable
from perdure.runtime.records.listings import (
    ALL_KINDS,
    KINDS,
    SETTLED,
    all_listed,
    count_listed,
    listed_page,
    open_listing,
)
from perdure.store.base import Entry, Order, Store
from perdure.store.shared.all_pages import all_entries
from perdure.store.shared.paging import listing_cursor, listing_place
from perdure.views.literals import Audience, PendingSort

# The state of the index entries that have a status; None is every state.
STATES: Final = {
    None: "open",
    "all": None,
    "settled": None,
    "waiting": "open",
    "processing": "open",
}
OPEN_STATUSES: Final = ("waiting", "processing")
ORDERS: Final[dict[PendingSort, Order]] = {"age": "oldest", "expires": "due", "newest": "newest"}
_SMALLEST: Final = 20  # entries per read, however few calls a page has left
_LARGEST: Final = 500  # entries per read, if few of them match


@dataclass(frozen=True, slots=True)
class PendingFilter:
    """Filter of a list of pending calls; None matches all, and without a status the open ones."""

    status: str | None = None
    tenant: str | None = None
    kind: str | None = None
    tool: str | None = None
    session_id: str | None = None
    may_read: Callable[[PendingRecord], bool] | None = None
    audience: Audience | None = None
    agent: str | None = None
    search: str | None = None

    @property
    def listings(self) -> tuple[str, ...]:
        """The listings of the index entries that may match."""
        kinds: Sequence[str] = ALL_KINDS if self.audience is None else KINDS[self.audience]
        kinds = [kind for kind in kinds if self.kind in (None, kind)]
        if self.status is None or self.status in OPEN_STATUSES:
            return tuple(map(open_listing, kinds))
        return (*map(open_listing, kinds), SETTLED) if self.status == "all" else (SETTLED,)

    @property
    def is_by_listing(self) -> bool:
        """True if every entry of the listings matches, so that the index knows their number."""
        others = (self.tenant, self.tool, self.session_id, self.may_read, self.agent, self.search)
        is_whole = self.status is None or (
            self.status in ("all", "settled") and self.kind is None and self.audience is None
        )
        return is_whole and all(value is None for value in others)

    def is_match(self, record: PendingRecord) -> bool:
        """Return whether a record matches."""
        return (
            self._has_status(record)
            and self.tenant in (None, record.tenant)
            and self.kind in (None, record.kind)
            and (self.audience is None or record.kind in KINDS[self.audience])
            and self.tool in (None, record.tool)
            and self.agent in (None, record.agent)
            and self.session_id in (None, record.session_id)
            and (self.search is None or _has_text(record, self.search.lower()))
            and (self.may_read is None or self.may_read(record))
        )

    def _has_status(self, record: PendingRecord) -> bool:
        """Compare the status; the listing of a program without listings has every status."""
        match self.status:
            case None:
                return record.is_open
            case "all":
                return True
            case "settled":
                return not record.is_open
            case status:
                return record.status == status


async def pending_page(
    store: Store,
    pending_filter: PendingFilter,
    after: str | None,
    limit: int,
    sort: PendingSort = "age",
    most: int | None = None,
) -> tuple[list[PendingRecord], str | None]:
    """Return up to `limit` calls after a cursor, and the cursor after them if more follow.

    Where about `most` entries were read, the page ends early: it then has fewer calls and a cursor.
    Calls of one instant are in the order of their turn. Raises ValueError for a bad cursor.
    """
    order = ORDERS[sort]
    matches: list[tuple[Entry, PendingRecord]] = []
    size, count = limit if pending_filter.is_by_listing else max(limit, _SMALLEST), 0
    while True:
        missing = limit - len(matches)
        page = await listed_page(store, "pending", pending_filter.listings, order, after, size)
        matching = [
            (entry, record)
            for entry, record in decode_readable(page.entries, _decode_both)
            if pending_filter.is_match(record)
        ]
        matches += matching[:missing]
        if len(matching) > missing:
            return _in_order(matches, order), listing_cursor(matches[-1][0], order)
        count += len(page.entries)
        is_enough = len(matches) == limit or (most is not None and count >= most)
        if page.next is None or is_enough:
            return _in_order(matches, order), page.next
        after, size = page.next, min(2 * size, _LARGEST)


async def stream_calls(
    store: Store, stream: str, pending_filter: PendingFilter, sort: PendingSort
) -> list[PendingRecord]:
    """Return the calls of one stream that match, in an order."""
    state = STATES.get(pending_filter.status, pending_filter.status)
    matches = [
        (entry, record)
        async for entry in all_entries(store, "pending", state=state, stream=stream)
        for _, record in decode_readable((entry,), _decode_both)
        if pending_filter.is_match(record)
    ]
    return _in_order(matches, ORDERS[sort])


def _in_order(matches: Sequence[tuple[Entry, PendingRecord]], order: Order) -> list[PendingRecord]:
    def place(item: tuple[Entry, PendingRecord]) -> tuple[int, int, str, str]:
        due, at, key = listing_place(item[0], order)
        return due, at, item[1].part_id, key

    return [record for _, record in sorted(matches, key=place, reverse=order == "newest")]


async def count_pending(store: Store, pending_filter: PendingFilter) -> int:
    """Return the number of all calls that match: by the index if it can tell, else read."""
    if pending_filter.is_by_listing:
        census = await store.census(["pending"])
        count = count_listed(census, "pending", pending_filter.listings)
        if count is not None:
            return count
    count = 0
    async for entry in all_listed(store, "pending", pending_filter.listings, "oldest", 1_000):
        for record in decode_readable((entry,), _decode):
            count += pending_filter.is_match(record)
    return count


def _has_text(record: PendingRecord, text: str) -> bool:
    shown = record.redacted
    names = (shown.id, shown.session_id, shown.tool, shown.agent, shown.external_ref or "")
    parts = (*names, shown.prompt or "", str(shown.input))
    return any(text in part.lower() for part in parts)


def _decode_both(entry: Entry) -> tuple[Entry, PendingRecord]:
    return entry, pending.decode(entry.data)


def _decode(entry: Entry) -> PendingRecord:
    return pending.decode(entry.data)
