"""Everything that a query of a store finds, read page by page."""

from collections.abc import AsyncIterator
from typing import Final

from perdure.store.base import Entry, Store

PAGE: Final = 500  # entries per read


async def all_entries(
    store: Store,
    kind: str,
    *,
    state: str | None = None,
    stream: str | None = None,
    due_before: int | None = None,
) -> AsyncIterator[Entry]:
    """Find all entries of a kind that meet the conditions, page by page."""
    after: str | None = None
    while True:
        page = await store.find(
            kind, state=state, stream=stream, due_before=due_before, after=after, limit=PAGE
        )
        for entry in page.entries:
            yield entry
        if page.next is None:
            return
        after = page.next
