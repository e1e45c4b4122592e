"""Queries of entries as values, and the pages that answer them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from perdure.store.base import Entry, FindOptions, ListingOptions, Order, Page
from perdure.store.shared.paging import (
    ListingPosition,
    PagePosition,
    listing_cursor,
    listing_position,
    page_cursor,
    page_position,
)

LIMIT = 100  # entries of a page


class EntryQuery(NamedTuple):
    """Query of entries by conditions: the position after which a page begins, and its size."""

    kind: str
    state: str | None
    stream: str | None
    due_before: int | None
    start: PagePosition | None
    limit: int
    skip: int = 0  # entries after the position that the page leaves out

    @classmethod
    def of(cls, kind: str, options: FindOptions) -> "EntryQuery":
        """Return the query of these arguments of `Store.find`. Raises ValueError."""
        return cls(
            kind,
            options.get("state"),
            options.get("stream"),
            options.get("due_before"),
            page_position(options.get("after")),
            max(options.get("limit", LIMIT), 0),
            max(options.get("skip", 0), 0),
        )

    @property
    def is_by_due(self) -> bool:
        """True if the entries come by (due, key), and not by key."""
        return self.due_before is not None

    @property
    def conditions(self) -> dict[str, Any]:
        """The conditions that were given, by name, in the order of the fields."""
        return {
            name: value for name, value in zip(_CONDITIONS, self, strict=False) if value is not None
        }

    def position(self, key: str, due: int | None) -> PagePosition:
        """Return the position of an entry in the order of the result."""
        return (due or 0 if self.is_by_due else 0, key)

    def has(self, key: str, state: str, stream: str, due: int | None) -> bool:
        """Return whether an entry of the kind is on this page or a later one."""
        return (
            self.state in (None, state)
            and self.stream in (None, stream)
            and (self.due_before is None or (due is not None and due <= self.due_before))
            and (self.start is None or self.position(key, due) > self.start)
        )

    def page(self, entries: Sequence[Entry], *, has_more: bool) -> Page:
        """Return the entries with the cursor of the next page."""
        if not entries or not has_more:
            return Page(entries, None)
        return Page(entries, page_cursor(self.position(entries[-1].key, entries[-1].due)))


_CONDITIONS = ("kind", "state", "stream", "due_before")


class ListingQuery(NamedTuple):
    """Query of a page of a listing: the position after which it begins, and its size."""

    kind: str
    listing: str
    order: Order
    start: ListingPosition | None
    limit: int

    @classmethod
    def of(cls, kind: str, listing: str, options: ListingOptions) -> "ListingQuery":
        """Return the query of these arguments of `Store.find_listed`. Raises ValueError."""
        order = options.get("order", "oldest")
        start = listing_position(options.get("after"), order)
        return cls(kind, listing, order, start, max(options.get("limit", LIMIT), 0))

    def page(self, entries: Sequence[Entry], *, has_more: bool) -> Page:
        """Return the entries with the cursor of the next page."""
        cursor = listing_cursor(entries[-1], self.order) if entries and has_more else None
        return Page(entries, cursor)
