"""Entries of several listings of a kind in one order, page by page."""

import heapq
from collections.abc import AsyncIterator, Sequence
from typing import Final, get_args

from perdure.store.base import UNLISTED, Census, Entry, Order, Page, Store
from perdure.store.shared.paging import ListingPosition, listing_cursor, listing_place
from perdure.views.literals import Audience, CallKind

SESSIONS: Final = "all"  # sessions, by their last change
SETTLED: Final = "settled"  # settled pending calls, by their end
# The kinds of calls that wait for a person, and those that wait for anything else.
KINDS: Final[dict[Audience, tuple[CallKind, ...]]] = {
    "people": ("approval", "question"),
    "machines": ("tool", "child", "timer"),
}
ALL_KINDS: Final[tuple[CallKind, ...]] = get_args(CallKind)


def open_listing(kind: str) -> str:
    """Return the listing of the open pending calls of a kind, by their creation."""
    return f"open/{kind}"


async def listed_page(
    store: Store, kind: str, listings: Sequence[str], order: Order, after: str | None, limit: int
) -> Page:
    """Return a page of several listings in one order, and of entries that no program listed.

    A damaged entry may be in several; it is returned once.
    """
    names = [*listings, UNLISTED]
    pages = [
        await store.find_listed(kind, name, order=order, after=after, limit=limit) for name in names
    ]

    def place(entry: Entry) -> ListingPosition:
        return listing_place(entry, order)

    merged = heapq.merge(*[page.entries for page in pages], key=place, reverse=order == "newest")
    unique = list({entry.key: entry for entry in merged}.values())
    entries = unique[:limit]
    has_more = len(unique) > limit or any(page.next is not None for page in pages)
    return Page(entries, listing_cursor(entries[-1], order) if entries and has_more else None)


async def all_listed(
    store: Store, kind: str, listings: Sequence[str], order: Order, page: int = 200
) -> AsyncIterator[Entry]:
    """Yield the entries of several listings in one order."""
    after: str | None = None
    while True:
        entries_page = await listed_page(store, kind, listings, order, after, page)
        for entry in entries_page.entries:
            yield entry
        if entries_page.next is None:
            return
        after = entries_page.next


def count_listed(census: Census, kind: str, listings: Sequence[str]) -> int | None:
    """Return the number of entries in listings; None if a program without listings wrote some."""
    if census.listings.get((kind, UNLISTED)):
        return None
    return sum(census.listings.get((kind, listing), 0) for listing in listings)
